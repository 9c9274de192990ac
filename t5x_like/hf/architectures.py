"""The class that a folder's config.json names and the head of a model, with the head's labels."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from t5x_like.hf.config_settings import COUNT, OBJECT, Allowed, one_of, or_null
from t5x_like.names import choose

REGRESSION, SINGLE, MULTI = PROBLEMS = (
    "regression",
    "single_label_classification",
    "multi_label_classification",
)
_DEFAULT = 2  # the number of labels of a config.json that does not contain it


@dataclasses.dataclass(frozen=True)
class Labels:
    """The labels that the outputs of a head stand for.

    Attributes:
        names: the names of the classes or tags, in the order of their ids; empty if unknown.
        problem: one of PROBLEMS, what a head of several outputs predicts: a number for each label,
            one of the labels, or any number of labels, each with its own probability; "" if the
            kind of head decides.
    """

    names: tuple[str, ...] = ()
    problem: str = ""

    def in_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of config.json for these labels, which replace a format's.

        Args:
            config: the settings that the format writes, with `id2label` if the head has labels.
        """
        if "id2label" not in config:
            return {}
        written: dict[str, Any] = {}
        if len(self.names) == len(config["id2label"]):
            written["id2label"] = {str(n): name for n, name in enumerate(self.names)}
            written["label2id"] = {name: n for n, name in enumerate(self.names)}
        if self.problem:
            written["problem_type"] = self.problem
        return written


def read_labels(config: Mapping[str, Any]) -> Labels:
    """Read the labels of a config.json; without names they are LABEL_0, ... as in transformers.

    Raises:
        ValueError: `id2label` does not number its names from 0, or `problem_type`,
            `num_labels` or `id2label` has a value that is not allowed.
    """
    problem = config.get("problem_type")
    or_null(one_of(*PROBLEMS)).check("problem_type", problem)
    or_null(COUNT).check("num_labels", config.get("num_labels"))
    named = config.get("id2label")
    or_null(OBJECT).check("id2label", named)
    if named is None:
        names = [f"LABEL_{n}" for n in range(config.get("num_labels") or _DEFAULT)]
    else:
        numbers = [str(n) for n in range(len(named))]
        if not named or sorted(named) != sorted(numbers):
            raise ValueError(
                f"config.json has id2label with the keys {', '.join(named)}; allowed: 0, 1, ..., "
                "one for each label"
            )
        names = [str(named[n]) for n in numbers]  # some folders have numbers or booleans as names
    if problem == SINGLE and len(names) == 1:
        raise ValueError(
            f"config.json has problem_type={SINGLE!r} and one label; allowed: {REGRESSION!r} for a "
            "number, or two labels"
        )
    return Labels(tuple(names), problem or "")


# End of the class's name -> head: BertForMaskedLM has the head `masked_lm`.
_HEADS = {
    "ForPreTraining": "pretraining",
    "ForMaskedLM": "masked_lm",
    "ForConditionalGeneration": "generation",
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "tagging",
    "ForQuestionAnswering": "question_answering",
    "ForMultipleChoice": "multiple_choice",
    "LMHeadModel": "language_modeling",
    "Model": "features",
}
_CLASSES = {head: name for name, head in _HEADS.items()} | {
    "regression": "ForSequenceClassification",
    "discriminator": "ForPreTraining",
}
CLASS = Allowed(
    "a list of the name of one class",
    lambda value: isinstance(value, list) and len(value) == 1 and isinstance(value[0], str),
)


def read_head(config: Mapping[str, Any], *, exported_as: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings `head` and `labels` of a config.json.

    Args:
        exported_as: {head that Hugging Face does not have: the head that it is saved as}. ELECTRA's
            `pretraining` is saved as the `discriminator`, so ElectraForPreTraining is read as a
            discriminator.

    Raises:
        ValueError: config.json names no class, or a class with a head that is not supported.
    """
    CLASS.check("architectures", config.get("architectures"))
    (name,) = config["architectures"]
    ends = (end for end in ("LMHeadModel", "Model") if name.endswith(end))
    ending = next(ends, "For" + name.rpartition("For")[2])
    head = choose("the head of config.json's architectures", ending, _HEADS)
    head = exported_as.get(head, head)
    labels = read_labels(config)
    if head == "classification" and len(labels.names) == 1:
        head = "regression"
    return {"head": head, "labels": len(labels.names)}


def write_head(
    settings: Mapping[str, Any], *, class_prefix: str, exported_as: Mapping[str, str]
) -> dict[str, Any]:
    """Return the settings of config.json for a model's head: the inverse of `read_head`.

    Args:
        class_prefix: the prefix of the names of the family's classes: "Bert".
        exported_as: see `read_head`.

    Raises:
        ValueError: the model has the heads of several tasks.
    """
    if not isinstance(settings["head"], str):
        raise ValueError(
            f"model.head has the tasks {', '.join(settings['head'])}, and a model of Hugging Face "
            "has one head: the network without heads is written by from_pretrained(folder, "
            "head='features').save_pretrained(NEW_FOLDER)"
        )
    head = exported_as.get(settings["head"], settings["head"])
    written: dict[str, Any] = {"architectures": [class_prefix + _CLASSES[head]]}
    if head == "regression":
        written |= {"problem_type": REGRESSION, "id2label": {"0": "LABEL_0"}}
    if head in ("classification", "tagging"):
        written["id2label"] = {str(n): f"LABEL_{n}" for n in range(settings["labels"])}
    if "id2label" in written:
        written["label2id"] = {name: int(n) for n, name in written["id2label"].items()}
    return written
