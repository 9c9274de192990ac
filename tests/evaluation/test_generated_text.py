"""Metrics of generated texts: answers, labels and numbers written as text, groups."""

import pytest

from t5x_like.evaluation.generated_text import Generation, by_length


class Oracle:
    """A text model that generates a given text for each prompt, and samples given texts in turn."""

    def __init__(self, texts, *, sampled=None):
        self.texts, self.asked, self.sampled = texts, [], sampled
        self.samples = sampled is not None

    def greedy(self):
        return Oracle(self.texts)

    def tokens(self, text, *, end):
        return [*text, *([0] if end else [])]

    def generate(self, prompts):
        self.asked += prompts
        if self.samples:
            return [self.sampled[prompt].pop(0) for prompt in prompts]
        return [self.texts[prompt] for prompt in prompts]


def measure(texts, rows, **settings):
    return Generation(**settings).measure(Oracle(texts), rows)


def test_the_best_of_all_answers_counts():
    rows = [
        {"inputs": "Who?", "targets": "Jane Austen", "answers": ["Jane Austen", "Austen"]},
        {"inputs": "Where?", "targets": "Bath", "answers": ["Bath"]},
    ]
    numbers, listed = measure({"Who?": "austen.", "Where?": "in Bath"}, rows)
    assert numbers["exact_match"] == 0.5
    assert numbers["f1"] == pytest.approx((1 + 2 / 3) / 2)
    assert numbers["examples"] == 2
    assert numbers["f1"].interval[0] < numbers["f1"] < numbers["f1"].interval[1]
    assert listed[0] == {
        "inputs": "Who?",
        "prediction": "austen.",
        "targets": ["Jane Austen", "Austen"],
    }


def test_classes_and_numbers_are_read_from_text():
    rows = [
        {"inputs": n, "targets": t} for n, t in zip("abcd", ["yes", "yes", "no", "no"], strict=True)
    ]
    texts = {"a": " yes ", "b": "maybe", "c": "no", "d": "no"}
    settings = {"labels": ("no", "yes"), "positive": "yes"}
    numbers, _ = measure(texts, rows, metrics=("f1_binary", "f1_macro"), **settings)
    assert numbers["f1_binary"] == pytest.approx(2 / 3)
    assert numbers["f1_macro"] == pytest.approx((2 / 3 + 1) / 2)
    rows = [{"inputs": n, "targets": t} for n, t in zip("ab", ["1.0", "2.5"], strict=True)]
    numbers, _ = measure({"a": "1.5", "b": "two"}, rows, metrics=("mean_absolute_error",))
    assert numbers["mean_absolute_error"] == pytest.approx((0.5 + 3.5) / 2)


def test_groups_are_fields_of_the_rows():
    rows = [
        {"inputs": name, "targets": target, "question": question}
        for name, target, question in [("a", "1", "q"), ("b", "0", "q"), ("c", "1", "r")]
    ]
    settings = {"metrics": ("multirc",), "positive": "1", "group": "question"}
    numbers, _ = measure({"a": "1", "b": "0", "c": "0"}, rows, **settings)
    assert numbers["multirc_exact_match"] == 0.5


# Shortened from Wang et al. 2022, figure 1: two of three sampled chains agree, the greedy chain is
# wrong.
EGGS = "She has 16 eggs a day. She eats 3 and bakes with 4. The rest is sold for $2 each. How much?"
GREEDY = "She sells 16 - 3 - 4 = 9 for $2 * 7 = $14. The answer is $14."
CHAINS = [
    "She has 16 - 3 - 4 = 9 eggs left. So she makes $2 * 9 = $18 per day. The answer is $18.",
    "This means she sells the remainder for $2 * (16 - 4 - 3) = $26. The answer is $26.",
    "She has 13 left, then 13 - 4 = 9 eggs left. So she has 9 eggs * $2 = $18. The answer is $18.",
]


def test_self_consistency_takes_the_answer_of_most_sampled_chains():
    rows = [{"inputs": EGGS, "targets": "9 * 2 = 18\n#### 18"}, {"inputs": "2+2", "targets": "4"}]
    model = Oracle(
        {EGGS: GREEDY, "2+2": "4"}, sampled={EGGS: [*CHAINS], "2+2": ["5", "4", "so 5 ."]}
    )
    kind = Generation(metrics=("final_answer",), samples=3)
    numbers, listed = kind.measure(model, rows)
    assert numbers["majority_accuracy"] == 1 / 2
    assert numbers["sample_accuracy"] == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert numbers["greedy_accuracy"] == numbers["final_answer"] == 1 / 2
    assert numbers["consistency"] == pytest.approx(2 / 3)
    assert [row["majority"] for row in listed] == ["18", "5"]
    assert listed[0]["samples"] == CHAINS
    assert listed[0]["prediction"] == GREEDY
    assert kind.directions() == dict.fromkeys(
        ("final_answer", "majority_accuracy", "sample_accuracy", "greedy_accuracy", "consistency"),
        False,
    )


def test_a_model_that_does_not_sample_has_no_majority():
    with pytest.raises(ValueError, match=r"samples=3 needs a model that samples: decode.do_sample"):
        measure({"a": "b"}, [{"inputs": "a", "targets": "b"}], samples=3)


def test_texts_are_generated_by_length_and_come_back_in_order():
    model = Oracle({"aaa": "3", "a": "1", "aa": "2"})
    assert by_length(model, ["aaa", "a", "aa"]) == ["3", "1", "2"]
    assert model.asked == ["a", "aa", "aaa"]
    with pytest.raises(ValueError, match="no row to generate"):
        by_length(model, [])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metrics": ("f3",)}, "metric of generated texts='f3' does not exist. Did you mean 'f1'"),
        ({"metrics": ("entity_f1",)}, "'entity_f1' does not exist"),
        ({"metrics": ("roc_auc",)}, "'roc_auc' does not exist"),
        ({"metrics": "f1"}, "metrics='f1' must be a list"),
        ({"metrics": ()}, "must be a list of names"),
        ({"metrics": ("f1_binary",)}, "positive is not set: the metric f1_binary"),
        ({"metrics": ("record",)}, "group is not set: the metric record"),
        ({"samples": -1}, "samples=-1 must be 0 or more"),
        ({"labels": ("a", "b"), "positive": "c"}, "positive='c' does not exist"),
    ],
)
def test_settings_that_are_wrong_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Generation(**settings)


@pytest.mark.parametrize(
    ("metric", "settings", "message"),
    [
        ("pearson", {}, "the target 'yes' of a row is not a number"),
        ("matthews", {"labels": ("y", "no")}, "the target of a row='yes' does not exist"),
        ("record", {"group": "id"}, "a row has no field 'id'"),
    ],
)
def test_rows_that_do_not_fit_are_refused(metric, settings, message):
    with pytest.raises(ValueError, match=message):
        measure({"a": "b"}, [{"inputs": "a", "targets": "yes"}], metrics=(metric,), **settings)
