"""Averages as the papers make them, the table, JSON, and numbers that do not exist."""

import json
import math

import numpy as np
import pytest

from t5x_like.evaluation import reported_metrics
from t5x_like.evaluation.generated_text import Generation
from t5x_like.evaluation.held_out import HeldOutLoss
from t5x_like.evaluation.in_context import InContext
from t5x_like.experiment import reporting
from t5x_like.experiment.reporting import Estimate

# Raffel et al. 2020, table 16, the first row: the baseline's scores and its two averages.
GLUE = {
    "cola": {"matthews": 53.84},
    "sst2": {"accuracy": 92.68},
    "mrpc": {"f1": 92.07, "accuracy": 88.92},
    "stsb": {"pearson": 88.02, "spearman": 87.94},
    "qqp": {"f1": 88.67, "accuracy": 91.56},
    "mnli_matched": {"accuracy": 84.24},
    "mnli_mismatched": {"accuracy": 84.57},
    "qnli": {"accuracy": 90.48},
    "rte": {"accuracy": 76.28},
}
SUPER_GLUE = {
    "boolq": {"accuracy": 76.62},
    "cb": {"f1": 91.22, "accuracy": 91.96},
    "copa": {"accuracy": 66.20},
    "multirc": {"f1a": 66.13, "exact_match": 25.78},
    "record": {"f1": 69.05, "accuracy": 68.16},
    "rte": {"accuracy": 75.34},
    "wic": {"accuracy": 68.04},
    "wsc": {"accuracy": 78.56},
}


def parts(results):
    return {
        task: tuple(f"{task}/{name}" for name in own)
        for task, own in results.items()
        if not task.startswith("mnli")
    }


def test_the_averages_of_the_t5_paper():
    mnli = {"mnli": ("mnli_matched/accuracy", "mnli_mismatched/accuracy")}
    found = reported_metrics.averages(GLUE, {"glue": parts(GLUE) | mnli})
    assert found["glue"]["average"] == pytest.approx(83.28, abs=0.005)
    found = reported_metrics.averages(SUPER_GLUE, {"super_glue": parts(SUPER_GLUE)})
    assert found["super_glue"]["average"] == pytest.approx(71.36, abs=0.005)


MEASURES = {"qa": {"loss": HeldOutLoss(), "generation": Generation(metrics=("f1",))}}


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({}, "evaluate.averages.x is empty"),
        ({"a": "qa/generation/f2"}, "evaluate.averages.x.a='qa/generation/f2' is not a number"),
        ({"a": ("qa/generation/f1", "qa/loss")}, "with numbers where smaller is better"),
        ({"a": 3}, "evaluate.averages.x.a=3 must be the name of a number, or a tuple of names"),
        ({"a": "qb/generation/f1"}, "Did you mean 'qa/generation/f1'"),
    ],
)
def test_an_average_of_what_does_not_exist_is_refused_before_anything_runs(own, message):
    with pytest.raises(ValueError, match=message):
        reported_metrics.directions(MEASURES, {"x": own})


def test_numbers_know_which_of_two_models_is_better():
    found = reported_metrics.directions(MEASURES, {"all": {"qa": "qa/generation/f1"}})
    smaller = {
        "qa/loss": True,
        "qa/masked_lm/cross_entropy": True,
        "qa/accuracy": False,
        "qa/generation/f1": False,
        "all/average": False,
    }
    for name, expected in smaller.items():
        assert reported_metrics.direction(name, found, setting="x") is expected


def test_a_number_of_a_measure_is_none_of_the_loss():
    measures = {"qa": {"loss": HeldOutLoss(), "in_context": InContext(sweep=(0, 4))}}
    found = reported_metrics.directions(measures, {})
    assert not reported_metrics.direction("qa/in_context/4_shots/accuracy", found, setting="x")
    with pytest.raises(ValueError, match="Did you mean 'qa/in_context/4_shots/accuracy'"):
        reported_metrics.direction("qa/in_context/accuracy", found, setting="x")


def test_the_table_and_json_have_the_intervals():
    samples = np.linspace(0.0, 1.0, 1001)
    results = {"qa": {"loss": 2.0, "f1": Estimate(0.5, samples), "odd": math.inf}}
    assert list(reporting.table(results, step=7)) == [
        "qa at step 7:",
        f"  {'loss':28} 2.0000",
        f"  {'f1':28} 0.5000  [0.0250, 0.9750]",
        f"  {'odd':28} inf",
    ]
    found = json.loads(json.dumps(reported_metrics.to_json(results), allow_nan=False))
    assert found == {
        "tasks": {"qa": {"loss": 2.0, "f1": 0.5, "odd": None}},
        "intervals": {"qa": {"f1": pytest.approx([0.025, 0.975])}},
    }
