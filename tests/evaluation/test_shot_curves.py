"""Curves over the number of examples in a prompt: names, table and figure."""

import numpy as np
import pytest

from t5x_like.evaluation import shot_curves
from t5x_like.experiment.reporting import Estimate


def estimate(value):
    """Its samples are equally spaced: 95% of them are within 0.095."""
    return Estimate(value, np.linspace(value - 0.1, value + 0.1, 41))


# Brown et al. 2020, table 3.9, GPT-3 175B: two-digit addition and multiplication with 0 and 1
# examples; their base rates are invented.
RESULTS = {
    "addition": {
        "in_context/0_shots/accuracy": estimate(0.769),
        "in_context/0_shots/mean_shots": 0.0,
        "in_context/1_shots/accuracy": estimate(0.996),
        "in_context/1_shots/mean_shots": 1.0,
        "in_context/constant_accuracy": 0.02,
        "in_context/examples": 2000,
    },
    "multiplication": {
        "in_context/0_shots/accuracy": estimate(0.198),
        "in_context/1_shots/accuracy": estimate(0.274),
        "in_context/chance_accuracy": 0.25,
        "generation/f1": 0.5,
    },
}


def test_a_table_has_a_row_for_each_number_of_examples_and_base_rates():
    curves = shot_curves.of_results(RESULTS)
    assert list(shot_curves.table(curves)) == [
        "addition, in_context by the number of examples in a prompt:",
        "     shots  accuracy                 mean_shots",
        "         0  0.7690 [0.6740, 0.8640]  0.0000",
        "         1  0.9960 [0.9010, 1.0910]  1.0000",
        "  constant  0.0200",
        "multiplication, in_context by the number of examples in a prompt:",
        "   shots  accuracy",
        "       0  0.1980 [0.1030, 0.2930]",
        "       1  0.2740 [0.1790, 0.3690]",
        "  chance  0.2500",
    ]
    assert shot_curves.others(RESULTS) == {
        "addition": {"in_context/constant_accuracy": 0.02, "in_context/examples": 2000},
        "multiplication": {"in_context/chance_accuracy": 0.25, "generation/f1": 0.5},
    }


def test_the_base_rate_of_a_number_is_that_of_the_beginning_of_its_name():
    curve = shot_curves.ShotCurve(base={"constant_accuracy": 0.5, "constant_final_answer": 0.1})
    assert curve.base_of("accuracy_per_token", kind="constant") == 0.5
    assert curve.base_of("final_answer", kind="constant") == 0.1
    assert curve.base_of("f1", kind="constant") is None
    assert curve.base_of("accuracy", kind="chance") is None


def test_a_figure_has_a_line_for_each_task_and_its_base_rate():
    [panel] = shot_curves.plot(shot_curves.of_results(RESULTS)).axes
    lines = [(line.get_linestyle(), list(line.get_ydata())) for line in panel.lines]
    assert lines == [
        ("-", [0.769, 0.996]),
        ("--", [0.02, 0.02]),
        ("-", [0.198, 0.274]),
        (":", [0.25, 0.25]),
    ]
    assert panel.get_title() == "accuracy"
    assert [label.get_text() for label in panel.get_xticklabels()] == ["0", "1"]
    assert [text.get_text() for text in panel.get_legend().get_texts()] == [
        "addition, in_context",
        "multiplication, in_context",
    ]
    assert shot_curves.draw(shot_curves.of_results(RESULTS)).startswith(b"\x89PNG")


def test_an_interval_of_the_figure_is_the_interval_of_the_number():
    value = estimate(0.5)
    [panel] = shot_curves.plot({("a", "b"): shot_curves.ShotCurve({0: {"f1": value}})}).axes
    [area] = panel.collections
    heights = area.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx(value.interval)
