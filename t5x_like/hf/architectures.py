"""Which head a Hugging Face folder has: the class that its config.json names, and back."""

from collections.abc import Mapping
from typing import Any

from t5x_like.names import choose

# The head by the end of the class's name: BertForMaskedLM has `masked_lm`.
_HEADS = {
    "ForPreTraining": "pretraining",
    "ForMaskedLM": "masked_lm",
    "ForConditionalGeneration": "generation",
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "tagging",
    "ForQuestionAnswering": "question_answering",
    "LMHeadModel": "language_modeling",
    "Model": "features",
}
_CLASSES = {head: name for name, head in _HEADS.items()} | {
    "regression": "ForSequenceClassification",
    "discriminator": "ForPreTraining",
}


def read_head(config: Mapping[str, Any], *, exported_as: Mapping[str, str]) -> dict[str, Any]:
    """The settings `head` and `labels` of a config.json.

    Args:
        exported_as: heads that Hugging Face has not, by the system: what it has of them. A run of
            ELECTRA's `pretraining` is saved as the `discriminator`, and ElectraForPreTraining is
            one.

    Raises:
        ValueError: it names no class, or one with a head that there is none of here.
    """
    classes = config.get("architectures") or []
    if len(classes) != 1:
        raise ValueError(
            f"config.json has architectures={classes!r}: one class must say which head there is"
        )
    ends = (end for end in ("LMHeadModel", "Model") if classes[0].endswith(end))
    ending = next(ends, "For" + classes[0].rpartition("For")[2])
    head = choose("the head of config.json's architectures", ending, _HEADS)
    head = exported_as.get(head, head)
    labels = config.get("num_labels", len(config.get("id2label", (0, 1))))
    one_number = config.get("problem_type") == "regression" or labels == 1
    if head == "classification" and one_number:
        head = "regression"
    return {"head": head, "labels": labels}


def write_head(
    config: Mapping[str, Any], *, class_prefix: str, exported_as: Mapping[str, str]
) -> dict[str, Any]:
    """The inverse of `read_head` for a model's settings.

    Args:
        class_prefix: what the names of the family's classes begin with: "Bert".
        exported_as: as for `read_head`.
    """
    head = exported_as.get(config["head"], config["head"])
    written: dict[str, Any] = {"architectures": [class_prefix + _CLASSES[head]]}
    if head == "regression":
        written |= {"problem_type": "regression", "id2label": {"0": "LABEL_0"}}
    if head in ("classification", "tagging"):
        written["id2label"] = {str(n): f"LABEL_{n}" for n in range(config["labels"])}
    if "id2label" in written:
        written["label2id"] = {name: int(n) for n, name in written["id2label"].items()}
    return written
