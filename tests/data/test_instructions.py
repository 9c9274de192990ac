"""Instructions about documentation: what the labeler's rules find, its noise, and the files."""

import json

import numpy as np
import pytest

from data.generators import instructions

PACKAGE = {
    "prompt": "Text: Return the rank. Question: which package is it from? Answer:",
    "kind": "package",
    "text": "Return the rank.",
    "answer": "numpy",
}
FIRST = {**PACKAGE, "kind": "first", "answer": "Return"}


@pytest.mark.parametrize(
    ("row", "response", "score", "found"),
    [
        (PACKAGE, "It is from numpy.", 4, {"answers", "right", "short"}),
        (PACKAGE, "Simply, it is from numpy.", 3, {"answers", "right", "short", "banned"}),
        (PACKAGE, "It is from scipy.", 2, {"answers", "short"}),
        (PACKAGE, "It is from docs.", 2, {"answers", "short", "made_up"}),
        (PACKAGE, "I do not know.", 1, {"short"}),
        (PACKAGE, "The first word is Return.", 1, {"short"}),
        (PACKAGE, "", 1, {"short"}),
        (PACKAGE, "It is from numpy. I have read the whole text twice.", 3, {"answers", "right"}),
        (PACKAGE, "obviously " * 9, -1, {"banned"}),
        (FIRST, "The first word is Return.", 4, {"answers", "right", "short"}),
        (FIRST, "The first word is the.", 2, {"answers", "short"}),
        (FIRST, "The first word is Give.", 2, {"answers", "short", "made_up"}),
        (FIRST, "It is from numpy.", 1, {"short"}),
    ],
)
def test_the_labeler_follows_its_rules(row, response, score, found):
    judged = instructions.judge(row, response)
    assert {rule for rule, value in judged.items() if value} == found
    assert instructions.score(row, response) == score


def test_a_labeler_prefers_the_better_response_as_often_as_it_says():
    responses = ["It is from scipy.", "I do not know.", "It is from scipy."]  # 2, 1 and 2
    ranks = [instructions.rank(PACKAGE, responses, seed=seed) for seed in range(4000)]
    assert all(first == last for first, _, last in ranks)
    share = np.mean([first < second for first, second, _ in ranks])
    # Four standard deviations of 4,000 draws.
    assert share == pytest.approx(1 / (1 + np.exp(-1)), abs=0.03)


def test_demonstrations_break_one_rule_at_most():
    rows = [{**row, "prompt": f"{n}"} for n in range(600) for row in (PACKAGE, FIRST)]
    written = [(row, instructions.demonstration(row, seed=0)) for row in rows]
    whole = sum(instructions.WEIGHTS[rule] for rule in ("answers", "right", "short"))
    scores = np.array([instructions.score(*one) for one in written])
    assert np.mean(scores == whole) == pytest.approx(2 / 3, abs=0.05)
    assert {row["kind"] for row, text in written if "I do not know" in text} == {"package", "first"}
    assert scores.min() == 1  # an answer that is none


def test_equal_responses_are_compared_once():
    samples = [
        {**PACKAGE, "responses": [" It is from numpy.", " It is from numpy."]},
        {**FIRST, "responses": [" The first word is Return.", " No.", " No."]},
    ]
    made, agreement = instructions.compare(samples, seed=1)
    assert [len(row["responses"]) for row in made] == [2]
    assert sorted(made[0]["ranks"]) == [1, 2]
    assert agreement in (0, 1)


def test_a_file_without_responses_is_one_line(tmp_path, capsys):
    file = tmp_path / "samples.jsonl"
    file.write_text(json.dumps(PACKAGE) + "\n")
    with pytest.raises(SystemExit) as ended:
        instructions.main([f"--rank={file}", f"--output={tmp_path / 'compared.jsonl'}"])
    assert ended.value.code == 2
    assert "has no instructions with sampled responses: KeyError" in capsys.readouterr().err


@pytest.mark.slow
def test_no_instruction_is_about_code_that_another_file_describes(tmp_path, capsys):
    instructions.main([f"--output={tmp_path}"])
    assert "test.jsonl (400)" in capsys.readouterr().out
    rows = {
        name: [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("demonstrations", "compared", "prompts", "test")
    }
    texts = [{row["text"] for row in own} for own in rows.values()]
    assert not texts[-1] & set.union(*texts[:-1])
    assert all(instructions.score(row, "") == 1 for own in rows.values() for row in own)
    assert {row["kind"] for row in rows["test"]} == set(instructions.QUESTIONS)
    rules = (tmp_path / "rules.txt").read_text().splitlines()
    judged = instructions.read(tmp_path / "judgements.jsonl")
    assert [one["rule"] for one in judged] == rules * len(rows["demonstrations"])
    assert {one["violates"] for one in judged} == {0, 1}
