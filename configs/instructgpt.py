r"""InstructGPT: a language model that follows instructions, in the stages of Ouyang et al. 2022.

Each stage starts from the folder of the stage before, a run or a folder in Hugging Face's format:

    python -m t5x_like.train --config=configs/instructgpt.py:sft:runs/gpt2_small \
        --config.data.settings.train=demonstrations.jsonl --config.workdir=runs/sft
    python -m t5x_like.train --config=configs/instructgpt.py:reward:runs/sft \
        --config.data.settings.train=comparisons.jsonl --config.workdir=runs/reward
    python -m t5x_like.evaluate --config=configs/instructgpt.py:rewards:runs/reward \
        --config.data.settings.validation=demonstrations.jsonl --output=runs/reward/rewards.json

The folder after the colon has any decoder or encoder-decoder that generates text: a GPT-2 or GPT-3,
a LLaMA, a T5. The files are described in data/preference_files.py. The last command writes the mean
and the deviation of the rewards of demonstrations into the folder of the reward model, from which
the config of the next stage reads them: demonstrations then have the mean reward 0 (section 3.5).

The numbers come from the paper (sections 3.4 and 3.5, appendix C), which trains GPT-3 of 1.3, 6 and
175 billion parameters:

| supervised fine-tuning | here |
|---|---|
| 13 thousand prompts, 16 epochs, 32 a batch (8 for 175B) | train.steps = 16 * 13,000 / 32 |
| 9.65e-6 (5.03e-6 for 175B), no warmup, cosine to 10% | optimizer |
| Adam of 0.9 and 0.95, no weight decay given | optimizer |
| residual dropout of 0.2 | model.dropout, if the model has it |
| loss on the response only | data.converter, `encoder_decoder` or `prefix_lm` |
| prompts and responses of up to 1,000 tokens in 2,000 | data.lengths, half of model.positions |
| the checkpoint with the best rewards on validation prompts | not chosen: evaluate.measures |

| reward model | here |
|---|---|
| the SFT model of 6 billion parameters, a scalar as its output | systems/reward_model.py |
| 33 thousand prompts once, 64 a batch, all pairs of a prompt together | train.steps = 33,000 / 64 |
| 4 to 9 responses to a prompt | data.objective_settings.responses = 9 |
| 9e-6, cosine to 10% | optimizer |

Here prompts that are too long are truncated on the left; the paper leaves them out. For a
conversation with the result: `python -m t5x_like.infer --config=configs/run.py:runs/sft
--interactive`.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import ml_collections

from t5x_like import systems
from t5x_like.config import defaults
from t5x_like.experiment import recipes
from t5x_like.pretrained.weight_source import Source, data_settings, open_source
from t5x_like.systems.reward_model import reward_model_of

_LONGEST = 1024  # tokens of a prompt or a response, for a model without a table of positions
STAGES = ("sft", "reward", "rewards")


def get_config(stage: str = "sft") -> ml_collections.ConfigDict:
    """Return the config of STAGE:FOLDER, where FOLDER has the model to start from."""
    name, _, folder = stage.partition(":")
    recipes.check_size("instructgpt", name, STAGES, kind="stage")
    if not folder:
        raise ValueError(
            f"configs/instructgpt.py:{name} lacks the model to start from: give its folder, "
            f"configs/instructgpt.py:{name}:FOLDER"
        )
    return {"sft": _sft, "reward": _reward, "rewards": _rewards}[name](folder)


def start_from(folder: str) -> tuple[ml_collections.ConfigDict, Source]:
    """Return a config that reads feedback (data/preference_files.py), and the folder's source.

    The vocabulary is the folder's. Prompts and responses have half of the model's positions each.
    """
    path = pathlib.Path(folder).expanduser()
    source = open_source(path)
    config = defaults()
    config.initialize = folder
    config.data.module = "data/preference_files.py"
    config.data.task = "preference_files"
    config.data.settings = {"train": "", "validation": "", "held_out": 0.05, "template": "plain"}
    stored = data_settings(source)
    config.data.vocabulary = stored.get("vocabulary", str(path))
    if "template" in stored.get("settings", {}):
        config.data.settings.template = stored["settings"]["template"]
    of_trunk = source.config.get("trunk", source.config)
    half = of_trunk.get("positions", 2 * _LONGEST) // 2
    # A row has a prompt, a response, and a start token.
    config.data.lengths = {"inputs": half - 1, "targets": half}
    return config, source


def without_noise(model: Mapping[str, Any]) -> dict[str, float]:
    """Return the settings that are random in training (dropout, a router's jitter), set to 0."""
    return {name: 0.0 for name in model if name.endswith("dropout") or name == "jitter"}


def encodes(source: Source) -> bool:
    """Return whether an encoder reads the prompt."""
    return systems.build(source.system, source.config).sides == ("encoder", "decoder")


def compare(config: ml_collections.ConfigDict, *, encoder: bool, responses: int) -> None:
    """Set the objective of comparisons, with prompts as in supervised fine-tuning."""
    config.data.objective = "comparisons"
    config.data.objective_settings = {"responses": responses, "end_inputs": encoder}
    config.data.converter = "encoder_decoder_comparisons" if encoder else "decoder_comparisons"


def _sft(folder: str) -> ml_collections.ConfigDict:
    config, source = start_from(folder)
    config.system = source.system
    config.workdir = "runs/instructgpt_sft"
    dropout = {"dropout": 0.2} if "dropout" in source.config else {}
    config.model = {**source.config, **dropout}
    config.loss = {"z_loss": 0.0, "label_smoothing": 0.0}
    config.data.objective = "text_to_text"
    config.data.objective_settings = {"end_inputs": encodes(source)}
    config.data.converter = "encoder_decoder" if encodes(source) else "prefix_lm"
    config.data.batch_size = 32
    config.train.steps = 6_500
    config.optimizer = _adam(config, 9.65e-6)
    config.checkpoint.every = 500
    config.evaluate.every = 500
    return config


def _reward(folder: str) -> ml_collections.ConfigDict:
    config, source = start_from(folder)
    config.system = "reward_model"
    config.workdir = "runs/instructgpt_reward"
    # No dropout: it would differ between the responses of a prompt, whose rewards are compared.
    still = without_noise(source.config)
    config.model = reward_model_of(source.system, {**source.config, **still})
    compare(config, encoder=encodes(source), responses=9)
    config.data.batch_size = 64
    config.train.steps = 516
    config.optimizer = _adam(config, 9e-6)
    config.checkpoint.every = 100
    config.evaluate.every = 100
    return config


def _rewards(folder: str) -> ml_collections.ConfigDict:
    """Return the config that measures the rewards of demonstrations with the model in FOLDER."""
    config, source = start_from(folder)
    if source.system != "reward_model":
        raise ValueError(
            f"configs/instructgpt.py:rewards:{folder}: this is a {source.system}, and rewards come "
            "from a reward_model: train one first (configs/instructgpt.py:reward:FOLDER)"
        )
    config.system = "reward_model"
    config.workdir = folder if source.run else ""
    config.model = source.config
    compare(config, encoder=encodes(source), responses=1)
    config.data.batch_size = 64
    config.evaluate.batches = 0
    config.optimizer = _adam(config, 9e-6)  # not used: the run is only evaluated
    config.evaluate.measures = {"rewards": {}}
    return config


def _adam(config: ml_collections.ConfigDict, rate: float) -> dict[str, Any]:
    schedule = recipes.cosine(config, rate, warmup_steps=0)
    return {"name": "adamw", "b2": 0.95, "weight_decay": 0.0, "clip_norm": 0.0, **schedule}


def normalization(folder: str) -> dict[str, float]:
    """Return the `shift` and `scale` of the reward model in a folder, from its rewards.json.

    Raises:
        ValueError: the file does not exist yet.
    """
    path = pathlib.Path(folder).expanduser() / "rewards.json"
    if not path.is_file():
        raise ValueError(
            f"there is no {path}: measure the rewards of demonstrations first, with python -m "
            f"t5x_like.evaluate --config=configs/instructgpt.py:rewards:{folder} --output={path}"
        )
    found = json.loads(path.read_text("utf-8"))["tasks"]["preference_files"]
    return {"shift": found["rewards/mean"], "scale": found["rewards/deviation"]}
