"""MASS, pretrained by filling in a fragment of a sentence.

    python -m t5x_like.train --config=configs/mass.py:big --config.workdir=runs/mass_big \
        --config.data.vocabulary=vocab.txt

The vocabulary needs a mask token (`python -m t5x_like.vocabulary --kind=wordpiece`). Sizes:
`demo`, `big`.

| Song et al. 2019, section 4.1, and the released command | here |
|---|---|
| 6 + 6 layers of 1024, feed-forward layers of 4096, 8 heads, GELU | model |
| k = 50% of a sentence's tokens, one fragment | data.objective_settings.rate |
| replaced by: 80% [MASK], 10% random tokens, 10% unchanged | data.objective_settings |
| batches of 3,000 tokens on each of 8 GPUs | data.batch_size=96 packed rows of 256 tokens |
| sentences one by one | data.pack |
| Adam, 1e-4, beta 0.9 and 0.98 | optimizer |
| inverse square root after a warmup of 4,000 steps | optimizer.schedule=warmup_rsqrt |
| dropout 0.1, also in attention | model.dropout |
| 200,000 sentences an epoch, 100 epochs at most | train.steps |
| News Crawl in English, French, German, Romanian | C4, in English |

The limiting cases of section 3.2, from the same file:

    --config.data.objective_settings.tokens=1     one token: a masked language model
    --config.data.objective_settings.rate=1.0     all tokens: a language model
        (with random_rate=0.0 and kept_rate=0.0 the encoder then reads only [MASK])

Fine-tuning, on pairs of texts:

    python -m t5x_like.train --config=configs/mass.py:big --config.initialize=runs/mass_big \
        --config.workdir=runs/mass_pairs --config.data.vocabulary=vocab.txt \
        --config.data.module=data/text_files.py --config.data.task=text_files \
        --config.data.settings.files=pairs.jsonl --config.data.settings.inputs=article \
        --config.data.settings.targets=title --config.data.objective=text_to_text \
        --config.data.converter=encoder_decoder

The demo learns on documentation strings in minutes on 2 CPU cores. Its held-out loss falls from log
4096 = 8.3 to 4.56 nats (unigram entropy of the targets: 5.51):

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=wordpiece --size=4096 \
        --output=runs/mass_demo/vocab.txt
    python -m t5x_like.train --config=configs/mass.py:demo
"""

import ml_collections

from t5x_like.experiment import recipes


def get_config(size: str = "big") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    config = recipes.pretraining("mass", size)
    config.loss = {"z_loss": 0.0, "label_smoothing": 0.0}
    config.data.objective = "mass"
    config.data.objective_settings = {
        "rate": 0.5,
        "tokens": 0,
        "random_rate": 0.1,
        "kept_rate": 0.1,
    }
    config.data.converter = "fragment"
    config.data.pack = True
    config.data.lengths = {"inputs": 256, "targets": 128}
    config.data.batch_size = 96
    config.train.steps = 1_000_000
    warmup_steps = ml_collections.FieldReference(4_000)
    config.optimizer = {
        "name": "adamw",
        "b2": 0.98,
        "clip_norm": 5.0,
        "schedule": "warmup_rsqrt",
        # Times 1 / sqrt(step), which gives 1e-4 at the end of the warmup.
        "learning_rate": warmup_steps.to_float() ** 0.5 * 1e-4,
        "warmup_steps": warmup_steps,
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(get_config("big"), vocabulary="runs/mass_demo/vocab.txt", positions=64)
    config.data.lengths = {"inputs": 64, "targets": 32}
    config.data.batch_size = 16
    config.train.steps = 800
    # A short run ends with a lower loss if its learning rate decays.
    config.optimizer = {
        "name": "adamw",
        "b2": 0.98,
        **recipes.linear(config, 2e-3, warmup_steps=recipes.warmup(config, 100)),
    }
    config.checkpoint.every = 400
    config.decode = {"max_new_tokens": 32}
    return config
