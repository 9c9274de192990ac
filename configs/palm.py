"""PaLM, pretrained as a language model.

    python -m t5x_like.train --config=configs/palm.py:8b --config.workdir=runs/palm_8b \
        --config.data.vocabulary=palm.model

palm.model is trained by `python -m t5x_like.vocabulary --kind=palm --size=256000`; Google's file
was not released. Sizes: `demo`, `8b`, `62b`, `540b`.

| Chowdhery et al. 2022, section 5 | here |
|---|---|
| sizes (table 1) | systems/palm.py: SIZES |
| batches of 256, then 512 (8B), 512, then 1024 (62B; table 1) | phases |
| 540B: 512 sequences to step 50,000, 1024 to 115,000, 2048 to 255,000 | phases |
| sequences of 2048 tokens from running text | data.lengths.targets, data.objective |
| Adafactor without factoring, with parameter scaling | optimizer.min_dim_size_to_factor |
| 1e-2 for 10,000 steps, then 1/sqrt(k) | optimizer.schedule=rsqrt, warmup_steps |
| momentum 0.9; decay of the second moment 1 - k^-0.8 | optimizer.momentum, decay_exponent |
| gradient norm up to 1.0 | optimizer.clip_norm |
| weight decay of the squared learning rate | optimizer.weight_decay=1, weight_decay_power=2 |
| auxiliary loss of 1e-4 log^2 Z | loss.z_loss |
| no dropout (0.1 in fine-tuning) | model.dropout |
| 780 billion tokens, weights of the corpora (table 2) | data.settings.corpora, train.steps |

| corpus | weight |
|---|---|
| social media conversations | 50% |
| filtered web pages | 27% |
| books | 13% |
| GitHub | 5% |
| Wikipedia | 4% |
| news | 1% |

The data was not released: the corpora are your files, as in configs/gpt3.py. Each is read once. The
paper gives the steps only for 540B, and "similar schedules" for the smaller models: here their
batch also doubles after 50,000 steps, and they are trained on 780 billion tokens.

The demo learns on documentation strings in minutes on 2 free CPU cores. Expect a held-out
cross-entropy of 3.77 nats at the end (unigram entropy of the targets: 5.99):

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=palm --size=4096 \
        --output=runs/palm_demo/palm.model
    python -m t5x_like.train --config=configs/palm.py:demo
"""

import ml_collections

from t5x_like.experiment import recipes

# Batches from table 1; the steps of the smaller models are not in the paper, see above.
_PHASES = {
    "8b": {"first": (256, 50_000), "doubled": (512, 718_881)},
    "62b": {"first": (512, 50_000), "doubled": (1024, 346_940)},
    "540b": {"first": (512, 50_000), "doubled": (1024, 65_000), "quadrupled": (2048, 140_000)},
}
# Table 2: weight of each corpus, and its tokens, which are read once.
_CORPORA = {
    "social_media": (50, 0.50 * 780e9),
    "webpages": (27, 0.27 * 780e9),
    "books": (13, 0.13 * 780e9),
    "github": (5, 0.05 * 780e9),
    "wikipedia": (4, 0.04 * 780e9),
    "news": (1, 0.01 * 780e9),
}


def get_config(size: str = "8b") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    config = recipes.pretraining("palm", size)
    recipes.language_modeling(config, length=2048)
    recipes.mixture(config, _CORPORA)
    config.loss.z_loss = 1e-4
    phases = _PHASES[size].items()
    recipes.phases(config, **{name: {"batch_size": rows, "steps": n} for name, (rows, n) in phases})
    config.optimizer = {
        "name": "adafactor",
        "min_dim_size_to_factor": 1 << 30,  # larger than any dimension
        "decay_exponent": 0.8,
        "momentum": 0.9,
        "clip_norm": 1.0,
        "weight_decay": 1.0,
        "weight_decay_power": 2,
        **recipes.rsqrt(),
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(get_config("8b"), vocabulary="runs/palm_demo/palm.model")
    config.data.lengths = {"targets": 128}
    recipes.phases(
        config,
        first={"batch_size": 8, "steps": 300},
        doubled={"batch_size": 16, "steps": 300},
        quadrupled={"batch_size": 32, "steps": 200},
    )
    config.optimizer.update({"learning_rate": 0.3, "warmup_steps": 200})
    config.checkpoint.every = 400
    return config
