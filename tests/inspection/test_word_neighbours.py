"""Neighbours of a word: where texts have it, its tokens, and the order by its states."""

import json
from unittest import mock

import matplotlib.figure
import matplotlib.image
import numpy as np
import pytest

from t5x_like import inspect, vocabularies
from t5x_like.research.inspection import drawings, inspected, server, word_neighbours
from t5x_like.research.inspection.word_neighbours import Neighbour, Occurrence
from tests.programs import tiny_encoder, tiny_writer

WORDS = ["the", "play", "##er", "##s", "cat", "sat", "was", "long", "a", ",", "good"]
LINES = ["the play was long", "a good Play", "", "player", "a cat, the play, the play sat"]


def test_a_word_is_found_in_any_case_but_not_within_others():
    found = word_neighbours.occurrences("play", [("f:1", "Play, plays; (play) replay play_")])
    assert [(one.start, one.end) for one in found] == [(0, 4), (14, 18)]
    assert found[1].marked() == "Play, plays; ([play]) replay play_"
    assert word_neighbours.occurrences("c++", [("f:1", "in C++, c+ +")])[0].start == 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("neighbours")
    (made / "texts.txt").write_text("\n".join(LINES) + "\n")
    tiny_encoder.write(made / "bert", "bert", words=WORDS)
    for system in ("gpt2", "t5"):
        tiny_writer.write(made / system, tiny_writer.settings(system))
    return made


def mean_states(model, text, places, *, layer):
    tokens = np.array([model.read(text)])
    hidden = np.array(model.pretrained(tokens, output_hidden_states=True).hidden_states)
    return hidden[layer + 1, 0, places].mean(axis=0)


def test_neighbours_are_ordered_by_the_states_of_all_tokens_of_the_word(folder, tmp_path, capsys):
    output = tmp_path / "found.json"
    inspect.main(
        [
            *("neighbours", str(folder / "texts.txt"), f"--from={folder / 'bert'}"),
            *("--word=play", "--text=the cat sat, a play", "--layer=0", "--top=2"),
            f"--json={output}",
        ]
    )
    model = inspected.load(str(folder / "bert"))
    query = mean_states(model, "the cat sat, a play", [6], layer=0)
    places = {(1, 4): [2], (2, 7): [3], (5, 11): [5], (5, 21): [8]}  # after [CLS]
    expected = {}
    for (line, start), place in places.items():
        other = mean_states(model, LINES[line - 1], place, layer=0)
        length = np.linalg.norm(query) * np.linalg.norm(other)
        expected[f"{folder / 'texts.txt'}:{line}", start] = float(query @ other / length)
    found = {
        (one["occurrence"]["where"], one["occurrence"]["start"]): one["cosine"]
        for one in json.loads(output.read_text())
    }
    assert found == pytest.approx(expected, abs=1e-5)
    assert list(found) == sorted(expected, key=expected.__getitem__, reverse=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split(maxsplit=0) == ["the cat sat, a [play]"]
    assert len(lines) == 1 + 2 + 1
    assert lines[-1] == f"{np.mean(list(expected.values())):6.3f}  is the mean of all 4"
    best = json.loads(output.read_text())[0]
    assert lines[1].startswith(f"{best['cosine']:6.3f}  ")
    assert "[play]" in lines[1].lower()


def test_the_figure_has_a_bar_for_each_neighbour(folder, tmp_path):
    figure = tmp_path / "new" / "found.png"
    texts = str(folder / "texts.txt")
    arguments = [f"--from={folder / 'bert'}", "--word=play", "--text=a good play", "--top=3"]
    inspect.main(["neighbours", texts, *arguments, f"--figure={figure}"])
    assert matplotlib.image.imread(figure).std() > 0.05
    query = Occurrence("f:1", "costs $5 or $6: the play" + " long" * 20, 20, 24)
    found = [Neighbour(Occurrence("f:2", f"{n} play", 2, 6), 0.9 - 0.1 * n) for n in range(4)]
    with mock.patch.object(matplotlib.figure.Figure, "savefig", autospec=True) as save:
        drawings.draw_neighbours(query, found, top=3)
    [axes] = save.call_args.args[0].axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([0.9, 0.8, 0.7])
    assert [one.get_text() for one in axes.get_yticklabels()] == [f"{n} [play]" for n in range(3)]
    assert axes.yaxis_inverted()  # the first is at the top
    assert axes.lines[0].get_xdata()[0] == pytest.approx(0.75)  # the mean of all four
    title = axes.title
    assert title.get_text().startswith("costs $5 or $6: the [play] long")
    assert title.get_text().endswith("\u2026")
    assert not title.get_parse_math()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"word": " "}, "give a word of the text"),
        ({"word": "cat"}, "the other texts do not have the word 'cat'"),
        ({"word": "dog"}, "the text does not have the word 'dog'"),
        ({"texts": ["play"] * 201}, "201 other texts: at most 200 allowed"),
        ({"texts": ["play", "play " + "cat " * 80]}, "line 2: a text of 83 tokens"),
        ({"texts": [3]}, "texts must be a list of strings"),
        ({"layer": "1"}, "layer an integer or null"),
        ({"layer": True}, "layer an integer or null"),
    ],
)
def test_bad_requests_of_the_page(folder, changes, message):
    asked = {"word": "play", "text": "the cat, the play", "texts": ["a play"], "layer": None}
    model = inspected.load(str(folder / "bert"))
    found = server.answer([model], "/api/neighbours", asked)
    assert (found["layers"], found["layer"]) == (2, 1)
    assert [one["where"] for one in found["neighbours"]] == ["line 1"]
    with pytest.raises(ValueError, match=message):
        server.answer([model], "/api/neighbours", asked | changes)


def test_a_word_of_several_tokens(folder):
    model = inspected.load(str(folder / "bert"))
    tokens, places = word_neighbours._tokenize(model, Occurrence("f:1", "the players sat", 4, 11))
    assert places == [2, 3, 4]
    assert [model.vocabulary.piece(tokens[place]) for place in places] == ["play", "##er", "##s"]


@pytest.mark.parametrize("system", ["gpt2", "t5"])
def test_decoders_and_encoder_decoders_of_bytes(folder, system):
    model = inspected.load(str(folder / system))
    text = "caf\u00e9 play"
    _, places = word_neighbours._tokenize(model, Occurrence("f:1", text, 5, 9))
    tokens = model.read(text)
    assert model.vocabulary.decode([tokens[place] for place in places]) == "play"
    query = Occurrence("f:1", text, 5, 9)
    (found,) = word_neighbours.find(model, query, [query], layer=None)
    assert found.cosine == pytest.approx(1)


def test_a_vocabulary_without_ranges_is_an_error():
    class Without(vocabularies.Vocabulary):
        encode = decode = _decode = lambda self, *_: []

    with pytest.raises(ValueError, match="does not return the characters of each token"):
        Without(vocab_size=3, contents=b"").encode_with_offsets("play")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--layer=2"], "--layer=2 does not exist: the layers are 0 to 1"),
        (
            ["--text=play " + "cat " * 80],
            "--text: a text of 83 tokens: this model is shown 1 to 64",
        ),
    ],
)
def test_what_only_the_model_knows_is_one_line(folder, changes, message, capsys):
    arguments = [str(folder / "texts.txt"), f"--from={folder / 'bert'}", "--word=play"]
    with pytest.raises(SystemExit) as ended:
        inspect.main(["neighbours", *arguments, "--text=play", *changes])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
