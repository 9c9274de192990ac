"""Augmented text: which words are replaced, by which, how often; word vectors; what is refused."""

import json

import numpy as np
import pytest

from data.filters import json_lines
from data.generators import augment, word_vectors
from t5x_like.pretrained import from_pretrained
from t5x_like.vocabularies import load
from tests.programs import in_process, tiny_encoder

WORDS = ["red", "green", "blue", "house", "tree", "play", "##ing", "jump", "##ed", "the", "."]
TEXT = "The Red house . jumped the green tree ! 3 playing"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A BERT that nobody trained, with a vocabulary of words and their endings."""
    return tiny_encoder.write(tmp_path_factory.mktemp("made") / "bert", "bert", words=WORDS)


@pytest.fixture(scope="module")
def masked(folder):
    return augment.read_masked_words(str(folder), "")


@pytest.fixture(scope="module")
def vectors():
    """Vectors of words of which two always occur among the same words."""
    random = np.random.default_rng(0)
    colors, verbs = ["red", "green"], ["playing", "jumped"]
    near = {"red": "bright", "green": "bright", "playing": "slow", "jumped": "slow"}
    texts = []
    for _ in range(200):
        word = random.choice(colors + verbs)
        texts.append(" ".join([*random.permutation([word, near[word]]), random.choice(["a", "b"])]))
    return word_vectors.train(texts, dimensions=4)


def test_words_of_letters_are_replaced_by_whole_words(masked):
    words = masked.words(TEXT)
    assert [(word.text, word.token) for word in words] == [
        *(("Red", 1), ("house", 2), ("jumped", None)),
        *(("green", 7), ("tree", 8), ("playing", None)),
    ]
    assert all(TEXT[word.start : word.end] == word.text for word in words)
    # In a place that the model has no position for there are none.
    found = masked.likeliest([(TEXT, 1), ("red " * 70, 66), (TEXT, 2)], most=15)
    assert found[1] == []
    whole = {word for word in WORDS if word.isalpha()}
    assert set(found[0]) == set(found[2]) == whole  # as many as there are, in their own order


def test_the_likeliest_words_are_those_of_the_model(masked, folder):
    vocabulary = load(str(folder / "vocab.txt"))
    ids = vocabulary.encode("red house")
    row = np.array([[vocabulary.cls_id, ids[0], vocabulary.mask_id, vocabulary.sep_id]])
    logits = np.asarray(from_pretrained(folder, head="masked_lm")(row).logits)[0, 2]
    whole = [n for n in range(vocabulary.vocab_size) if vocabulary.pieces[n].isalpha()]
    best = sorted(whole, key=lambda n: -logits[n])
    [found] = masked.likeliest([("red house", 1)], most=15)
    assert found == [vocabulary.pieces[n] for n in best]


def test_words_among_the_same_words_are_near(vectors):
    assert vectors.nearest("Red", most=1) == ["green"]
    assert vectors.nearest("playing", most=1) == ["jumped"]
    assert "red" not in vectors.nearest("red", most=99)
    assert vectors.nearest("unknown", most=3) == []
    apart = word_vectors.train(["a", "b", "c"] * 3, dimensions=2)
    assert apart.nearest("a", most=3) == []  # no word is ever near another one


def test_information_by_hand():
    """Of "a b" twice and "a c": P(a, b) = 2 / 6, P(a) = 3 / 6, P(b) = 2 / 6, and the ratio is 2."""
    counts = word_vectors._neighbours([["a", "b"]] * 2 + [["a", "c"]], ["a", "b", "c"])
    np.testing.assert_array_equal(counts.toarray(), [[0, 2, 1], [2, 0, 0], [1, 0, 0]])
    found = word_vectors._information(counts).toarray()
    np.testing.assert_allclose(found, np.log(2) * np.array([[0, 1, 1], [1, 0, 0], [1, 0, 0]]))


def test_copies_replace_words_with_the_probability_and_keep_the_rest(masked, vectors):
    settings = augment.Settings(copies=600, probability=0.4)
    [copies] = augment.augmented([(TEXT,)], masked, vectors, settings)
    assert copies[0] == (TEXT,)
    assert len(set(copies)) == len(copies)
    split = [text.split() for (text,) in copies]
    unchanged = {0: "The", 3: ".", 5: "the", 8: "!", 9: "3"}
    assert all(words[n] == word for words in split for n, word in unchanged.items())
    assert {words[10] for words in split} == {"playing", *vectors.nearest("playing", most=15)}
    assert all(words[1][0].isupper() for words in split)
    one = augment.Settings(copies=1, probability=0.4, seed=1)
    rows = [(f"jumped {n} jumped {n}",) for n in range(500)]
    changed = [
        text.split()[place] != "jumped"
        for found in augment.augmented(rows, masked, vectors, one)
        for (text,) in found[1:] or found
        for place in (0, 2)
    ]
    assert abs(np.mean(changed) - 0.4) < 0.05  # three standard deviations of 1,000 words


def test_a_row_s_copies_depend_on_the_row_and_the_seed_alone(masked, vectors):
    rows = [("red house", "green tree"), ("blue tree", "the house")]
    settings = augment.Settings(copies=5)
    both = list(augment.augmented(rows, masked, vectors, settings))
    assert both[1:] == list(augment.augmented(rows[1:], masked, vectors, settings))
    other = augment.Settings(copies=5, seed=1)
    assert both != list(augment.augmented(rows, masked, vectors, other))
    assert {len(copy) for copy in both[0]} == {2}
    assert any(a != rows[0][0] and b != rows[0][1] for a, b in both[0])


def test_the_command_writes_rows_that_are_read_as_labelled_text(folder, tmp_path):
    rows = [{"text_a": f"red house {n}", "text_b": "jumped", "label": n % 2} for n in range(6)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [f"--input={path}", f"--output={tmp_path / 'out'}", f"--model={folder}"]
    arguments += ["--text=text_a", "--second_text=text_b", "--copies=4"]
    done = in_process.run("data.generators.augment", *arguments)
    assert (done.status, done.err) == (0, "")
    found = [one.row for one in json_lines.rows([str(tmp_path / "out" / "rows.jsonl")])]
    assert done.out == f"wrote {len(found)} rows of 6\n"
    assert 6 < len(found) <= 30
    assert [row for row in found if row in rows] == rows
    assert all(int(row["text_a"].split()[2]) % 2 == row["label"] for row in found)
    again = in_process.run("data.generators.augment", *arguments)
    assert again.status == 2
    assert "exists already" in again.err


def test_too_little_text_for_vectors_is_refused():
    with pytest.raises(ValueError, match=r"only 2 words occur 3 times or more: .* --corpus"):
        word_vectors.train(["a b"] * 3)
    with pytest.raises(ValueError, match=r"--dimensions=0 must be 1 or more"):
        word_vectors.train(["a b c"] * 3, dimensions=0)
