"""Batches read by grain: those of seqio on the same documents, resumed at any step."""

import gzip
import importlib.util
import json
import string
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tensorflow as tf
from array_record.python.array_record_module import ArrayRecordWriter

from t5x_like import objectives, vocabulary
from t5x_like import vocabularies as vocabulary_files
from t5x_like.batches import converters, data_modules, document_cleaning
from t5x_like.batches.document_cleaning import clean
from t5x_like.batches.sharded_batches import NoExampleError
from t5x_like.experiment import data_side
from t5x_like.grain_pipeline import corpus, rows_of_files, tokenized_documents
from t5x_like.grain_pipeline.corpus_tasks import CorpusTasks
from t5x_like.preprocessing import cleaning
from t5x_like.preprocessing.pipeline import RegisteredTasks
from t5x_like.reading import FileError
from t5x_like.vocabularies import words
from t5x_like.vocabularies.sentence_piece import Bytes
from tests.word_vocabulary import WordVocabulary

DATA = Path(__file__).parents[2] / "data"
VOCABULARY = Bytes(extra_ids=100)
LENGTHS = {"language_modeling": {"targets": 48}, "span_corruption": {"inputs": 48, "targets": 24}}
CONVERTERS = {
    "language_modeling": converters.build("decoder"),
    "span_corruption": converters.build("encoder_decoder"),
}
OBJECTIVES = [
    ("language_modeling", {}),
    ("span_corruption", {}),
    ("span_corruption", {"random_roll": True, "final_sentinel": True, "mean_span": 2.0}),
]


def documents():
    """60 texts, some with what cleaning changes or drops."""
    generator = np.random.default_rng(0)
    words = ["the", "cat", "sat", "über", "日本", "a\u00a0b", "\r\n", "\n\n\n\n", "x\x07y", "😀"]
    made = [" ".join(generator.choice(words, size=generator.integers(1, 40))) for _ in range(60)]
    odd = [" \t ", "", "\ufffd" * 9 + "a", "\ud800 half a pair", "z" * 300]
    return [
        text for n, own in enumerate(made) for text in [own, *odd[n // 9 : n // 9 + (n % 9 == 0)]]
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The documents as JSON Lines, with blank lines."""
    path = tmp_path_factory.mktemp("corpus")
    lines = [json.dumps({"text": text}) for text in documents()]
    lines[3:3] = ["", " \t\r"]
    (path / "all.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def tasks(
    kind, module, folder, objective, objective_settings=None, vocabulary=VOCABULARY, **settings
):
    settings = {"files": str(folder / "all.jsonl"), "name": "corpus", **settings}
    return kind(
        data_modules.load(str(DATA / f"{module}.py")),
        settings,
        vocabulary=vocabulary,
        objective=objective,
        objective_settings=objective_settings or {},
    )


def read_by_grain(folder, objective="span_corruption", *, settings=None, files=None, **reading):
    """Batches of the corpus, shuffled and in endless epochs unless `reading` has something else."""
    made = tasks(CorpusTasks, "grain_files", folder, objective, settings, **(files or {}))
    reading = {"split": "train", "batch_size": 4, "shards": 4, "seed": 3, **reading}
    return made.batches(
        "corpus", lengths=LENGTHS[objective], converter=CONVERTERS[objective], **reading
    )


def take(batches, number):
    return [next(batches) for _ in range(number)]


def assert_equal(found, expected):
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def check_both(folder, objective, *settings, split, reading, **files):
    """Grain's batches of some files, and its counts of documents, are those of seqio."""
    made, counts = [], []
    for kind, module in ((CorpusTasks, "grain_files"), (RegisteredTasks, "text_files")):
        document_cleaning.reset_counts()
        own = tasks(kind, module, folder, objective, *settings, **files)
        batches = own.batches(
            "corpus",
            split=split,
            batch_size=4,
            lengths=LENGTHS[objective],
            converter=CONVERTERS[objective],
            shuffle=False,
            repeat=False,
            **reading,
        )
        made.append(list(batches))
        counts.append(document_cleaning.counts())
    assert_equal(*made)
    assert counts[0] == {**counts[1], "invalid_utf8": 0}


@pytest.mark.parametrize(
    ("split", "objective", "settings"),
    [*(("train", *one) for one in OBJECTIVES), ("validation", *OBJECTIVES[0])],
)
def test_batches_are_those_of_seqio_byte_for_byte(folder, objective, settings, split):
    reading = {"pack": True, "seed": 7, "shards": 2}
    check_both(folder, objective, settings, held_out=0.2, split=split, reading=reading)


@pytest.mark.parametrize("name", ["all.txt", "all.txt.gz", "all.jsonl.gz", "all.jsonl.zst"])
def test_text_and_compressed_files_have_the_rows_of_seqio(folder, tmp_path, name):
    texts = [text.replace("\n", " ") for text in documents() if "\ud800" not in text]
    if ".jsonl" in name:
        content = (folder / "all.jsonl").read_bytes()
    else:  # with a form feed within a line, a line end of two characters, and none at the end
        content = ("\ufeff" + "\n".join(["a\x0cb", "cat\r", *texts])).encode()
    if name.endswith(".gz"):  # of two members
        content = gzip.compress(content[:999]) + gzip.compress(content[999:])
    elif name.endswith(".zst"):
        content = pyarrow.compress(content, "zstd", asbytes=True)
    (tmp_path / name).write_bytes(content)
    files = {"files": str(tmp_path / name), "held_out": 0.2}
    check_both(tmp_path, "language_modeling", split="train", reading={}, **files)


OF_DOCUMENTS = [
    name
    for name in objectives.OBJECTIVES
    if isinstance(objectives.build(name), objectives.RunningText | objectives.Groups)
]
ENCODER = WordVocabulary([*string.printable, "the", "cat", "sat", "über", "日本", "##x"])


def vocabulary_of(objective):
    if objective == "bidirectional_lm":
        return words.WordVocabulary([*words.WORD_SPECIAL_TOKENS, "the", "cat", "sat"])
    return ENCODER if isinstance(objectives.build(objective), objectives.Groups) else VOCABULARY


def read(made, objective, lengths, **reading):
    converter = converters.build(objective.converters[0], **objective.converter_settings)
    return made.batches(
        "corpus", split="train", batch_size=4, lengths=lengths, converter=converter, **reading
    )


@pytest.mark.parametrize("name", OF_DOCUMENTS)
def test_every_objective_over_documents_makes_the_examples_of_seqio(folder, name):
    objective = objectives.build(name)
    lengths = dict.fromkeys(objective.features, 32)
    lengths |= {one: 32 * words.LONGEST for one in objective.features if "characters" in one}
    made = []
    for kind, module in ((CorpusTasks, "grain_files"), (RegisteredTasks, "text_files")):
        own = tasks(kind, module, folder, name, vocabulary=vocabulary_of(name))
        batches = read(own, objective, lengths, seed=7, shards=2, shuffle=False, repeat=False)
        made.append(list(batches))
    assert_equal(*made)


@pytest.mark.parametrize("name", ["bert", "xlnet", "bart"])
def test_rows_of_groups_continue_from_any_row(folder, name):
    """A group has many rows: the position is within it."""
    objective = objectives.build(name)
    lengths = dict.fromkeys(objective.features, 32)

    def batches():
        own = tasks(CorpusTasks, "grain_files", folder, name, vocabulary=ENCODER)
        return read(own, objective, lengths, seed=7, shards=2)

    whole = take(batches(), 40)
    for stop in (1, 7, 20):
        first = batches()
        take(first, stop)
        resumed = batches()
        resumed.restore(first.state())
        assert_equal(take(resumed, 40 - stop), whole[stop:])


def test_a_file_that_is_written_while_it_is_read_is_an_error_and_does_not_end_the_process(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    rows = rows_of_files.open_files("files", str(path), {"text": "text"})
    assert rows[1] == {"text": "two"}
    for content in ("", "three and more\n"):
        path.write_text(content)
        with pytest.raises(FileError, match=r"a\.txt: it has been written since it was opened"):
            rows[1]


def test_a_long_document_is_cut_as_by_seqio():
    texts = ["é " * 70_000, f"{'z' * 99_999} {'y' * 9}", "x" * 200_000]
    dataset = cleaning.clean(tf.data.Dataset.from_tensor_slices({"text": texts}))
    expected = [row["text"].decode() for row in dataset.as_numpy_iterator()]
    assert [piece for text in texts for piece in clean(text)] == expected
    assert len(expected) == 6


def test_rows_are_those_of_seqio(folder):
    for cleaned in (False, True):
        found, expected = (
            [
                row["text"] if isinstance(row["text"], str) else row["text"].decode()
                for row in tasks(kind, module, folder, "span_corruption", held_out=0.2).rows(
                    "corpus", split="validation", cleaned=cleaned
                )
            ]
            for kind, module in ((CorpusTasks, "grain_files"), (RegisteredTasks, "text_files"))
        )
        assert found == expected != []


def test_the_texts_for_a_vocabulary_are_those_of_seqio(folder):
    settings = {"files": str(folder / "all.jsonl"), "held_out": 0.2}
    found, expected = (
        list(vocabulary.training_texts(str(DATA / f"{module}.py"), settings))
        for module in ("grain_files", "text_files")
    )
    assert found == expected != []


@pytest.mark.parametrize("pack", [False, True])
def test_a_position_is_resumed_in_every_part_of_an_epoch(folder, pack):
    number = 40  # more than an epoch
    write(folder / "few.jsonl", [text for text in documents() if len(text) < 200])
    files = {"files": str(folder / "few.jsonl"), "held_out": 0.2}
    whole = read_by_grain(folder, files=files, pack=pack)
    expected, states = [], []
    for _ in range(number):
        states.append(whole.state())
        expected.append(next(whole))
    epochs = [stream.state()["epoch"] for stream in whole._shards[0].streams.values()]
    assert min(epochs) > 0
    for step in (0, 7, 25, 39):
        again = read_by_grain(folder, files=files, pack=pack)
        again.restore(states[step])
        assert_equal(take(again, number - step), expected[step:])


def test_a_position_is_resumed_on_another_number_of_processes(folder):
    one = read_by_grain(folder, shards=4)
    take(one, 5)
    state = one.state()
    halves = [read_by_grain(folder, shards=4, rows=own) for own in ([0, 3], [1, 2])]
    for half in halves:
        half.restore(state)
    joined = [
        {name: np.concatenate([part[name] for part in parts])[[0, 2, 3, 1]] for name in parts[0]}
        for parts in zip(*(take(half, 5) for half in halves), strict=True)
    ]
    assert_equal(joined, take(one, 5))


def test_a_position_of_the_stream_is_a_few_numbers(folder):
    batches = read_by_grain(folder, shards=1)
    take(batches, 3)
    assert len(batches.state()[0]) < 1000


def test_each_epoch_has_every_document_once_in_an_order_of_its_own(folder):
    lines = [json.dumps({"text": f"{n:03d}"}) for n in range(100)]
    (folder / "numbers.jsonl").write_text("\n".join(lines), encoding="utf-8")
    files = {"files": str(folder / "numbers.jsonl"), "held_out": 0.0}
    batches = read_by_grain(folder, "language_modeling", files=files, shards=1)
    targets = np.concatenate([batch["decoder_target_tokens"] for batch in take(batches, 10)])
    text = VOCABULARY.decode(targets[targets > 1].tolist())
    numbers = [text[n : n + 3] for n in range(0, len(text), 3)]
    epochs = numbers[:100], numbers[100:200]
    assert all(sorted(epoch) == [f"{n:03d}" for n in range(100)] for epoch in epochs)
    assert epochs[0] != epochs[1] != sorted(epochs[1])


def write(path, texts):
    if path.suffix == ".parquet":
        table = pyarrow.table({"text": texts})
        pyarrow.parquet.write_table(table, path, row_group_size=7)
    elif path.suffix == ".array_record":
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for text in texts:
            writer.write(json.dumps({"text": text}).encode())
        writer.close()
    else:
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def test_every_format_gives_the_same_batches(tmp_path):
    texts = [text for text in documents() if len(text) < 200 and "\ud800" not in text]
    made = []
    for suffix in (".jsonl", ".parquet", ".array_record"):
        write(tmp_path / f"a{suffix}", texts[:20])
        write(tmp_path / f"b{suffix}", texts[20:])
        files = {"files": str(tmp_path / f"*{suffix}"), "held_out": 0.0}
        made.append(take(read_by_grain(tmp_path, files=files), 30))
    assert_equal(made[1], made[0])
    assert_equal(made[2], made[0])


def test_a_changed_corpus_or_objective_is_no_position(folder, tmp_path):
    state = read_by_grain(folder).state()
    with pytest.raises(ValueError, match="position of task 'corpus' cannot be restored: the numb"):
        read_by_grain(folder, settings={"rate": 0.3}).restore(state)
    write(tmp_path / "all.jsonl", ["a text"] * 9)
    with pytest.raises(ValueError, match="position of task 'corpus' cannot be restored: the numb"):
        read_by_grain(tmp_path).restore(state)


def test_a_shard_without_documents_is_named(tmp_path):
    write(tmp_path / "all.jsonl", ["a text of its own"] * 3)
    with pytest.raises(NoExampleError, match=r"shard 3 of 4 of split 'train' of task 'corpus' has"):
        next(read_by_grain(tmp_path, files={"held_out": 0.0}))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.jsonl", r"files='.*missing.jsonl' matches no file.* Allowed: all.jsonl"),
        ("packed.parquet.gz", r"packed.parquet.gz has none of the suffixes .* unpack it"),
        ("packed.jsonl.gz", r"packed.jsonl.gz: it does not begin as a file compressed by gzip"),
        ("damaged.txt.gz", r"damaged.txt.gz: the compressed file ends in its middle"),
        ("broken.parquet", r"broken.parquet: it is not a Parquet file: "),
        ("broken.array_record", r"broken.array_record: it is not an ArrayRecord file: "),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(folder, name, message):
    if "missing" not in name:
        damaged = gzip.compress(b"a text\n" * 99)[:-9]
        (folder / name).write_bytes(damaged if "damaged" in name else b"no such format")
    with pytest.raises(ValueError, match=message) as caught:
        read_by_grain(folder, files={"files": str(folder / name)})
    assert "\n" not in str(caught.value)


def test_objectives_of_other_rows_are_refused(folder):
    for objective, message in [
        ("text_to_text", "text_to_text needs pairs; the task's rows lack inputs, targets"),
        ("classification", "objective='classification' reads the fields .*rows lack label, text_a"),
    ]:
        made = tasks(CorpusTasks, "grain_files", folder, objective)
        with pytest.raises(ValueError, match=message):
            read(made, objectives.build(objective), {"inputs": 16, "targets": 16})
    with pytest.raises(ValueError, match=r"data.settings.fils does not exist.*mean 'files'"):
        tasks(CorpusTasks, "grain_files", folder, "span_corruption", fils="a")


# Rows of each objective that does not read documents: module, file, its content, settings.
SENTENCES = [f"the cat sat {n} über" for n in range(24)]
CLASSES = [{"text_a": text, "label": "yn"[n % 2]} for n, text in enumerate(SENTENCES)]
PAIRED = [{**row, "text_b": f"the {n % 5}"} for n, row in enumerate(CLASSES)]
NUMBERS = [{"text_a": text, "text_b": "sat", "value": n / 3} for n, text in enumerate(SENTENCES)]
TAGS = [{"words": text.split(), "tags": [*"BIOO", str(n % 3)]} for n, text in enumerate(SENTENCES)]
ANSWERS = [
    {"question": "the?", "context": f"he {text} .", "answers": [{"text": str(n)}] if n % 3 else []}
    for n, text in enumerate(SENTENCES)
]
CHOICES = [
    {"text_a": text, "choices": ["a", *"bcd"[: n % 3 + 1]], "answer": 1, "group": n // 2}
    for n, text in enumerate(SENTENCES)
]
ASKED = [{**row, "text_a": f"a {row['text_a']}.\nthe b", "text_b": "who?"} for row in CHOICES]
SUPPORTED = [
    {
        "question": "who sat?",
        "context": [f"the\n{text}\n\nthe cat", f"cat {n}\nsat über"],
        "answer": ["cat", "yes"][n % 2],
        "facts": {"title": ["the"], "sent_id": [2 - n % 3]},
    }
    for n, text in enumerate(SENTENCES)
]
OF_PAGES = [
    {
        "question": "who sat?",
        "context": [text, f"the cat {n}", "sat über " * 30],
        "long_answers": [f"0-{len(text.split())}", "none"][n % 4 == 3 :][:1],
        "short_answers": [["1-2", "none", "yes", "none"][n % 4]],
    }
    for n, text in enumerate(SENTENCES)
]
PAIRS = [{"inputs": text, "targets": f"{text} " * 2} for text in SENTENCES]
# What cleaning changes or drops: control characters, an empty side, a side that is too long.
PAIRS[3:3] = [
    {"inputs": "a\x07\x0cb\u00a0 c", "targets": "x\u2028y"},
    {"inputs": "the", "targets": " \t"},
    {"inputs": "\ufffd\ufffd", "targets": "the"},
    {"inputs": "z" * 100_002, "targets": "the"},
]
PROMPTED = [row | {"choices": [row["targets"], "no"]} for row in PAIRS[7:]]
RANKED = [
    {"prompt": text, "responses": ["the", "cat", "sat"], "ranks": [1, 2, 1 + n % 2]}
    for n, text in enumerate(SENTENCES)
]
JUDGED = [
    {"prompt": text, "response": "the cat", "rule": "the", "violates": n % 2 == 0}
    for n, text in enumerate(SENTENCES)
]


def as_json(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_table(rows, between="\t"):
    cells = [[*rows[0]], *([str(one) for one in row.values()] for row in rows)]
    return "".join(between.join(row) + "\n" for row in cells)


def as_squad(rows):
    asked = [
        {"context": row["context"], "qas": [{**row, "id": str(n), "is_impossible": False}]}
        for n, row in enumerate(rows)
    ]
    return json.dumps({"data": [{"paragraphs": asked}]})


def of_words(rows):
    return [{name: " ".join(values) for name, values in row.items()} for row in rows]


TWO_LINES = "".join(f"{row['inputs']}\n" for row in PAIRS)
LABELLED = {
    "classification": ("a.csv", as_table(CLASSES, ",")),
    "pair_classification": ("a.tsv", as_table(PAIRED)),
    "regression": ("a.csv", as_table(NUMBERS, ",")),
    "tagging": ("a.tsv", as_table(of_words(TAGS))),
    "question_answering": ("a.json", as_squad(ANSWERS)),
    "multiple_choice": ("a.jsonl", as_json(CHOICES)),
    "candidates": ("a.jsonl", as_json(ASKED)),
    "supporting_facts": ("a.jsonl", as_json(SUPPORTED)),
    "long_answers": ("a.jsonl", as_json(OF_PAGES)),
    "knowledge_classification": ("a.jsonl.gz", as_json(PAIRED)),
    "knowledge_tagging": ("a.jsonl", as_json(TAGS)),
    "knowledge_question_answering": ("a.jsonl", as_json(ANSWERS)),
    "word_classification": ("a.tsv.gz", as_table(PAIRED)),
    "word_tagging": ("a.jsonl", as_json(TAGS)),
    "word_question_answering": ("a.jsonl", as_json(ANSWERS)),
    "gpt_classification": ("a.jsonl", as_json(CLASSES)),
    "gpt_similarity": ("a.jsonl", as_json(PAIRED)),
    "gpt_regression": ("a.jsonl", as_json(NUMBERS)),
    "gpt_multiple_choice": ("a.jsonl", as_json(CHOICES)),
}
COLUMNS = {"inputs": "inputs", "targets": "targets"}
CASES = [
    *((name, "labelled_files", "train", *file, {}) for name, file in LABELLED.items()),
    ("multiple_choice", "labelled_files", "train", "a.jsonl", as_json(CHOICES), {"group": "group"}),
    ("text_to_text", "text_files", "files", "a.jsonl.gz", as_json(PAIRS), COLUMNS),
    ("marked_text_to_text", "text_files", "files", "a.jsonl", as_json(PAIRS), COLUMNS),
    ("masked_targets", "text_files", "files", "a.parquet", PAIRS, COLUMNS),
    ("translation", "parallel_text", "source", "a.en.gz", TWO_LINES, {}),
    (
        *("translation", "parallel_text", "pairs", "a.tsv"),
        *("".join(f"no\t{text}\tthe\n" for text in SENTENCES), {"columns": (1, 2)}),
    ),
    (
        *("translation", "parallel_text", "pairs", "a.jsonl"),
        *(as_json({"of": row} for row in PAIRS), {"columns": ("of.inputs", "of.targets")}),
    ),
    ("text_to_text", "prompted_files", "train", "a.jsonl", as_json(PROMPTED), {}),
    ("text_to_text", "preference_files", "train", "a.jsonl", as_json(RANKED), {}),
    ("comparisons", "preference_files", "train", "a.jsonl", as_json(RANKED), {}),
    ("judgements", "rule_files", "train", "a.jsonl", as_json(JUDGED), {}),
    ("prompts", "prompt_files", "prompts", "a.jsonl", as_json(RANKED), {}),
]


def case_of(objective):
    """The first case of an objective."""
    return next(case for case in CASES if case[0] == objective)


SETTINGS = {
    "multiple_choice": {"choices": 4},
    "candidates": {"choices": 4, "longest_choice": 8, "longest_question": 8},
    "long_answers": {"stride": 16, "longest_question": 8},
    "gpt_multiple_choice": {"choices": 4},
    "comparisons": {"responses": 3},
    "masked_targets": {"target_length": 9},
    "prompts": {"pretraining_rows": 2},
    "word_question_answering": {"longest_question": 8, "stride": 8},
    "knowledge_question_answering": {"reserved": 8, "longest_question": 8, "stride": 8},
}


def test_the_cases_have_every_objective():
    assert {*OF_DOCUMENTS, *(case[0] for case in CASES)} == {*objectives.OBJECTIVES}


def write_once(path, content):
    """Write a file unless it is there: another stream may be reading it."""
    if path.exists():
        return
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(content), path)
    else:
        data = content.encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def settings_of(case, folder):
    """Write the files of a case; return the settings of its module."""
    _, module, setting, file, content, settings = case
    write_once(folder / file, content)
    settings = {setting: str(folder / file), "name": "corpus", **settings}
    if module == "prompted_files":
        return settings
    if setting == "source":
        write_once(folder / "a.de", "".join(f"the {n}\n" for n in range(len(PAIRS))))
        settings["target"] = str(folder / "a.de")
    if setting == "prompts":
        write_once(folder / "b.txt", "\n".join(SENTENCES))
        settings["pretraining"] = str(folder / "b.txt")
    return {**settings, "held_out": 0.3}


def tasks_of(case, kind, folder):
    """The tasks of a case, and how its objective reads."""
    name, module = case[:2]
    objective = objectives.build(name, **SETTINGS.get(name, {}))
    (folder / "vocab.txt").write_text("\n".join(p for p in ENCODER.pieces if p.strip()) + "\n")
    encoder = vocabulary_files.load(str(folder / "vocab.txt"))
    reads_pieces = not isinstance(objective, objectives.Pairs) or name.startswith("ma")
    chosen = encoder if reads_pieces else VOCABULARY
    if name.startswith("word_"):
        chosen = words.WordVocabulary([*words.WORD_SPECIAL_TOKENS, "the", "cat", "sat"])
    made = kind(
        data_modules.load(str(DATA / f"{module}.py")),
        settings_of(case, folder),
        vocabulary=chosen,
        objective=name,
        objective_settings=SETTINGS.get(name, {}),
    )
    lengths = dict.fromkeys((*objective.features, "targets"), 96)
    lengths |= {one: 96 * words.LONGEST for one in objective.features if "characters" in one}
    return made, objective, lengths


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}-{case[3]}")
def test_rows_of_every_other_objective_make_the_examples_of_seqio(tmp_path, case):
    reading = {"seed": 7, "shards": 2, "shuffle": False, "repeat": False}
    made, counts, texts = [], [], []
    for kind in (CorpusTasks, RegisteredTasks):
        document_cleaning.reset_counts()
        made.append(list(read(*tasks_of(case, kind, tmp_path), **reading)))
        counts.append(document_cleaning.counts())
        settings, path = settings_of(case, tmp_path), str(DATA / f"{case[1]}.py")
        del settings["name"]
        settings |= {"kind": case[0]} if case[1] == "labelled_files" else {}
        driver = "grain" if kind is CorpusTasks else "seqio"
        texts.append([*vocabulary.training_texts(path, settings, driver=driver)])
    assert_equal(*made)
    assert counts[0] == {**counts[1], "invalid_utf8": 0}
    assert texts[0] == texts[1] != []


@pytest.mark.parametrize("case", CASES[::7], ids=lambda case: f"{case[0]}-{case[1]}")
def test_rows_are_resumed_at_any_row_on_any_number_of_processes(tmp_path, case):
    def batches(**own):
        return read(*tasks_of(case, CorpusTasks, tmp_path), seed=7, shards=4, **own)

    whole = batches()
    expected, states = [], []
    for _ in range(12):  # of about five in an epoch
        states.append(whole.state())
        expected.append(next(whole))
    assert all(len(one) < 1500 for one in states[-1].values())  # a few numbers
    for stop in (1, 4, 9):
        halves = [batches(rows=own) for own in ([0, 3], [1, 2])]
        for half in halves:
            half.restore(states[stop])
        joined = [
            {name: np.concatenate([part[name] for part in parts])[[0, 2, 3, 1]] for name in one}
            for parts in zip(*(take(half, 3) for half in halves), strict=True)
            for one in parts[:1]
        ]
        assert_equal(joined, expected[stop : stop + 3])


def test_rows_for_evaluation_are_those_of_seqio(tmp_path):
    """SQuAD's rows with their answers, and cleaned pairs."""
    for case in (case_of("question_answering"), case_of("text_to_text")):
        found, expected = (
            [
                {name: data_side.plain(value) for name, value in row.items()}
                for row in tasks_of(case, kind, tmp_path)[0].rows(
                    "corpus", split="train", cleaned=True
                )
            ]
            for kind in (CorpusTasks, RegisteredTasks)
        )
        assert found == expected != []


def test_the_driver_is_chosen_by_the_module_or_by_the_setting(monkeypatch):
    both, seqio_only, grain_only = (
        data_modules.load(str(DATA / f"{name}.py")) for name in ("text_files", "c4", "grain_files")
    )
    assert [data_modules.driver_of(one) for one in (both, seqio_only, grain_only)] == [
        *("seqio", "seqio", "grain")
    ]
    assert data_modules.driver_of(both, "grain") == "grain"
    for module, driver, message in [
        (seqio_only, "grain", r"data.driver='grain': .*c4.py' has no .* set data.driver='seqio'"),
        (grain_only, "seqio", r"data.driver='seqio': .*grain_files.py' has no function 'register'"),
        (both, "grains", r"data.driver='grains' does not exist. Did you mean 'grain'"),
    ]:
        with pytest.raises(ValueError, match=message):
            data_modules.driver_of(module, driver)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"seqio, which is not installed: .*data.driver='grain'"):
        data_modules.driver_of(both)


def test_pairs_are_not_read_from_a_folder_of_tokenized_documents(tmp_path):
    file = settings_of(case_of("text_to_text"), tmp_path)["files"]
    splits = corpus.from_files(file, **COLUMNS).splits
    with pytest.raises(ValueError, match=r"are not documents in files.* set data.tokenized=''"):
        tokenized_documents.identity(VOCABULARY, splits)
