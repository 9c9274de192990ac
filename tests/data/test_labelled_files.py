"""Labelled files: each format gives the same rows and batches; bad rows are errors."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from t5x_like import vocabularies
from t5x_like.batches import converters, data_modules
from t5x_like.grain_pipeline.corpus_tasks import CorpusTasks
from t5x_like.preprocessing import seqio_objectives, sources
from t5x_like.preprocessing.pipeline import RegisteredTasks, SeqioBatches, source_rows

labelled = sources.load_module(str(Path(__file__).parents[2] / "data" / "labelled_files.py"))

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["good", "bad", "it", "was", "jim", "hen", "##son", "who", "?", "."]
CONTEXT = "It was Jim Henson."


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, *WORDS]) + "\n")
    return vocabularies.load(path)


def write(path, rows):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=1)
        return str(path)
    text = rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text)
    return str(path)


def batch(vocabulary, kind, train, *, size, settings=None, converter="encoder", **data):
    objective = seqio_objectives.build(kind, **(settings or {}))
    labelled.register(vocabulary, objective, train=train, validation=train, **data)
    return next(
        SeqioBatches(
            "labelled_files",
            split="validation",
            batch_size=size,
            lengths={"inputs": 24},
            converter=converters.build(converter, **objective.converter_settings),
            shuffle=False,
            repeat=False,
        )
    )


def pieces(vocabulary, tokens):
    return " ".join(vocabulary.pieces[token] for token in tokens if token)


TEXTS = [
    {"text_a": "it was good", "text_b": "good", "label": "yes"},
    {"text_a": 'it "was" bad', "text_b": "", "label": "no"},
]
AS = {
    "rows.jsonl": TEXTS,
    "rows.parquet": [{"idx": n, **row} for n, row in enumerate(TEXTS)],
    "rows.tsv": 'text_a\ttext_b\tlabel\nit was good\tgood\tyes\nit "was" bad\t\tno\n',
    "rows.csv": 'text_a,text_b,label\nit was good,good,yes\n"it ""was"" bad",,no\n',
}


@pytest.mark.parametrize("name", AS)
def test_every_format_gives_the_same_rows(name, tmp_path):
    found = labelled.read("classification", train=write(tmp_path / name, AS[name]), held_out=0.5)
    rows = [row for split in found.rows.values() for row in split]
    plain = [{k: v for k, v in row.items() if k != "where"} for row in rows]
    assert sorted(plain, key=str) == sorted(TEXTS, key=str)
    assert found.labels == ("no", "yes")


def test_a_batch_of_pairs(vocabulary, tmp_path):
    made = batch(vocabulary, "classification", write(tmp_path / "a.jsonl", TEXTS), size=3)
    assert pieces(vocabulary, made["encoder_input_tokens"][0]) == (
        "[CLS] it was good [SEP] good [SEP]"
    )
    assert made["encoder_token_types"][0].tolist() == [0] * 5 + [1] * 2 + [0] * 17
    assert made["label"].tolist() == [1, 0, 0]
    assert made["encoder_segment_ids"][:, 0].tolist() == [1, 1, 0]  # the third only pads


def test_a_file_that_changes_is_read_again_at_once(tmp_path):
    path = tmp_path / "rows.jsonl"
    for number in range(1, 4):
        file = write(path, TEXTS[:1] * number)
        found = labelled.read("classification", train=file, validation=file)
        assert len(found.rows["train"]) == number


def test_labels_may_be_numbers_and_named_in_order(vocabulary, tmp_path):
    rows = [{"text": "it", "stars": n} for n in (10, 2, 2, 1)]
    path = write(tmp_path / "a.jsonl", rows)
    names = {"text_a": "text", "label": "stars"}
    assert labelled.labels("classification", train=path, validation=path, **names) == (
        *("1", "2", "10"),
    )
    made = batch(vocabulary, "classification", path, size=4, labels=(10, 2, 1), **names)
    assert made["label"].tolist() == [0, 1, 1, 2]


def test_a_batch_of_numbers(vocabulary, tmp_path):
    path = write(tmp_path / "a.csv", "text_a,value\ngood,0.25\nbad,-3\n")
    made = batch(vocabulary, "regression", path, size=2)
    assert made["value"].dtype == np.float32
    assert made["value"].tolist() == [0.25, -3.0]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("a.jsonl", [{"words": ["it", "was", "Henson"], "tags": ["O", "O", "P"]}]),
        ("a.tsv", "words\ttags\nit was Henson\tO O P\n"),
    ],
)
def test_a_batch_of_tags(name, rows, vocabulary, tmp_path):
    made = batch(vocabulary, "tagging", write(tmp_path / name, rows), size=1)
    assert pieces(vocabulary, made["encoder_input_tokens"][0]) == "[CLS] it was hen ##son [SEP]"
    assert made["encoder_target_tokens"][0, :7].tolist() == [0, 0, 0, 1, 0, 0, 0]
    assert made["encoder_loss_weights"][0, :7].tolist() == [0, 1, 1, 1, 0, 0, 0]


# Sentences in the format of the two distributions of CoNLL-2003: IOB1 tags, and IOB2.
EVEN, ODD = (
    "-DOCSTART- -X- O O\n\nit PRP I-NP O\nwas VBD I-VP O\nHenson NNP I-NP I-PER\n\n"
    "Jim NNP I-NP I-PER\n. . O O\n\n-DOCSTART- -X- O O\n\ngood JJ I-NP O\n\n",
    "-DOCSTART- -X- -X- O\n\nit PRP B-NP O\nwas VBD B-VP O\nHenson NNP B-NP B-PER\n\n"
    "Jim NNP B-NP B-PER\n. . O O\n\n-DOCSTART- -X- -X- O\n\ngood JJ B-NP O",
)


@pytest.mark.parametrize(
    ("name", "text", "person"),
    [
        ("eng.train", EVEN, "I-PER"),
        ("eng.testa", EVEN, "I-PER"),
        ("eng.testb", EVEN, "I-PER"),
        ("valid.txt", ODD, "B-PER"),
        ("a.conll", ODD.replace(" ", "\t"), "B-PER"),
    ],
)
def test_the_columns_of_conll(name, text, person, tmp_path):
    path = write(tmp_path / name, text)
    found = labelled.read("tagging", train=path, validation=path)
    assert found.labels == tuple(sorted(["O", person]))
    rows = [(" ".join(row["words"]), " ".join(row["tags"])) for row in found.rows["train"]]
    expected = [("it was Henson", f"O O {person}"), ("Jim .", f"{person} O"), ("good", "O")]
    assert rows == expected
    wheres = [row["where"].removeprefix(path) for row in found.rows["train"]]
    assert wheres == [":3", ":7", ":12"]


def test_both_drivers_make_the_same_batches_of_conll(vocabulary, tmp_path):
    path = write(tmp_path / "eng.train", EVEN)
    module = data_modules.load(str(Path(labelled.__file__)))
    settings = {"train": path, "validation": path}
    converter = seqio_objectives.build("tagging").converter_settings
    made = []
    for kind in (CorpusTasks, RegisteredTasks):
        tasks = kind(
            module, settings, vocabulary=vocabulary, objective="tagging", objective_settings={}
        )
        batches = tasks.batches(
            "labelled_files",
            split="validation",
            batch_size=3,
            lengths={"inputs": 12},
            converter=converters.build("encoder", **converter),
            shuffle=False,
            repeat=False,
            seed=1,
            shards=1,
        )
        made.append(next(batches))
    assert made[0].keys() == made[1].keys()
    for name, values in made[0].items():
        np.testing.assert_array_equal(values, made[1][name], err_msg=name)
    assert pieces(vocabulary, made[0]["encoder_input_tokens"][0]) == "[CLS] it was hen ##son [SEP]"


def test_a_choice_is_a_row_of_an_example(vocabulary, tmp_path):
    rows = [
        {"text_a": "it was", "text_b": "who", "choices": ["jim", "bad hen", "it"], "answer": 2},
        {"text_a": "it", "text_b": "?", "choices": ["good", "bad"], "answer": 0},
    ]
    path = write(tmp_path / "a.jsonl", rows)
    settings = {"settings": {"choices": 3}, "converter": "encoder_rows"}
    made = batch(vocabulary, "multiple_choice", path, size=2, **settings)
    tokens, types = made["encoder_input_tokens"], made["encoder_token_types"]
    assert tokens.shape == types.shape == made["encoder_segment_ids"].shape == (2, 3, 24)
    assert [[pieces(vocabulary, row) for row in example] for example in tokens] == [
        [f"[CLS] it was [SEP] who {choice} [SEP]" for choice in ("jim", "bad hen", "it")],
        [f"[CLS] it [SEP] ? {choice} [SEP]" for choice in ("good", "bad")] + [""],
    ]
    assert types[0, 1, :9].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 0]
    assert made["encoder_segment_ids"].sum(axis=2).tolist() == [[7, 8, 7], [6, 6, 0]]
    assert made["label"].tolist() == [2, 0]
    settings["settings"] = {"choices": 2}
    with pytest.raises(ValueError, match=r"a.jsonl:1: it has 3 choices, .*choices=2"):
        batch(vocabulary, "multiple_choice", path, size=2, **settings)
    with pytest.raises(ValueError, match="choices=1 of multiple_choice must be 2 or more"):
        seqio_objectives.build("multiple_choice", choices=1)


ANSWERS = [
    ["Jim Henson"],
    [{"text": "Jim Henson", "answer_start": 7}],
    {"text": ["Jim Henson"], "answer_start": [7]},
    [" Jim Henson"],
]


@pytest.mark.parametrize("answers", ANSWERS)
def test_a_batch_of_answers(answers, vocabulary, tmp_path):
    rows = [
        {"question": "Who?", "context": CONTEXT, "answers": answers},
        {"question": "Was it?", "context": CONTEXT, "answers": None},
    ]
    settings = {"stride": 4, "longest_question": 3}
    path = write(tmp_path / "a.jsonl", rows)
    made = batch(vocabulary, "question_answering", path, size=2, settings=settings)
    assert pieces(vocabulary, made["encoder_input_tokens"][0]) == (
        "[CLS] who ? [SEP] it was jim hen ##son . [SEP]"
    )
    assert made["answer"].tolist() == [[6, 8], [0, 0]]


def test_a_long_context_becomes_several_examples(vocabulary, tmp_path):
    rows = [{"question": "Who?", "context": "it was " * 20 + CONTEXT, "answers": ["Henson"]}]
    settings = {"stride": 8, "longest_question": 3}
    path = write(tmp_path / "a.jsonl", rows)
    made = batch(vocabulary, "question_answering", path, size=8, settings=settings)
    real = made["encoder_segment_ids"][:, 0] > 0
    assert real.sum() == 5
    for tokens, (first, last) in zip(
        made["encoder_input_tokens"][real], made["answer"][real], strict=True
    ):
        answered = pieces(vocabulary, tokens[first : last + 1])
        assert answered == ("hen ##son" if 11 in tokens[1:] else "[CLS]")
    assert made["answer"].any()


SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "T",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {
                            "id": "1",
                            "question": "Who?",
                            "answers": [
                                {"text": "Jim Henson", "answer_start": 7},
                                {"text": "Henson", "answer_start": 11},
                            ],
                            "is_impossible": False,
                        },
                        {
                            "id": "2",
                            "question": "Who not?",
                            "answers": [],
                            "plausible_answers": [{"text": "Jim", "answer_start": 7}],
                            "is_impossible": True,
                        },
                    ],
                }
            ],
        }
    ],
}


def test_squad_is_read_as_published(vocabulary, tmp_path):
    path = write(tmp_path / "squad.json", json.dumps(SQUAD))
    batch(vocabulary, "question_answering", path, size=2, settings={"longest_question": 4})
    rows = list(source_rows("labelled_files", split="validation"))
    assert [row["id"] for row in rows] == [b"1", b"2"]
    assert rows[0]["answers"].tolist() == [b"Jim Henson", b"Henson"]
    assert (rows[0]["answer_start"], rows[1]["answer_start"]) == (7, -1)
    assert rows[1]["answers"].size == 0


def test_parquet_of_squad_has_structs_as_the_hub_has_them(tmp_path):
    """The columns of `load_dataset("squad_v2")`: answers are lists within a struct."""
    none = {"text": [], "answer_start": []}
    answers = ({"text": ["Jim Henson", "Henson"], "answer_start": [7, 11]}, none)
    rows = [
        {"id": str(n), "title": "Jim", "question": "Who ?", "context": CONTEXT, "answers": answer}
        for n, answer in enumerate(answers)
    ]
    path = write(tmp_path / "validation.parquet", rows)
    found = labelled.read("question_answering", train=path, validation=path)
    first, second = found.rows["validation"]
    assert (first["answers"], first["answer_start"]) == (["Jim Henson", "Henson"], 7)
    assert (second["answers"], second["answer_start"], second["id"]) == ([], -1, "1")


def test_held_out_rows_are_of_other_texts(tmp_path):
    rows = [{"text_a": f"text {n % 100}", "label": n % 2} for n in range(300)]
    found = labelled.read("classification", train=write(tmp_path / "a.jsonl", rows), held_out=0.2)
    train, validation = ({row["text_a"] for row in found.rows[s]} for s in ("train", "validation"))
    assert not train & validation
    assert 10 <= len(validation) <= 30
    assert len(found.rows["train"]) + len(found.rows["validation"]) == 300


def test_documents_are_the_texts(tmp_path):
    path = write(tmp_path / "squad.json", json.dumps(SQUAD))
    data = labelled.documents("train", kind="question_answering", train=path, validation=path)
    texts = [row["text"].decode() for row in data.as_numpy_iterator()]
    assert texts == ["Who?", CONTEXT, "Who not?", CONTEXT]


GOOD = {"text_a": "good", "label": "yes"}
FACTS = {"question": "a", "context": ["a\nb"], "answer": "b"}
FACTS |= {"facts": {"title": ["a"], "sent_id": [0]}}
PAGE = {"question": "a", "context": ["b c", "d"], "long_answers": ["0-2"], "short_answers": ["yes"]}
QUESTION = {"question": "Who?", "context": CONTEXT}
BAD_ROWS = [
    ("classification", "a.jsonl", [GOOD, {"text_a": "good"}], ":2: there is no field 'label'"),
    ("classification", "a.jsonl", [GOOD, {"text": "a", "label": 1}], "Did you mean 'text'"),
    (
        "classification",
        "a.jsonl",
        [GOOD, {"text_a": 3, "label": "yes"}],
        ":2: text_a=3 must be a str",
    ),
    ("classification", "a.jsonl", [GOOD, {"text_a": "a", "label": 0.5}], ":2: label=0.5 must be"),
    (
        "classification",
        "a.jsonl",
        '{"text_a": "a", "label": 1}\n\n{nothing}\n',
        ":3: it is not JSON",
    ),
    ("classification", "a.jsonl", "[1]\n", ":1: it is not a JSON object"),
    ("classification", "a.tsv", "text_a\tlabel\na\tb\na\tb\tc\n", ":3: it has 3 cells"),
    ("classification", "a.csv", 'text_a,label\n"a"b,c\n', ":2: it is not a row of CSV"),
    ("classification", "a.json", "{}", "it is not SQuAD's JSON"),
    ("classification", "a.xlsx", "x", "must end in one of .jsonl, .tsv, .csv, .parquet, .json"),
    ("tagging", "a.conll", "a O\nb\n", ":2: there is no tag after the word 'b'"),
    ("tagging", "eng.testa", "a X O\n\nb O\n", ":3: it has 2 columns, and others have 3"),
    ("classification", "a.txt", "a X\n", ":1: there is no field 'text_a'"),
    ("regression", "a.tsv", "text_a\tvalue\na\tmany\n", ":2: value='many' must be a finite number"),
    ("regression", "a.tsv", "text_a\tvalue\na\tnan\n", ":2: value='nan' must be a finite number"),
    ("tagging", "a.jsonl", [{"words": ["a", "b"], "tags": ["O"]}], ":1: words="),
    ("tagging", "a.jsonl", [{"words": ["a", " "], "tags": ["O", "O"]}], "and none blank"),
    (
        "question_answering",
        "a.jsonl",
        [QUESTION | {"answers": "x"}],
        ":1: answers='x' must be a list",
    ),
    ("question_answering", "a.jsonl", [QUESTION | {"answers": ["Kim"]}], "'Kim' does not occur in"),
    ("question_answering", "a.jsonl", [QUESTION | {"answers": [""]}], "'' must be a text"),
    ("supporting_facts", "a.jsonl", [FACTS | {"context": "a"}], "context='a' must be a list of st"),
    ("supporting_facts", "a.jsonl", [FACTS | {"answer": " "}], "answer must not be blank"),
    ("supporting_facts", "a.jsonl", [FACTS | {"facts": [["a", 0]]}], "must have two lists of one"),
    ("long_answers", "a.jsonl", [PAGE | {"context": [""]}], r"must be none or words such as 3-6"),
    ("long_answers", "a.jsonl", [PAGE | {"context": "a"}], "context='a' must be a list of para"),
    (
        "long_answers",
        "a.jsonl",
        [PAGE | {"long_answers": ["yes"]}],
        "long_answers='yes' must be no",
    ),
    (
        "long_answers",
        "a.jsonl",
        [PAGE | {"short_answers": ["2-4"]}],
        "words such as 3-6, from 0 to 3.",
    ),
    ("long_answers", "a.jsonl", [PAGE | {"short_answers": ["2-2"]}], "'2-2' must be no, none, yes"),
    ("long_answers", "a.jsonl", [PAGE | {"short_answers": []}], "a text for each annotator"),
    (
        "question_answering",
        "a.jsonl",
        [QUESTION | {"answers": [{"text": "Jim", "answer_start": 3}]}],
        "does not occur in its context at its answer_start=3",
    ),
]


@pytest.mark.parametrize(("kind", "name", "rows", "message"), BAD_ROWS)
def test_a_bad_row_is_named_by_file_and_line(kind, name, rows, message, tmp_path):
    path = write(tmp_path / name, rows)
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        labelled.read(kind, train=path, validation=path)
    assert str(raised.value).startswith(path)


def test_other_mistakes_are_errors(vocabulary, tmp_path):
    train = write(tmp_path / "train.jsonl", [GOOD, {"text_a": "bad", "label": "no"}])
    other = write(tmp_path / "other.jsonl", [GOOD | {"label": "yess"}])
    classification = seqio_objectives.build("classification")
    with pytest.raises(
        ValueError, match=r"other.jsonl:1: 'yess' is not a label\. Did you mean 'yes'"
    ):
        labelled.register(vocabulary, classification, train=train, validation=other)
    with pytest.raises(ValueError, match=r"data.settings.train=.* Did you mean 'train.jsonl'"):
        labelled.register(vocabulary, classification, train=str(tmp_path / "trian.jsonl"))
    with pytest.raises(ValueError, match="no row for the split 'validation'"):
        labelled.register(vocabulary, classification, train=train, held_out=0.0)
    with pytest.raises(ValueError, match="Did you mean 'validation'"):
        labelled.register(vocabulary, classification, train=train, validatoin=train)
    with pytest.raises(ValueError, match="kind of labelled text='bert' does not exist"):
        labelled.register(vocabulary, seqio_objectives.build("bert"), train=train)
    with pytest.raises(ValueError, match=r"train.jsonl:1: there is no field 'value'"):
        labelled.register(vocabulary, seqio_objectives.build("regression"), train=train)


def test_an_objective_of_labelled_text_refuses_documents(vocabulary, tmp_path):
    text_files = sources.load_module(str(Path(__file__).parents[2] / "data" / "text_files.py"))
    path = write(tmp_path / "a.txt", "it was\n" * 9)
    objective = seqio_objectives.build("classification")
    text_files.register(vocabulary, objective, files=path, held_out=0.5)
    with pytest.raises(ValueError, match=r"lack label, text_a: data/labelled_files.py"):
        SeqioBatches(
            "text_files",
            split="train",
            batch_size=1,
            lengths={"inputs": 24},
            converter=converters.build("encoder", **objective.converter_settings),
        )
