r"""Sparrow: a rule model, and a policy trained with a reward model and rules (Glaese et al. 2022).

    python -m t5x_like.train --config=configs/sparrow.py:rules:runs/sft \
        --config.data.settings.train=judgements.jsonl --config.workdir=runs/rules
    python -m t5x_like.train --config=configs/sparrow.py:ppo:runs/sft:runs/reward:runs/rules \
        --config.data.settings.prompts=prompts.jsonl --config.workdir=runs/sparrow \
        --config.data.settings.pretraining=texts.jsonl

`rules` trains a model to predict whether a response violates a rule, from judgements
(data/rule_files.py); it starts from any decoder or encoder-decoder. `ppo` is configs/ppo.py with a
second reward: the mean, over all rules of `runs/rules/rules.txt` (or another file after a fourth
colon), of the probability that the rule is followed, `model.rule_weight` times. The first reward is
the reward model's, normalized on demonstrations as in configs/ppo.py.

data/generators/instructions.py writes judgements of generated instructions:

    python -m data.generators.instructions --output=runs/instructions
    cp runs/instructions/rules.txt runs/rules/rules.txt

`rules` has the batches, rates and steps of InstructGPT's reward model, and `ppo` has InstructGPT's,
since the paper trains by another algorithm, A2C.
"""

import pathlib

import ml_collections

from configs import instructgpt, ppo
from t5x_like import vocabularies
from t5x_like.objectives.prompts import rule_tokens
from t5x_like.pretrained.weight_source import open_source
from t5x_like.systems.sparrow import sparrow_of

RULES = "rules.txt"
_PARTS = 4  # POLICY:REWARD:RULES:FILE


def get_config(stage: str = "rules") -> ml_collections.ConfigDict:
    """Return the config of rules:FOLDER or ppo:POLICY:REWARD:RULES[:FILE].

    Raises:
        ValueError: a folder or the file of rules is missing, or has another model.
    """
    name, _, rest = stage.partition(":")
    if name == "rules" and rest:
        return _rules(rest)
    folders = rest.split(":")
    if name == "ppo" and len(folders) in (_PARTS - 1, _PARTS):
        return _ppo(*folders)
    raise ValueError(
        f"configs/sparrow.py:{stage}: give rules:FOLDER, with the model to start from, or "
        "ppo:POLICY:REWARD:RULES, with the folders of three runs"
    )


def _rules(folder: str) -> ml_collections.ConfigDict:
    config = instructgpt.get_config(f"reward:{folder}")
    config.workdir = "runs/rules"
    config.system = "rule_model"
    config.data.module, config.data.task = "data/rule_files.py", "rule_files"
    config.data.settings = {"train": "", "validation": "", "held_out": 0.05}
    config.data.objective = "judgements"
    end = config.data.objective_settings.end_inputs
    config.data.objective_settings = {"end_inputs": end}
    return config


def _ppo(policy: str, reward: str, folder: str, file: str = "") -> ml_collections.ConfigDict:
    config = ppo.get_config(f"{policy}:{reward}")
    config.system, config.workdir = "sparrow", "runs/sparrow"
    source = open_source(pathlib.Path(folder).expanduser())
    if source.system != "rule_model":
        raise ValueError(
            f"configs/sparrow.py:ppo: {folder} has a {source.system}, and rules need a rule_model: "
            "train one first (configs/sparrow.py:rules:FOLDER)"
        )
    vocabulary = vocabularies.load(config.data.vocabulary)
    path = pathlib.Path(file).expanduser() if file else pathlib.Path(folder).expanduser() / RULES
    tokens = [rule_tokens(vocabulary, rule) for rule in _lines(path)]
    model = sparrow_of(config.model.to_dict(), {**source.config, "folder": folder}, tokens)
    config.model = model
    config.optimizer.frozen = ("reference", "reward", "rules")
    return config


def _lines(path: pathlib.Path) -> list[str]:
    """Return the rules of a file, one on each line."""
    if not path.is_file():
        raise ValueError(f"there is no {path}: write the rules into it, one on each line")
    found = [line.strip() for line in path.read_text("utf-8").splitlines()]
    rules = [line for line in found if line]
    if not rules:
        raise ValueError(f"{path} has no rule: write one on each line")
    return rules
