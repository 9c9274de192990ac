r"""ELECTRA, pretrained by detecting the tokens that a generator replaced.

    python -m t5x_like.train --config=configs/electra.py:small --config.workdir=runs/electra_small \
        --config.data.vocabulary=vocab.txt

Sizes: `demo`, `small`, `base`, `large`, and each as `<size>_first_stage`, `<size>_second_stage` and
`<size>_adversarial` (below). All but the demo follow the paper (Clark et al. 2020, table 6), on C4
instead of the text of BERT, and for `large` of XLNet:

| table 6 | small | base | large | here |
|---|---|---|---|---|
| layers, width, feed-forward | 12, 256, 1024 | 12, 768, 3072 | 24, 1024, 4096 | model.layers, ... |
| heads, embeddings | 4, 128 | 12, 768 | 16, 1024 | model.heads, model.d_embedding |
| generator's width, relative | 1/4 | 1/3 | 1/4 | model.generator |
| masked | 15% | 15% | 25% | data.objective_settings.rate, loss.predicted above it |
| tokens per row (section 3.3) | 128 | 512 | 512 | data.lengths.inputs |
| rows per batch | 128 | 256 | 2048 | data.batch_size |
| steps | 1,000,000 | 766,000 | 400,000 | train.steps |
| learning rate | 5e-4 | 2e-4 | 2e-4 | optimizer.learning_rate |
| Adam | beta 0.9 and 0.999, epsilon 1e-6, decay 0.01 | the same | the same | optimizer |
| warmup, then linear decay | 10,000 | 10,000 | 10,000 | optimizer.schedule=linear |
| loss weight of the discriminator (section 2) | 50 | 50 | 50 | loss.discriminator |

The steps from BERT to ELECTRA (section 3.5, table 5), with one setting each:

    --config.model.objective=electra_15       (GLUE 82.4 there)
    --config.model.objective=replace_mlm      (82.4)
    --config.model.objective=all_tokens_mlm   (84.3)
    --config.model.objective=electra          (85.0, the default)

Training in two stages (section 3.2): first only the generator, of the discriminator's size, then
the discriminator, initialized with the generator's weights, on samples of the frozen generator.
Each stage has half of the steps:

    python -m t5x_like.train --config=configs/electra.py:small_first_stage ...
    python -m t5x_like.train --config=configs/electra.py:small_second_stage \
        --config.initialize=runs/electra_small_first_stage ...

A generator that is trained to mislead the discriminator, instead of to predict the masked tokens
(appendix F):

    python -m t5x_like.train --config=configs/electra.py:small_adversarial ...

The demo learns on documentation strings in about five minutes on 2 free CPU cores:

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=wordpiece --size=4096 \
        --output=runs/electra_demo/vocab.txt
    python -m t5x_like.train --config=configs/electra.py:demo

Its generator has half the width of the discriminator, within the quarter to a half that the paper
finds best (section 3.2). Expect a held-out loss of the generator of 5.52 nats (unigram entropy of
the targets: 5.47), and of the discriminator of 0.372, below the 0.400 of predicting the same
probability of replacement, 13.7%, for every token. (A generator learns little in so short a run.)
"""

import ml_collections

from t5x_like.experiment import recipes

# For each size: tokens per row, rows per batch, steps, learning rate, share of masked tokens.
_TRAINING = {
    "small": (128, 128, 1_000_000, 5e-4, 0.15),
    "base": (512, 256, 766_000, 2e-4, 0.15),
    "large": (512, 2048, 400_000, 2e-4, 0.25),
}


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above, or of one of its variants."""
    for ending, change in _VARIANTS.items():
        if size.endswith(ending):
            config = get_config(size.removesuffix(ending))
            config.workdir = f"runs/electra_{size}"
            change(config)
            return config
    if size == "demo":
        return _demo()
    config = recipes.pretraining("electra", size)
    length, batch_size, steps, learning_rate, rate = _TRAINING[size]
    recipes.masked_language_modeling(config, "electra", length=length)
    config.data.objective_settings = {"rate": rate}
    masked = config.data.objective_settings.get_oneway_ref("rate")
    config.loss = {"generator": 1.0, "discriminator": 50.0, "predicted": masked + 0.05}
    config.data.batch_size = batch_size
    config.train.steps = steps
    config.optimizer = {
        "name": "adamw",
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        "clip_norm": 1.0,  # the authors' code
        **recipes.linear(config, learning_rate, warmup_steps=10_000),
    }
    return config


def _first_stage(config: ml_collections.ConfigDict) -> None:
    config.train.steps //= 2
    config.model.head = "masked_lm"
    config.loss = {"predicted": config.loss.get_oneway_ref("predicted")}


def _second_stage(config: ml_collections.ConfigDict) -> None:
    config.train.steps //= 2
    config.initialize = config.workdir.replace("_second_stage", "_first_stage")
    config.model.update({"head": "second_stage", "generator": 1.0, "tied": "none"})
    config.loss.update({"generator": 0.0, "discriminator": 1.0})
    config.optimizer.frozen = ("generator",)


def _adversarial(config: ml_collections.ConfigDict) -> None:
    config.model.head = "adversarial"
    config.loss.baseline = 1.0


_VARIANTS = {
    "_first_stage": _first_stage,
    "_second_stage": _second_stage,
    "_adversarial": _adversarial,
}


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config("small"), vocabulary="runs/electra_demo/vocab.txt", positions=64, generator=0.5
    )
    config.data.lengths = {"inputs": 64}
    config.data.batch_size = 32
    config.train.steps = 2000
    # At twice the rate the discriminator predicts "original" for every token to the end.
    config.optimizer.warmup_steps = recipes.warmup(config, 100)
    return config
