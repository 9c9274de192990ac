r"""BigBird-Pegasus, fine-tuned to summarize long documents.

    python -m t5x_like.train --config=configs/bigbird_pegasus.py:large --config.initialize=FOLDER \
        --config.workdir=runs/summaries --config.data.vocabulary=vocabulary.model \
        --config.data.settings.files="patents/*.jsonl" --config.data.settings.inputs=description \
        --config.data.settings.targets=abstract

where FOLDER is a run or a folder in Hugging Face's format. Sizes: `demo`; `large`, for long
documents in your files; and the same network for the two shorter benchmarks of
data/summarization.py, `xsum` and `cnn_dailymail`. They follow Zaheer et al. 2020, appendix E.5,
table 17, and where marked (code) the authors' run_summarization.py:

| table 17, BigBird-Pegasus | here |
|---|---|
| blocks of 64: 2 global, 3 neighboring, 3 random ones | model.block, model.random |
| 16 layers on both sides, width 1024, 16 heads | model |
| 3072 tokens (XSum 1024, CNN/DM 2048) to 256 (64, 128) | data.lengths |
| 5 beams, length penalty 0.8 (XSum 0.7) | decode |
| batch of 128; (code) label smoothing 0.1 | data.batch_size, loss |
| dropout 0.1, also in attention | model.dropout |
| Adafactor, 1e-4 after 10,000 steps, then inverse square root | optimizer |
| (code) the positions are not trained | optimizer.frozen |
| steps: not given | train.steps=100,000 |
| Pegasus's weights to start from | initialize; without it random parameters |

If you start from random parameters, train the positions too: `--config.optimizer.frozen="()"`.
Table 4 has the ROUGE scores to expect: 60.64, 42.46 and 50.01 on BigPatent.

The demo learns to write the first sentence of a documentation string from the rest, in minutes on 2
CPU cores, in rows of 16 blocks. Its held-out loss falls from log 4096 = 8.3 to 4.42 nats (unigram
entropy of the targets: 5.73):

    python -m t5x_like.vocabulary --data=data/pydocs.py --size=3996 \
        --output=runs/bigbird_pegasus_demo/vocabulary.model
    python -m t5x_like.train --config=configs/bigbird_pegasus.py:demo
"""

import ml_collections

from t5x_like.experiment import recipes
from t5x_like.systems.bigbird_pegasus import SIZES

# Maximum tokens of a document and of a summary, and the length penalty.
_BENCHMARKS = {"xsum": (1024, 64, 0.7), "cnn_dailymail": (2048, 128, 0.8)}
_POSITIONS = tuple(f"{tower}/entrance/position" for tower in ("encoder", "decoder"))


def get_config(size: str = "large") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    sizes = SIZES | dict.fromkeys(_BENCHMARKS, SIZES["large"])
    config = recipes.pretraining("bigbird_pegasus", size, sizes=sizes)
    config.loss = {"z_loss": 0.0, "label_smoothing": 0.1}
    recipes.text_pairs(config)
    if size in _BENCHMARKS:
        config.data.module = "data/summarization.py"
        config.data.task = size
        config.data.settings = {"folder": ""}
    inputs, targets, penalty = _BENCHMARKS.get(size, (3072, 256, 0.8))
    config.data.objective = "text_to_text"
    config.data.converter = "encoder_decoder"
    config.data.lengths = {"inputs": inputs, "targets": targets}
    config.data.batch_size = 128
    config.train.steps = 100_000
    config.optimizer = {
        "name": "adafactor",
        "schedule": "warmup_rsqrt",
        "learning_rate": 1e-2,  # times 1 / sqrt(step), which gives 1e-4 at the end of the warmup
        "warmup_steps": 10_000,
        "frozen": _POSITIONS,
    }
    config.decode = {"max_new_tokens": targets, "num_beams": 5, "length_penalty": penalty}
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config("large"),
        vocabulary="runs/bigbird_pegasus_demo/vocabulary.model",
        positions=128,
        block=8,
        random=1,
        dropout=0.1,  # the 8,000 rows are read several times
    )
    config.data.module = "data/pyglue.py"
    config.data.task = "pyglue_summary"
    config.data.lengths = {"inputs": 128, "targets": 32}
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
