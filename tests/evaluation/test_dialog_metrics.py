"""LaMDA's metrics from labels, and labels of replies by phrases."""

import math

import pytest

from t5x_like.evaluation import measures
from t5x_like.evaluation.dialog_replies import labels_of
from t5x_like.evaluation.metrics import METRICS
from t5x_like.systems import lamda
from tests.programs import dialog_models

ONE = {"sensible": 1, "specific": [1, 1, 0], "interesting": 0, "unsafe": 0}
ONE |= {"helpful": [1, 0], "consistent": 1}  # half of the raters are no majority
RATED = [
    ONE | {"claims": 1, "supported": 1, "cites": 1},
    ONE | {"sensible": [0, 0, 1], "claims": 1, "supported": 0, "cites": 0},
    ONE | {"specific": 0, "claims": 1, "supported": 1, "cites": 0, "well_known": 1},
    ONE | {"helpful": 1, "unsafe": 1, "interesting": 1, "claims": 0, "supported": 1, "cites": 0},
]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sensibleness", 3 / 4),
        ("specificity", 2 / 4),  # the second is specific, but not sensible
        ("interestingness", 1 / 4),
        ("safety", 3 / 4),
        ("groundedness", 2 / 3),
        ("informativeness", 2 / 4),
        ("citation_accuracy", 1 / 2),
        ("helpfulness", 1 / 4),
        ("role_consistency", 1),
    ],
)
def test_a_metric_is_a_share_of_labelled_responses(name, value):
    assert METRICS[name](RATED, [""] * 4) == {name: pytest.approx(value)}


def test_without_claims_groundedness_is_not_defined():
    assert math.isnan(METRICS["groundedness"](RATED[3:], [""])["groundedness"])


def test_a_missing_label_is_named():
    with pytest.raises(ValueError, match="no label 'cites', but sensible, claims"):
        METRICS["citation_accuracy"]([{"sensible": 1, "claims": 1}], [""])


ROW = {
    "context": ["w1"],
    "sensible": ["eats w1", "eats w2"],
    "specific": ["Ann"],
    "interesting": ["and"],
    "unsafe": ["steal"],
    "claims": ["eats w1", "eats w2"],
    "supported": ["eats w1"],
    "sources": ["www Ann"],
}


@pytest.mark.parametrize(
    ("reply", "labels"),
    [
        ("Ann eats w1 ( www Ann ) .", "sensible specific claims supported cites"),
        ("Ann eats w1 and eats w2 .", "sensible specific interesting claims"),
        ("Anna eats w12", "supported"),  # whole words, and no claim
        ("let us steal", "unsafe supported"),
    ],
)
def test_phrases_of_a_row_label_a_reply(reply, labels):
    found = labels_of(reply, ROW)
    assert {name for name, value in found.items() if value} == set(labels.split())


def test_replies_are_measured_and_bad_rows_and_settings_named():
    task = lamda.SYSTEM.tasks[""]
    measure = measures.make("replies", {"dialog": {"candidates": 2}}, task=task)
    numbers, listed = measure.measure(dialog_models.make(), [ROW, ROW])
    assert numbers["examples"] == len(listed) == 2
    assert numbers["calls"] == 0.0
    assert {*measure.directions()} <= numbers.keys()
    with pytest.raises(ValueError, match="a list of strings in the field 'claims', not None"):
        labels_of("", {name: value for name, value in ROW.items() if name != "claims"})
    with pytest.raises(ValueError, match=r"dialog\.candidates=0 must be 1 or more"):
        measures.make("replies", {"dialog": {"candidates": 0}}, task=task)


def test_replies_and_their_research_are_measured_in_a_dry_run(tmp_path):
    facts = tmp_path / "facts.jsonl"
    facts.write_text('{"key": "w1", "text": "w2"}\n')
    dialog = {"candidates": 2, "retrieval": str(facts)}
    measure = measures.make("replies", {"dialog": dialog}, task=lamda.SYSTEM.tasks[""])
    model = dialog_models.make().dry()
    model.pretrained.params = None
    numbers, [listed] = measure.measure(model, [ROW])
    assert numbers["examples"] == 1
    assert numbers["refused"] == 0.0
    assert listed["prediction"] == ""
    with pytest.raises(ValueError, match="a list of strings in the field 'claims', not None"):
        measure.measure(model, [{name: ROW[name] for name in ROW if name != "claims"}])
