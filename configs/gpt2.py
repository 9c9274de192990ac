"""GPT-2, pretrained as a language model; and any decoder, fine-tuned on pairs of texts.

    python -m t5x_like.train --config=configs/gpt2.py:small --config.workdir=runs/gpt2_small \
        --config.data.vocabulary=FOLDER

FOLDER contains vocab.json and merges.txt, from `openai-community/gpt2` or trained by `python -m
t5x_like.vocabulary --kind=gpt2_bpe`. Sizes: `demo`, `small`, `medium`, `large`, `xl`.

| Radford et al. 2019, sections 2.2 and 2.3 | here |
|---|---|
| context of 1024 tokens | data.lengths.targets |
| batch of 512 | data.batch_size |
| byte-level BPE, 50,257 pieces | data.vocabulary |
| WebText | C4, since WebText was not released |
| learning rate "manually tuned" for each size | GPT-3's (Brown et al. 2020, table 2.1) |

The paper gives neither the steps nor the optimizer and its schedule. Here the optimizer is GPT-3's:
Adam (0.9, 0.95), weight decay 0.1, gradient norm 1.0, a cosine to a tenth.

The demo learns on documentation strings in about three minutes on 2 free CPU cores. Expect a
held-out loss of 4.05 nats at the end (unigram entropy of the targets: 6.35):

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=gpt2_bpe --size=4096 \
        --output=runs/gpt2_demo/vocabulary
    python -m t5x_like.train --config=configs/gpt2.py:demo

`fine_tuning` trains a decoder of any system to continue `inputs` with `targets`, fields of your
files (data/text_files.py). With several tasks, a token at the end of the inputs names the task, as
in "how are you <to-fr>"; `convert --tokens` adds such tokens to the model:

    python -m t5x_like.convert --from=gpt2 --to=gpt2-tasks --tokens "<to-fr>" "<summarize>"
    python -m t5x_like.train --config=configs/gpt2.py:fine_tuning --config.workdir=runs/tasks \
        --config.initialize=gpt2-tasks --config.data.settings.files=tasks.jsonl \
        --config.data.settings.inputs=inputs --config.data.settings.targets=targets

Only the targets have a loss. Batch, rate and schedule are GPT's (Radford et al. 2018, section 4.1),
since GPT-2's paper fine-tunes nothing: 3 epochs are `train.steps` = 3 * rows / 32.
"""

import ml_collections

from t5x_like.experiment import recipes

_LEARNING_RATES = {"small": 6e-4, "medium": 3e-4, "large": 2.5e-4, "xl": 2e-4}


def get_config(size: str = "small") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above, or of fine-tuning."""
    if size == "demo":
        return _demo()
    if size == "fine_tuning":
        return _fine_tuning()
    config = recipes.pretraining("gpt2", size, others=("demo", "fine_tuning"))
    recipes.language_modeling(config, length=1024)
    config.data.batch_size = 512
    config.train.steps = 600_000
    config.optimizer = {
        "name": "adamw",
        "b2": 0.95,
        "weight_decay": 0.1,
        "clip_norm": 1.0,
        **recipes.cosine(config, _LEARNING_RATES[size], warmup_steps=2_000),
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config("small"), vocabulary="runs/gpt2_demo/vocabulary", positions=128
    )
    config.data.lengths = {"targets": 128}
    config.data.batch_size = 16
    config.train.steps = 1000
    config.optimizer.update({"learning_rate": 2e-3, "warmup_steps": recipes.warmup(config, 100)})
    return config


def _fine_tuning() -> ml_collections.ConfigDict:
    config = recipes.fine_tuning("runs/gpt2_fine_tuning")
    recipes.text_pairs(config)
    config.data.objective = "text_to_text"
    config.data.objective_settings = {"end_inputs": False}
    config.data.converter = "prefix_lm"
    config.data.lengths = {"inputs": 256, "targets": 256}
    config.data.batch_size = 32
    config.train.steps = 3000
    config.optimizer = {
        "name": "adamw",
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        **recipes.linear(config, 6.25e-5, warmup_steps=recipes.steps(config) // 500),
    }
    config.evaluate.every = 500
    config.evaluate.measures = {"loss": {}, "generation": {"metrics": ("exact_match", "f1")}}
    config.decode = {"max_new_tokens": 256, "num_beams": 1}
    return config
