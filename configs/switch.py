r"""Switch Transformer, pretrained by span corruption: T5 with experts.

    python -m t5x_like.train --config=configs/switch.py:base_8 --config.workdir=runs/switch \
        --config.data.vocabulary=vocabulary.model --config.mesh.expert=8

Sizes: `demo`; `base_8`, `base_16`, `base_32`, `base_64`, `base_128`, `base_256` (as many FLOPs per
token as T5 v1.0 base), `large_128` (as v1.0 large), `xxl_128` (as v1.1 XXL) and `c_2048`, which has
experts in every layer. All but the demo follow the paper (Fedus, Zoph and Shazeer 2022):

| paper | here |
|---|---|
| C4, with intra-example duplicates removed (section 4.1) | C4 unchanged, data/c4.py |
| 15% of the tokens masked, spans become sentinels (section 2.3) | T5's span corruption |
| batches of 2^20 tokens for 550,000 steps (section 4.1) | 2048 rows of 512, train.steps |
| xxl and c: to 500,000 steps (table 9) | train.steps |
| alpha = 0.01 (section 2.2) | loss.load_balance |
| initial scale 0.1 (section 2.4) | model.init_scale |
| routers in float32, everything else in bfloat16 (section 2.4) | model.dtype |
| multiplicative noise on the router's inputs (appendix C, without its size) | model.jitter |

If the paper gives no number, it is T5's (Adafactor, 1/sqrt(step) after 10,000 steps, 512 tokens per
row) or from the configs of the released models (Flaxformer's `switch_classic_*.gin`): capacity
factors of 1.25 in training and 2.0 in evaluation (xxl 4.0; c 2.0 in both, equal to its 1.0 with at
least two slots); the number of tokens that share slots (model.group_size); no dropout. The noise of
1% is from their Hugging Face folders.

On TPUs or GPUs shard the experts with `mesh.expert`, which must divide model.experts; the batch is
sharded over it as over `data` and `fsdp`. The paper compares, from the same file:

    --config.model.capacity_factor=1.0                           (or 2.0; table 1)
    --config.model.router=top2 --config.model.capacity_factor=2.0
    --config.model.dtype=float32                                 (table 2)
    --config.model.init_scale=1.0                                (table 3)
    --config.model.jitter=0.0                                    (table 11: argmax)
    --config.model.architecture=decoder --config.data.objective=language_modeling \
        --config.data.converter=decoder --config.data.lengths.targets=512

and the routers `random` and `hash`, which do not learn, and `expert_choice`, where experts choose
tokens, which is only for encoders, since it compares a token with later ones.

To fine-tune (section 2.4: 0.1 of all layers, but 0.4 within the experts; section 4.1: 16,000 steps
of 2^20 tokens, evaluated every 200 steps):

    --config.initialize=FOLDER --config.model.dropout=0.1 --config.model.expert_dropout=0.4 \
        --config.train.steps=16000 --config.evaluate.every=200

where FOLDER may be in Hugging Face's format, such as google/switch-base-8 as safetensors. A step of
generation drops no token, but the encoder's tokens share slots in groups: for outputs that do not
depend on the rest of the batch set --config.model.group_size=0. --config.model.dispatch=dropless
needs no slots at all.

The demo has 8 experts in one layer of the encoder and one of the decoder. Its held-out loss is 4.26
nats (unigram entropy of the targets: 5.76), after 8 minutes of one CPU core: in so few steps no
better than the 4.21 of a T5 with the same settings (system=t5). Training drops some 8% of the
tokens, because the tokens of a row (32 or 128) share slots; evaluation drops 1%.

    python -m t5x_like.vocabulary --data=data/pydocs.py --size=3996 \
        --output=runs/switch_demo/vocabulary.model
    python -m t5x_like.train --config=configs/switch.py:demo
"""

import ml_collections

from t5x_like.experiment import recipes

_LARGEST = ("xxl_128", "c_2048")


def get_config(size: str = "base_8") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    config = recipes.pretraining("switch", size)
    config.model.dtype = "bfloat16"
    config.loss = {
        "z_loss": 1e-4,
        "label_smoothing": 0.0,
        "load_balance": 0.01,
        "router_z_loss": 0.0,
    }
    config.data.batch_size = 2**20 // 512
    config.train.steps = 500_000 if size in _LARGEST else 550_000
    config.optimizer = {"name": "adafactor", **recipes.rsqrt()}
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config("base_8"),
        vocabulary="runs/switch_demo/vocabulary.model",
        d_ff=384,
        feed_forward="gated_gelu",
        tied_head=False,
        group_size=0,
    )
    config.data.lengths = {"inputs": 128, "targets": 32}
    config.data.batch_size = 8
    config.train.steps = 2500
    config.optimizer = {
        "name": "adafactor",
        **recipes.linear(config, 0.02, warmup_steps=recipes.warmup(config, 100)),
    }
    config.evaluate.every = 500
    config.evaluate.batches = 80
    config.decode = {"max_new_tokens": 32, "num_beams": 4}
    return config
