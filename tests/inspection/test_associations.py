"""Associations with groups: words of sampled texts, their shares and intervals, the command."""

import json
import re
import statistics

import numpy as np
import pytest

from t5x_like import inspect
from t5x_like.research.inspection import associations
from tests.programs import tiny_encoder, tiny_writer


def texts(random, *, shares, number):
    """Return texts that have each word with its share."""
    return [
        " ".join(word for word, share in shares.items() if random.random() < share) + " 7 x"
        for _ in range(number)
    ]


def test_a_word_that_one_group_has_more_often_is_found_and_its_share_is_in_the_interval():
    random = np.random.default_rng(0)
    common = {f"word{letter}": 0.2 for letter in "abcdefghijklmnopqrst"}
    made = {
        "women": texts(random, shares={"Kind": 0.5, **common}, number=400),
        "men": texts(random, shares={"kind": 0.2, **common}, number=400),
        "others": texts(random, shares={"kind": 0.2, **common}, number=400),
    }
    found = associations.compare(made)
    first = found[0]
    assert (first.group, first.word) == ("women", "kind")
    assert first.difference == pytest.approx(first.share - first.others)
    assert 0 < first.low < 0.3 < first.high
    # No group has more of the 20 other words: all 66 intervals but these contain 0.
    sure = {(one.group, one.word) for one in found if one.low > 0 or one.high < 0}
    assert ("women", "kind") in sure
    assert {word for _, word in sure} == {"kind"}
    assert {one.word for one in found} == {"kind", "x", *common}
    listed = associations.compare(made, listed=["kind", "wordb"])
    assert {one.word for one in listed} == {"kind", "wordb"}
    assert listed[0].high - listed[0].low < first.high - first.low  # fewer words, less correction


@pytest.mark.parametrize(
    ("counts", "alpha", "expected"),
    [
        ((7, 20, 3, 30), 0.05, (0.0072579, 0.4700149)),
        ((0, 50, 12, 40), 1e-3, (-0.533241, -0.047345)),
    ],
)
def test_an_interval_is_that_of_agresti_and_caffo(counts, alpha, expected):
    """As statsmodels 0.15: confint_proportions_2indep(method="agresti-caffo")."""
    z = -statistics.NormalDist().inv_cdf(alpha / 2)
    assert associations._interval(*counts, z=z) == pytest.approx(expected, abs=1e-6)


def test_words_are_whole_and_in_lower_case():
    found = associations.words("The well-known woman's caf\u00e9, THE 7th x_y.")
    assert found == {"the", "well-known", "woman's", "caf\u00e9", "th", "x", "y"}


@pytest.fixture
def files(tmp_path):
    tiny_writer.write(tmp_path / "gpt2", tiny_writer.settings("gpt2"))
    (tmp_path / "templates.txt").write_text("The {group} was\n{group} is\n")
    groups = {"women": ["woman", "girl"], "men": ["man"]}
    (tmp_path / "groups.json").write_text(json.dumps(groups))
    return tmp_path


def run(files, *others):
    arguments = [str(files / "templates.txt"), f"--groups={files / 'groups.json'}", *others]
    inspect.main(["associations", *arguments])


def test_the_command_samples_texts_of_every_prompt(files, capsys):
    output = files / "found.json"
    settings = ("--samples=6", "--new_tokens=8", "--batch=4", f"--json={output}")
    run(files, f"--from={files / 'gpt2'}", *settings)
    found = json.loads(output.read_text())
    assert {group: len(some) for group, some in found["texts"].items()} == {"women": 24, "men": 12}
    assert len(set(found["texts"]["women"])) > 12  # samples of equal prompts differ
    out = capsys.readouterr().out
    assert "women: 24 texts\n" in out
    assert "men: 12 texts\n" in out


def refused(files, capsys, *others):
    with pytest.raises(SystemExit) as end:
        run(files, *others)
    assert end.value.code == 2
    return capsys.readouterr().err


def test_mistakes_are_one_line(files, capsys):
    tiny_encoder.write(files / "bert", "bert", words=["the", "cat"])
    assert "which writes no text" in refused(files, capsys, f"--from={files / 'bert'}")
    model = f"--from={files / 'gpt2'}"
    (files / "groups.json").write_text('{"women": ["woman"]}')
    assert "must have two groups or more" in refused(files, capsys, model)
    (files / "groups.json").write_text("{")
    assert "groups.json' is not JSON" in refused(files, capsys, model)
    (files / "groups.json").write_text('{"women": ["woman"], "men": ["man"]}')
    (files / "templates.txt").write_text("The {group} was\nThe group is\n")
    message = refused(files, capsys, model)
    assert "templates.txt:2: 'The group is' must have {group} once" in message


@pytest.mark.parametrize(
    ("groups", "problem"),
    [
        ('{"women": ["woman", ""], "men": ["man"]}', "the group 'women' has the name \"\""),
        ('{"women": ["woman"], "men": [" "]}', "the group 'men' has the name \" \""),
        ('{"women": ["woman"], "men": [7]}', "the group 'men' has the name 7"),
        ('{"women": ["woman"], "men": ["woman"]}', "has the name 'woman' 2 times"),
        ('{"a": ["woman"], "a": ["girl"], "men": ["man"]}', "has the group 'a' 2 times"),
        ('{"women": ["woman"], "men": {"man": ["boy"]}}', "each with a list of names"),
        ('["woman", "man"]', "must have two groups or more"),
    ],
)
def test_groups_without_names_or_with_a_name_twice_are_refused(tmp_path, groups, problem):
    (tmp_path / "groups.json").write_text(groups)
    with pytest.raises(ValueError, match=re.escape(problem)):
        associations.read_groups(str(tmp_path / "groups.json"))


def test_groups_are_read_after_a_byte_order_mark(tmp_path):
    (tmp_path / "groups.json").write_bytes(b'\xef\xbb\xbf{"a": ["b"], "c": ["d", "e"]}')
    read = associations.read_groups(str(tmp_path / "groups.json"))
    assert read == {"a": ["b"], "c": ["d", "e"]}


def test_a_listed_word_that_texts_cannot_have_is_refused(files, capsys):
    (files / "words.txt").write_text("kind\nvery kind\n")
    message = refused(files, capsys, f"--from={files / 'gpt2'}", f"--words={files / 'words.txt'}")
    assert "words.txt:2: 'very kind' is not a single word" in message


def test_a_table_without_words_has_the_reason(files, capsys):
    (files / "words.txt").write_text("zebra\n")
    words = f"--words={files / 'words.txt'}"
    run(files, f"--from={files / 'gpt2'}", "--samples=2", "--new_tokens=2", words)
    assert capsys.readouterr().out.count("no word to compare is in 5 texts or more") == 2
