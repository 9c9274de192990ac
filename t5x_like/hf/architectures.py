"""Convert between the class that a folder's config.json names and the head of a model."""

from collections.abc import Mapping
from typing import Any

from t5x_like.hf.config_settings import Allowed
from t5x_like.hf.head_labels import REGRESSION, read_labels
from t5x_like.names import choose

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
        exported_as: as for `read_head`.

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
