"""GPT-3's generated tasks: the released questions are among those of arithmetic and scrambles."""

import collections
import json
import operator
import re

import numpy as np
import pytest

from configs import pretrained
from data import analogies, gpt3_arithmetic, word_scrambles
from t5x_like import evaluate
from t5x_like.config import parse
from t5x_like.evaluation.in_context import InContext
from tests.programs import command_flags, tiny_writer

# Lines of github.com/openai/gpt-3, data/: the choices, the context and the completion.
ARITHMETIC = [
    ("two_digit_addition", [98, 45], "What is 98 plus 45?", " 143"),
    ("two_digit_subtraction", [33, 88], "What is 33 minus 88?", " -55"),
    ("three_digit_addition", [556, 497], "What is 556 plus 497?", " 1053"),
    ("three_digit_subtraction", [87, 251], "What is 87 minus 251?", " -164"),
    ("four_digit_addition", [9923, 617], "What is 9923 plus 617?", " 10540"),
    ("four_digit_subtraction", [8503, 8820], "What is 8503 minus 8820?", " -317"),
    ("five_digit_addition", [65360, 16204], "What is 65360 plus 16204?", " 81564"),
    ("five_digit_subtraction", [4344, 48888], "What is 4344 minus 48888?", " -44544"),
    ("two_digit_multiplication", [95, 45], "What is 95 times 45?", " 4275"),
    ("single_digit_three_ops", [9, 8, 2, "+", "*"], "What is (9 + 8) * 2?", " 34"),
    ("single_digit_three_ops", [1, 5, 6, "-", "-"], "What is (1 - 5) - 6?", " -10"),
]
SCRAMBLES = {
    "cycle_letters_in_word": [("asinoc", "casino"), ("rslaye", "layers")],
    "mid_word_1_anagrams": [("skicts", "sticks"), ("moirrr", "mirror")],
    "reversed_words": [("taefed", "defeat"), ("denrecnoc", "concerned")],
}


class Scripted:
    """Choices that are known beforehand."""

    def __init__(self, choices):
        self.choices = list(choices)

    def one(self, options):
        chosen = self.choices.pop(0)
        assert chosen in options
        return chosen

    def given(self):
        assert not self.choices


def measure(kind):
    settings = dict(pretrained.get_config(kind).evaluate.measures[kind])
    assert settings.pop("kind") == "in_context"
    return InContext(**settings)


@pytest.mark.parametrize(("task", "choices", "asked", "completion"), ARITHMETIC)
def test_the_released_questions_can_be_generated(task, choices, asked, completion):
    row = gpt3_arithmetic.TASKS[task](Scripted(choices))
    assert row == {"inputs": asked, "targets": completion.strip()}
    prompt = measure("arithmetic").prompt(row, [row])
    assert prompt == f"Q: {asked}\n\nA:{completion}\n\nQ: {asked}\n\nA: "


def test_numbers_are_uniform_and_answers_right():
    signs = {"plus": operator.add, "minus": operator.sub, "times": operator.mul}
    made = gpt3_arithmetic.corpora(documents=10, validation=3000)
    assert list(made) == list(pretrained.get_config("arithmetic").evaluate.tasks)
    for name, corpus in made.items():
        rows = list(corpus.splits["validation"].all_rows())
        if name == "single_digit_three_ops":
            pattern = re.compile(r"What is \((\d) ([+*-]) (\d)\) ([+*-]) (\d)\?")
            parts = [pattern.fullmatch(row["inputs"]).groups() for row in rows]
            assert len({(inner, outer) for _, inner, _, outer, _ in parts}) == 9
            for row in rows:
                assert int(row["targets"]) == eval(row["inputs"][8:-1])
            continue
        most = 10 ** {"two": 2, "three": 3, "four": 4, "five": 5}[name.split("_")[0]]
        numbers = []
        for row in rows:
            first, word, second = re.fullmatch(
                r"What is (\d+) (\w+) (\d+)\?", row["inputs"]
            ).groups()
            assert int(row["targets"]) == signs[word](int(first), int(second))
            numbers += [int(first), int(second)]
        assert max(numbers) < most
        # The mean of 6,000 numbers: five standard deviations.
        assert abs(np.mean(numbers) / most - 0.5) < 5 * 12**-0.5 / 6000**0.5


@pytest.mark.parametrize("task", SCRAMBLES)
def test_the_released_scrambles_can_be_generated(task):
    generator = np.random.default_rng(0)
    for scrambled, word in SCRAMBLES[task]:
        found = {word_scrambles.TASKS[task](word, generator) for _ in range(600)}
        assert scrambled in found
        assert word not in found
        assert all(sorted(one) == sorted(word) for one in found)


def test_insertions_and_anagrams_keep_what_they_should():
    generator = np.random.default_rng(0)
    counts = collections.Counter()
    for word in ("reciprocal", "dominant", "scanners") * 100:
        found = word_scrambles.insert(word, generator)
        assert found[::2] == word
        counts.update(found[1::2])
    assert set(counts) == set(" .!/")  # as in "r e!c.i p r o.c a/l"
    assert max(counts.values()) < 1.2 * min(counts.values())
    found = {word_scrambles.anagram("primitive", generator, kept=2) for _ in range(3000)}
    assert "prmitiive" in found
    assert all(one[:2] + one[-2:] == "prve" for one in found)
    assert word_scrambles.anagram("letter", generator, kept=2) == "letter"


def test_the_most_frequent_words_of_a_list_are_split_by_the_word(tmp_path):
    words = [f"{first}{second}word" for first in "abcdefghij" for second in "klmnopqrst"]
    lines = ["the\t23135851162", "it's 5", "incomprehensibly 4", *(f"{one}\t1" for one in words)]
    (tmp_path / "words.txt").write_text("\n".join([*lines, words[0].upper(), ""]))
    made = word_scrambles.corpora(words=str(tmp_path / "words.txt"), most=90)
    assert list(made) == list(pretrained.get_config("scrambles").evaluate.tasks)
    for corpus in made.values():
        rows = {name: [*split.all_rows()] for name, split in corpus.splits.items()}
        found = {name: [row["targets"] for row in own] for name, own in rows.items()}
        assert sorted(found["train"] + found["validation"]) == sorted(words[:90])
        assert min(map(len, found.values())) > 20
        again = word_scrambles.corpora(words=str(tmp_path / "words.txt"), most=90)
    assert [*again["reversed_words"].splits["train"].all_rows()] == rows["train"]
    prompt = measure("scrambles").prompt({"inputs": "asinoc"}, [rows["train"][0]])
    own = rows["train"][0]
    assert prompt == (
        "Please unscramble the letters into a word, and write that word:\n"
        f"{own['inputs']} = {own['targets']}\nasinoc = "
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"words": ""}, "data.settings.words is not set: name a file"),
        ({"words": "nowhere.txt"}, "data.settings.words='nowhere.txt' is not a file"),
        ({"shortest": 3}, "data.settings.shortest=3, longest=14: 4 or more letters"),
        ({"shortest": 9, "longest": 8}, "data.settings.shortest=9, longest=8"),
        ({"most": 0}, "data.settings.most=0 must be 1 or more"),
        ({"shortest": 14}, "has no word of 14 to 14 letters"),
    ],
)
def test_bad_settings_are_one_line(settings, message, tmp_path):
    (tmp_path / "words.txt").write_text("casino\n")
    with pytest.raises(ValueError, match=message):
        word_scrambles.corpora(**{"words": str(tmp_path / "words.txt")} | settings)


def test_questions_without_a_number_are_refused():
    with pytest.raises(ValueError, match=r"data.settings.validation=0 must be 1 or more"):
        gpt3_arithmetic.corpora(validation=0)


@pytest.mark.parametrize("kind", ["arithmetic", "scrambles"])
def test_evaluate_asks_the_questions_of_all_tasks(kind, tmp_path, monkeypatch):
    folder = tiny_writer.write(
        tmp_path / "run", tiny_writer.settings("gpt2", layers=1, d_model=8, positions=160)
    )
    settings = pretrained.get_config(kind)
    settings.initialize = str(folder)
    settings.workdir = str(folder)
    settings.data.lengths = {"inputs": 0, "targets": 160}
    settings.evaluate.batches = 1
    settings.evaluate.measures[kind].shots = 2
    settings.decode = {"max_new_tokens": 2}
    if kind == "scrambles":
        words = "apple banana cherry lemon melon orange papaya peach plums quince raisin tomato"
        (tmp_path / "words.txt").write_text(words.replace(" ", "\n"))
        settings.data.settings.words = str(tmp_path / "words.txt")
    command_flags.give(monkeypatch, output=str(tmp_path / "numbers.json"))
    evaluate.main(parse(settings))
    found = json.loads((tmp_path / "numbers.json").read_text())["tasks"]
    assert list(found) == list(settings.evaluate.tasks)
    for numbers in found.values():
        assert numbers[f"{kind}/mean_shots"] == 2
        assert 0 <= numbers[f"{kind}/accuracy"] < 0.5


def test_an_analogy_has_one_right_pair_of_five():
    relations = {pair: name for name in analogies.RELATIONS for pair in analogies._pairs(name)}
    assert len(relations) == sum(pairs.count(",") + 1 for pairs in analogies.RELATIONS.values())
    rows = list(analogies.corpora(validation=2000)["analogies"].splits["validation"].all_rows())
    places = collections.Counter()
    for row in rows:
        asked = row["inputs"].removesuffix(" as")
        of_choices = [relations[choice] for choice in row["choices"]]
        assert len(set(of_choices)) == 5
        place = of_choices.index(relations[asked])
        assert row["choices"][place] == row["targets"] != asked
        places[place] += 1
    # 400 each: five standard deviations of a binomial are 90.
    assert all(310 < number < 490 for number in places.values())
    # The form of figure G.12 of Brown et al. 2020.
    row = {"inputs": "lull is to trust as", "targets": "cajole is to compliance", "choices": []}
    assert measure("analogies").prompt(row, []) == "lull is to trust as "
    assert (
        measure("analogies").prompt(row, [row])
        == "lull is to trust as cajole is to compliance\nlull is to trust as "
    )
