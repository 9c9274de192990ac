"""Knowledge graphs and sentence trees: what is found, where it is grafted, what is refused."""

import collections
import json

import numpy as np
import pytest

from t5x_like import vocabularies
from t5x_like.batches.knowledge_graph import TreeWriter, Triple, digest, load, read
from t5x_like.batches.labelled_rows import RowWriter
from t5x_like.preprocessing import seqio_objectives

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "tim cook is visiting beijing now ceo apple capital china is_a city in new york ##er _ a"
# The example of the paper's figures 1 and 2.
EXAMPLE = [
    ("Tim Cook", "CEO", "Apple"),
    ("Beijing", "capital", "China"),
    ("Beijing", "is a", "City"),
    ("Beijing", "in", "China"),
]
LETTERS = [chr(ord("a") + n) for n in range(26)]


def write(path, triples=EXAMPLE):
    lines = ["\t".join(one) for one in [("subject", "relation", "object"), *triples]]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "vocab.txt"
    pieces = dict.fromkeys([*SPECIAL_TOKENS, *WORDS.split(), *LETTERS, *(f"##{c}" for c in "xyz")])
    path.write_text("\n".join(pieces) + "\n")
    return vocabularies.load(path)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return write(tmp_path_factory.mktemp("graph") / "graph.tsv")


def pieces(vocabulary, tokens):
    return " ".join(vocabulary.pieces[token] for token in tokens)


def test_the_example_of_the_paper(vocabulary, graph):
    tree = TreeWriter(vocabulary, length=32, graph=graph).of_text(
        "Tim Cook is visiting Beijing now"
    )
    assert pieces(vocabulary, tree.tokens) == (
        "[CLS] tim cook ceo apple is visiting beijing capital china is a city now [SEP]"
    )
    # Of 13 tokens in the paper, which has no [SEP] and "is_a" as one token.
    assert tree.soft_positions.tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 6, 7, 6, 7, 8, 6, 7]
    assert tree.branches.tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 2, 2, 3, 3, 3, 0, 0]
    assert tree.entities.tolist() == [0, 1, 1, 1, 1, 0, 0, 2, 2, 2, 2, 2, 2, 0, 0]
    assert tree.trunk.tolist() == [0, 1, 2, 5, 6, 7, 13, 14]
    assert not tree.token_types.any()


def test_a_branch_has_the_token_type_of_its_entity(vocabulary, graph):
    writer = TreeWriter(vocabulary, length=32, graph=graph, relations=False)
    tree = writer.of_text("tim cook", "in beijing")
    assert pieces(vocabulary, tree.tokens) == (
        "[CLS] tim cook apple [SEP] in beijing china city [SEP]"
    )
    assert tree.token_types.tolist() == [0] * 5 + [1] * 5


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("new york now", ["new york"]),
        ("new", ["new"]),
        ("new yorker", ["new"]),  # a part of a word is no entity
        ("york new york york", ["york", "new york", "york"]),
        ("", []),
    ],
)
def test_the_longest_entity_of_whole_words_is_found(text, found, vocabulary, tmp_path):
    triples = [("new york", "is", "a"), ("New", "is", "b"), ("york", "is", "c"), ("?", "is", "d")]
    own = load(write(tmp_path / "graph.tsv", triples), vocabulary, relations=True)
    row = RowWriter(vocabulary, length=16).of_text(text).tokens.tolist()
    assert [pieces(vocabulary, row[one.start : one.end]) for one in own.find(row)] == found


def test_words_unknown_to_the_vocabulary_are_no_entity(vocabulary, tmp_path):
    own = load(write(tmp_path / "graph.tsv", [("7", "is", "a")]), vocabulary, relations=True)
    assert own.find(vocabulary.encode("8 a 7")) == []


def test_tags_stay_with_their_words(vocabulary, graph):
    writer = TreeWriter(vocabulary, length=14, graph=graph)
    tree, places = writer.of_words(["in", "Beijing", "visiting", "Cook", "Beijing", "city"])
    assert pieces(vocabulary, tree.tokens) == (
        "[CLS] in beijing capital china is a city visiting cook beijing city [SEP]"
    )  # the branches of the second Beijing no longer fit
    assert places.tolist() == [1, 2, 8, 9, 10, 11]
    assert not tree.branches[places].any()
    assert tree.entities.tolist() == [0, 0] + [1] * 6 + [0] * 5


def test_a_branch_is_left_out_whole(vocabulary, graph):
    kept = {}
    for length in range(8, 16):
        tree = TreeWriter(vocabulary, length=length, graph=graph).of_text(
            "now in Beijing is a city"
        )
        kept[length] = pieces(vocabulary, tree.tokens[tree.branches > 0])
    assert kept == {
        **dict.fromkeys((8, 9), ""),
        **dict.fromkeys((10, 11, 12), "capital china"),
        **dict.fromkeys((13, 14, 15), "capital china is a city"),
    }


def test_reserved_tokens_are_for_branches_alone(vocabulary, graph):
    text = "in beijing " + "now " * 40
    full = TreeWriter(vocabulary, length=24, graph=graph).of_text(text)
    assert not full.branches.any()
    tree = TreeWriter(vocabulary, length=24, graph=graph, reserved=5).of_text(text)
    assert (len(tree.tokens), (tree.branches > 0).sum()) == (24, 5)
    np.testing.assert_array_equal(
        tree.tokens[tree.trunk], RowWriter(vocabulary, length=19).of_text(text).tokens
    )


CONTEXT = "Tim Cook is visiting Beijing now in a new city"


def test_answers_are_found_between_branches(vocabulary, graph):
    writer = TreeWriter(vocabulary, length=24, graph=graph, reserved=7)
    windows = writer.windows("in Beijing", CONTEXT, stride=4, longest_question=4)
    assert len(windows) == 1
    [window] = windows
    assert len(window.row.tokens) == 24
    for answer in ("Tim", "Cook", "Tim Cook is", "Beijing", "Beijing now", "new city"):
        start = CONTEXT.index(answer)
        first, last = window.places(start, start + len(answer))
        assert not window.row.branches[[first, last]].any()
        a, b = window.characters(first, last)
        assert CONTEXT[a:b] == answer
    assert window.context.min() > window.row.tokens.tolist().index(vocabulary.sep_id)
    assert pieces(vocabulary, window.row.tokens[window.context]) == CONTEXT.lower()
    assert window.places(0, 0) == (0, 0)


def random_graph(random):
    """Triples of entities of one or two letters, some with many, and sentences of letters."""
    triples = []
    for subject in [*LETTERS[:6], *(f"{a} {b}" for a, b in zip("aghi", "bhij", strict=True))]:
        for _ in range(random.integers(1, 5)):
            words = [" ".join(random.choice(LETTERS, random.integers(1, 4))) for _ in range(2)]
            triples.append((subject, *words))
    return triples


def check_branch(vocabulary, tree, number, *, known):
    """A branch is in one piece and whole, behind its entity, from whose place it goes on."""
    places = np.flatnonzero(tree.branches == number)
    assert (np.diff(places) == 1).all()
    assert pieces(vocabulary, tree.tokens[places]) in known
    [owner] = {*tree.entities[places].tolist()}
    of_entity = np.flatnonzero((tree.entities == owner) & (tree.branches == 0))
    assert of_entity[-1] < places[0]
    first = tree.soft_positions[of_entity[-1]] + 1
    np.testing.assert_array_equal(tree.soft_positions[places], first + np.arange(len(places)))


def test_properties_of_thousands_of_trees(vocabulary, tmp_path):
    random = np.random.default_rng(0)
    counts = collections.Counter()
    length, most = 32, 2
    triples = random_graph(random)
    path = write(tmp_path / "graph.tsv", triples)
    known = load(path, vocabulary, relations=True)
    writer = TreeWriter(vocabulary, length=length, graph=path, branches=most)
    plain = RowWriter(vocabulary, length=length)
    branch_of = {(" ".join(t[1:])) for t in triples}
    for _ in range(3000):
        text = " ".join(random.choice(LETTERS, random.integers(1, 40)))
        tree, row = writer.of_text(text), plain.of_text(text)
        # The sentence is BERT's, whatever is grafted.
        np.testing.assert_array_equal(tree.tokens[tree.trunk], row.tokens)
        np.testing.assert_array_equal(tree.branches[tree.trunk], 0)
        np.testing.assert_array_equal(tree.soft_positions[tree.trunk], np.arange(len(row.tokens)))
        assert len(tree.tokens) <= length
        entities = known.find(row.tokens.tolist())
        counts["entities"] += len(entities)
        counts["letters"] += len(row.tokens) - 2
        numbers = [n for n in dict.fromkeys(tree.branches.tolist()) if n]
        assert numbers == list(range(1, len(numbers) + 1))
        for number in numbers:
            check_branch(vocabulary, tree, number, known=branch_of)
        owners = collections.Counter(
            int(tree.entities[tree.branches == number][0]) for number in numbers
        )
        assert max(owners.values(), default=0) <= most
        counts["branches"] += len(numbers)
        if len(row.tokens) <= 12:  # there is room for all
            wanted = sum(min(len(one.triples), most) for one in entities)
            counts["short"] += 1
            counts["complete"] += len(numbers) == wanted
    # Six letters of 26 are entities, and so are four pairs of 676, one of which begins with one of
    # the six. Of 50,000 letters: a deviation of 0.002.
    assert counts["letters"] > 50_000
    assert counts["entities"] / counts["letters"] == pytest.approx(6 / 26 + 3 / 676, abs=0.008)
    assert counts["branches"] > 4000
    assert counts["complete"] / counts["short"] > 0.9


def test_without_a_graph_rows_are_bert_s(vocabulary):
    texts = ("tim cook", "in beijing")
    tree = TreeWriter(vocabulary, length=16).of_text(*texts)
    row = RowWriter(vocabulary, length=16).of_text(*texts)
    np.testing.assert_array_equal(tree.tokens, row.tokens)
    np.testing.assert_array_equal(tree.token_types, row.token_types)
    np.testing.assert_array_equal(tree.soft_positions, np.arange(len(row.tokens)))
    assert not tree.branches.any()
    assert not tree.entities.any()
    assert digest("") == ""


def test_files_of_all_forms_have_the_same_triples(tmp_path):
    expected = [Triple(*one) for one in EXAMPLE]
    assert read(write(tmp_path / "graph.tsv")) == expected
    lines = ["\t".join(one) for one in EXAMPLE]
    (tmp_path / "graph.spo").write_text("\r\n".join(lines) + "\r\n")
    assert read(tmp_path / "graph.spo") == expected
    turned = ["\t".join(one) for one in [("object", "subject", "relation")]]
    turned += ["\t".join((c, a, b)) for a, b, c in EXAMPLE]
    (tmp_path / "turned.tsv").write_text("\n".join(turned))
    assert read(tmp_path / "turned.tsv") == expected
    rows = [json.dumps(one._asdict()) for one in expected]
    (tmp_path / "graph.jsonl").write_text("\n\n".join(rows))
    assert read(tmp_path / "graph.jsonl") == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("g.tsv", "head\trelation\ttail\na\tb\tc\n", r"g.tsv:1: the columns .* not head, relation"),
        ("g.tsv", "subject\trelation\n", "g.tsv:1: the columns .* not subject, relation$"),
        ("g.tsv", "subject\trelation\tobject\n", "g.tsv has no triple; set data.objective_set"),
        ("g.tsv", "", "g.tsv has no triple"),
        ("g.spo", "a\tb\tc\na b c\n", "g.spo:2: it has 1 cells with tabs between, not the three"),
        ("g.spo", "a\t\tc\n", "g.spo:1: relation='' must be a text"),
        (
            "g.jsonl",
            '{"subject": "a", "object": "c"}',
            r"g.jsonl:1: the columns .* not subject, ob",
        ),
        ("g.jsonl", '{"subject": 1, "relation": "b", "object": "c"}', "g.jsonl:1: subject=1 must"),
        ("g.jsonl", "[]", "g.jsonl:1: it is not a JSON object"),
        ("g.jsonl", "{", "g.jsonl:1: it is not JSON"),
        ("g.csv", "a,b,c\n", r"g.csv' must end in one of .spo, .tsv, .jsonl"),
        ("g.tsv", "\udcff", "g.tsv:1: it is not UTF-8"),
    ],
)
def test_a_bad_graph_is_one_line(name, content, message, tmp_path):
    path = tmp_path / name
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=message) as caught:
        seqio_objectives.build("knowledge_classification", graph=str(path))
    assert "\n" not in str(caught.value)


def test_a_graph_that_is_not_there_is_named_with_the_nearest(tmp_path):
    write(tmp_path / "graph.tsv")
    with pytest.raises(ValueError, match=r"graph='.*grap.tsv' is not a file. Did you mean 'graph"):
        seqio_objectives.build("knowledge_tagging", graph=str(tmp_path / "grap.tsv"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 6}, "lengths.inputs=6: rows of labelled text need 8 tokens or more"),
        ({"length": 16, "reserved": 9}, "reserved=9 must be 0 or more, and leave 8 .*inputs=16 "),
        ({"length": 16, "reserved": -1}, "reserved=-1 must be 0 or more"),
        ({"length": 16, "branches": 0}, "branches=0 must be 1 or more branches an entity"),
    ],
)
def test_rows_without_room_are_refused(settings, message, vocabulary):
    with pytest.raises(ValueError, match=message):
        TreeWriter(vocabulary, **settings)


def test_windows_without_room_name_the_reserved_tokens(vocabulary):
    writer = TreeWriter(vocabulary, length=80, reserved=10)
    with pytest.raises(ValueError, match=r"need 75 .* \(without the reserved=10\)"):
        writer.check_windows(stride=128, longest_question=64)
