r"""BigBird-RoBERTa, a BigBird with a decoder of its weights, fine-tuned to summarize documents.

    python -m t5x_like.train --config=configs/bigbird_roberta.py:base \
        --config.workdir=runs/summaries --config.initialize=google/bigbird-roberta-base \
        --config.data.vocabulary=google/bigbird-roberta-base \
        --config.data.settings.files="patents/*.jsonl" --config.data.settings.inputs=description \
        --config.data.settings.targets=abstract

where `initialize` is a BigBird with a head for masked tokens: a run, or a folder in Hugging Face's
format. Sizes: `demo`; `base`. They follow the authors' code for the model of Zaheer et al. 2020,
section 4.1 (roberta_base.sh and the defaults of run_summarization.py):

| the released code | here |
|---|---|
| 12 layers on both sides, width 768, 12 heads | model |
| blocks of 64 tokens | model.block |
| both sides start from the pretrained base model | initialize |
| 3072 tokens to 256 | data.lengths |
| 5 beams, length penalty 0.8 | decode |
| 4 rows on each of 64 cores | data.batch_size=256 |
| label smoothing 0.1 | loss |
| Adafactor with an inverse square root | optimizer; its rate and steps are BigBird-Pegasus's |

The demo starts from the demo of configs/bigbird.py, which has to be trained first, and learns to
write the first sentence of a documentation string from the rest:

    python -m t5x_like.train --config=configs/bigbird_roberta.py:demo
"""

import ml_collections

from t5x_like.experiment import recipes


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    config = recipes.pretraining("bigbird_roberta", size)
    config.loss = {"z_loss": 0.0, "label_smoothing": 0.1}
    recipes.text_pairs(config)
    config.data.objective = "text_to_text"
    config.data.converter = "encoder_decoder"
    config.data.lengths = {"inputs": 3072, "targets": 256}
    config.data.batch_size = 256
    config.train.steps = 100_000
    config.optimizer = {
        "name": "adafactor",
        "schedule": "warmup_rsqrt",
        "learning_rate": 1e-2,  # times 1 / sqrt(step), which gives 1e-4 at the end of the warmup
        "warmup_steps": 10_000,
    }
    config.decode = {"max_new_tokens": 256, "num_beams": 5, "length_penalty": 0.8}
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config("base"),
        vocabulary="runs/bigbird_demo/vocabulary.model",
        positions=64,
        block=4,
        random=1,
        start_id=3,  # of [SEP], as in BigBird's demo, whose vocabulary it is
        end_id=3,
    )
    config.initialize = "runs/bigbird_demo"
    config.data.module = "data/pyglue.py"
    config.data.task = "pyglue_summary"
    config.data.lengths = {"inputs": 64, "targets": 32}
    config.data.batch_size = 16
    config.loss.label_smoothing = 0.0
    config.train.steps = 1500
    config.optimizer = {
        "name": "adafactor",
        **recipes.linear(config, 0.02, warmup_steps=recipes.warmup(config, 100)),
    }
    config.evaluate.every = 250
    config.decode = {"max_new_tokens": 32, "num_beams": 5, "length_penalty": 0.8}
    return config
