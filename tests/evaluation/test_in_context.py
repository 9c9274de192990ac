"""Prompts with examples: sampling and layout, how answers are chosen, what does not fit."""

import numpy as np
import pytest

from t5x_like.evaluation.in_context import InContext

POOL = [{"inputs": f"{n}+{n}", "targets": str(2 * n)} for n in range(20)]
ROWS = [
    {"inputs": "3+3", "targets": "6", "choices": ["6", "7"]},
    {"inputs": "{targets}", "targets": "no", "choices": ["yes", "no"]},
]
TEMPLATE = "Q: {inputs}\nA: {targets}"


def flat(before, character):
    return -1.0


def test_a_prompt_is_the_description_the_examples_and_the_question(characters):
    kind = InContext(template=TEMPLATE, separator="\n##\n", description="Add.")
    assert kind.prompt(ROWS[0], POOL[:2]) == (
        "Add.\n##\nQ: 0+0\nA: 0\n##\nQ: 1+1\nA: 2\n##\nQ: 3+3\nA: "
    )
    # Fields in the text of a row are not filled in.
    assert InContext(template=TEMPLATE).prompt(ROWS[1], []) == "Q: {targets}\nA: "


@pytest.mark.parametrize("shots", [0, 1, 5])
def test_each_question_has_examples_of_its_own_and_never_itself(characters, shots):
    rows = [{**ROWS[0], "inputs": f"{n}+{n}", "targets": "6"} for n in range(10)]
    kind = InContext(shots=shots, template=TEMPLATE)
    found, predictions = kind.measure(characters(flat), rows, POOL)
    assert found["mean_shots"] == shots
    prompts = [one["prompt"].split("\n\n") for one in predictions]
    for (*shown, question), row in zip(prompts, rows, strict=True):
        assert question == f"Q: {row['inputs']}\nA: "
        assert len(set(shown)) == shots
        texts = {f"Q: {one['inputs']}\nA: {one['targets']}" for one in POOL}
        assert set(shown) <= texts - {f"Q: {row['inputs']}\nA: {int(row['inputs'][0]) * 2}"}
    if shots:
        assert len({tuple(shown) for *shown, _ in prompts}) > len(rows) // 2
    again, same = kind.measure(characters(flat), rows, POOL)
    assert (again, same) == (found, predictions)
    if shots:
        _, other = InContext(shots=shots, template=TEMPLATE, seed=1).measure(
            characters(flat), rows, POOL
        )
        assert other != predictions


def test_every_example_is_sampled_equally_often(characters):
    rows = [{**ROWS[0], "inputs": str(n)} for n in range(400)]
    _, predictions = InContext(shots=5).measure(characters(flat), rows, POOL)
    examples = " ".join(one["prompt"] for one in predictions).split()
    counts = [examples.count(one["inputs"]) for one in POOL]
    assert sum(counts) == 2000
    # Of 400 draws of a quarter each: 100, with a standard deviation of 9.
    assert min(counts) > 60
    assert max(counts) < 140


def test_three_ways_to_choose_differ_as_they_should(characters):
    """One answer is long, one is always likely, and one is what the question makes likely."""
    log_p = {"l": -1.0, "f": -1.2, "r": -1.6}  # each character of an answer of this letter

    def think(before, character):
        if character == "f" and before.startswith("Answer:"):
            return -0.1
        if character == "r" and before.startswith("Answer:"):
            return -9.0
        return log_p.get(character, 0.0)

    row = {"inputs": "q", "choices": ["llllll", "ff", "rr"], "targets": "rr"}
    found, [predictions] = InContext(template=TEMPLATE).measure(characters(think), [row], [])
    assert predictions["predictions"] == {
        "log_prob": "ff",
        "per_token": "llllll",
        "calibrated": "rr",
    }
    assert predictions["calibrated"] == pytest.approx([-6.0 + 6.0, -2.4 + 0.2, -3.2 + 18.0])
    assert found == {
        "accuracy": 0.0,
        "accuracy_per_token": 0.0,
        "accuracy_calibrated": 1.0,
        "constant_accuracy": 1.0,  # of one row
        "chance_accuracy": pytest.approx(1 / 3),
        "mean_shots": 0.0,
        "examples": 1,
    }


def test_record_is_the_likeliest_entity_and_each_query_counts_once(characters):
    choices = ["the Rock", "Rome", "Rock", "Oslo Fjord", "Oslo"]

    def queries(group, *answers):
        row = {"inputs": f"query {group}", "choices": choices, "answers": answers, "group": group}
        return [{**row, "targets": one} for one in answers]

    def think(before, character):
        if not before.endswith("\n"):
            return 0.0
        return 0.0 if character == {"1": "t", "2": "O"}[before[-2]] else -1.0

    rows = [*queries("1", "Rock", "Rome"), *queries("2", "Oslo")]
    kind = InContext(template="{inputs}\n{targets}", metrics=("record",), group="group")
    found, predictions = kind.measure(characters(think), rows, [])
    picked = [one["predictions"]["log_prob"] for one in predictions]
    assert picked == ["the Rock", "Oslo Fjord"]
    # As ReCoRD's script compares texts: without the article the first is an answer.
    assert found["record_exact_match"] == 0.5
    assert found["record_f1"] == pytest.approx((1 + 2 / 3) / 2)
    assert (found["accuracy"], found["examples"]) == (0.0, 2)
    assert kind.directions().keys() >= {"accuracy", "record_exact_match", "record_f1"}


def test_generated_answers_end_where_they_should(characters):
    kind = InContext(template=TEMPLATE, by="generation")
    model = characters(flat, written=" The 6.\nQ: 4+4")
    found, predictions = kind.measure(model, ROWS[:1], [])
    assert predictions[0]["prediction"] == "The 6."
    assert (found["exact_match"], found["f1"]) == (1.0, 1.0)
    assert model.requests == ["Q: 3+3\nA: "]
    kind = InContext(by="generation", stop="", sentences=2, metrics=("rouge_1",))
    model = characters(flat, written="One is.\nTwo is! Three is? No")
    found, predictions = kind.measure(model, [{"inputs": "x", "targets": "one two"}], [])
    assert predictions[0]["prediction"] == "One is.\nTwo is!"
    assert found["rouge_1"] == pytest.approx(2 * 2 / 6)


def test_bleu_is_of_all_rows_together(characters):
    rows = [{"inputs": str(n), "targets": "one two three four five"} for n in range(2)]
    kind = InContext(by="generation", metrics=("bleu",))
    right = characters(flat, written="one two three four five\n")
    assert kind.measure(right, rows, [])[0]["bleu"] == pytest.approx(100)
    # By hand: of each text 4/4, 3/3, 2/2 and 1/1 n-grams, and the brevity of 4 for 5 words.
    short = characters(flat, written="one two three four")
    found = kind.measure(short, rows, [])[0]["bleu"]
    assert found == pytest.approx(100 * np.exp(1 - 5 / 4))


def test_a_prompt_that_is_too_long_is_an_error_or_has_fewer_examples(characters):
    rows = [{"inputs": "q" * 10, "targets": "a", "choices": ["a", "bb"]}]
    pool = [{"inputs": f"{n:010}", "targets": "a"} for n in range(9)]
    # Ten and a newline, then of each example 14: 10, a newline, an answer, two newlines.
    for length, shots in [(11 + 2 + 3 * 14, 3), (11 + 2 + 3 * 14 - 1, 2), (13, 0)]:
        model = characters(flat, length=length)
        found, _ = InContext(shots=3, too_long="fewer_shots").measure(model, rows, pool)
        assert found["mean_shots"] == shots
    with pytest.raises(ValueError, match=r"in_context.shots=3.*row 0.*42 tokens more than the 13"):
        InContext(shots=3).measure(model, rows, pool)
    with pytest.raises(ValueError, match=r"in_context.shots=0.*1 tokens more than .* reads$"):
        InContext(shots=3, too_long="fewer_shots").measure(characters(flat, length=12), rows, pool)
    with pytest.raises(ValueError, match=r"5 tokens more than the 11"):
        InContext(by="generation").measure(characters(flat, length=11), rows, [])


def test_a_sweep_has_the_numbers_of_each_number_of_examples_and_base_rates_once(characters):
    def think(before, character):  # it is right about 3+3 from two examples on
        return -1.0 if character == "6" and before.count("A: ") > 2 else -2.0

    rows = [{**ROWS[0], "choices": ["7", "6"]}, ROWS[1] | {"targets": "yes"}]
    kind = InContext(sweep=(0, 2, 4), template=TEMPLATE)
    found, predicted = kind.measure(characters(think), rows, POOL)
    assert [found[f"{shots}_shots/accuracy_per_token"] for shots in (0, 2, 4)] == [0.5, 1.0, 1.0]
    assert {name for name in found if "shots/" not in name} == {
        "constant_accuracy",
        "chance_accuracy",
        "examples",
    }
    assert [one["shots"] for one in predicted] == [0, 0, 2, 2, 4, 4]
    for shots in (0, 2, 4):
        alone, listed = InContext(shots=shots, template=TEMPLATE).measure(
            characters(think), rows, POOL
        )
        named = {name.removeprefix(f"{shots}_shots/"): value for name, value in found.items()}
        assert alone.items() <= named.items()
        assert [{"shots": shots, **one} for one in listed] == [
            one for one in predicted if one["shots"] == shots
        ]
    assert kind.directions().keys() < found.keys()
    assert kind.most_shots == 4


def test_a_sweep_that_cannot_end_ends_before_the_first_prompt(characters):
    model = characters(flat)
    with pytest.raises(ValueError, match=r"in_context.shots=3, and the training split has 2"):
        InContext(sweep=(0, 1, 3)).measure(model, ROWS[:1], POOL[:2])
    assert model.requests == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"by": "likelyhood"},
            "in_context.by='likelyhood' does not exist. Did you mean 'likelihood'",
        ),
        ({"too_long": "fewer"}, "Did you mean 'fewer_shots'"),
        ({"metrics": ("rouge",)}, "in_context.metrics='rouge'"),
        ({"metrics": ("record",)}, "group is not set: the metric record"),
        ({"shots": -1}, "in_context.shots=-1"),
        ({"sweep": (0, -1)}, "in_context.sweep=.* must be different numbers, 0 or more"),
        ({"sweep": (2, 2)}, "in_context.sweep=.* must be different numbers, 0 or more"),
        ({"samples": -1}, "samples=-1 must be 0 or more"),
        ({"samples": 5}, "in_context.samples=5 needs in_context.by='generation'"),
        ({"template": "{inputs}"}, "must end in {targets}"),
        ({"template": "{inputs}{targets}."}, "must end in {targets}"),
    ],
)
def test_settings_that_are_wrong_are_refused(settings, message):
    with pytest.raises(ValueError, match=message.replace("{", r"\{")):
        InContext(**settings)


def test_fields_and_examples_that_are_missing_are_named(characters):
    with pytest.raises(ValueError, match="no field 'question'"):
        InContext(template="{question}{targets}").measure(characters(flat), ROWS, [])
    pool = [*POOL[:2], {"inputs": "3+3", "targets": "6"}]
    with pytest.raises(ValueError, match=r"in_context.shots=3, and the training split has 2"):
        InContext(shots=3).measure(characters(flat), ROWS[:1], pool)
