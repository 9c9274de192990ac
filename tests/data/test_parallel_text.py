"""Parallel text: every format gives the same pairs; files that do not match are errors."""

import gzip
import json
import re
from pathlib import Path

import pytest
import seqio

from t5x_like import reading, vocabularies
from t5x_like.preprocessing import line_datasets, seqio_objectives, sources
from t5x_like.preprocessing.pipeline import SeqioBatches

parallel = sources.load_module(str(Path(__file__).parents[2] / "data" / "parallel_text.py"))

PAIRS = [(f"sentence {n}", f"Satz {n}") for n in range(200)]


def write(path, lines):
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return str(path)


def lines_of(folder, *names, pairs=PAIRS):
    """Two files, of these names, of the sides of pairs."""
    return [
        write(folder / name, side)
        for name, side in zip(names, zip(*pairs, strict=True), strict=True)
    ]


def read(split="train", **settings):
    dataset = parallel.source_of_pairs(**settings).get_dataset(split, shuffle=False)
    rows = line_datasets.named(dataset.as_numpy_iterator())
    return [(r["inputs"].decode(), r["targets"].decode()) for r in rows]


def everything(**settings):
    return sorted(read("train", **settings) + read("validation", **settings))


@pytest.mark.parametrize(
    ("form", "settings"),
    [
        ("a.en a.de", {}),
        ("a.en.gz a.de", {}),
        ("a.tsv", {}),
        ("a.tsv.gz", {}),
        ("swapped.tsv", {"columns": (1, 0)}),
        ("a.jsonl", {}),
        ("nested.jsonl.gz", {"columns": ("translation.en", "translation.de")}),
    ],
)
def test_every_form_gives_the_same_pairs(form, settings, tmp_path):
    if " " in form:
        source, target = lines_of(tmp_path, *form.split())
        settings = {"source": source, "target": target}
    else:
        make = {
            "a": {
                "tsv": "\t".join,
                "jsonl": lambda p: json.dumps({"source": p[0], "target": p[1]}),
            },
            "swapped": {"tsv": lambda p: f"{p[1]}\t{p[0]}\tmore"},
            "nested": {"jsonl": lambda p: json.dumps({"translation": {"en": p[0], "de": p[1]}})},
        }
        name, kind = form.split(".")[:2]
        path = write(tmp_path / form, map(make[name][kind], PAIRS))
        settings = settings | {"pairs": path}
    assert everything(**settings) == sorted(PAIRS)


def test_patterns_go_together_in_sorted_order(tmp_path):
    lines_of(tmp_path, "1.en", "1.de", pairs=PAIRS[:60])
    lines_of(tmp_path, "2.en", "2.de", pairs=PAIRS[60:])
    settings = {"source": f"{tmp_path}/*.en", "target": f"{tmp_path}/*.de"}
    assert everything(**settings) == sorted(PAIRS)


def test_a_source_is_never_on_both_sides(tmp_path):
    repeated = [(f"sentence {n % 50}", f"Satz {n}") for n in range(300)]
    source, target = lines_of(tmp_path, "a.en", "a.de", pairs=repeated)
    settings = {"source": source, "target": target, "held_out": 0.3}
    train, validation = ({pair[0] for pair in read(split, **settings)} for split in sources.SPLITS)
    assert not train & validation
    assert 5 <= len(validation) <= 25


def test_validation_may_have_files_of_its_own(tmp_path):
    source, target = lines_of(tmp_path, "a.en", "a.de")
    other = lines_of(tmp_path, "v.en", "v.de", pairs=PAIRS[:3])
    settings = {"source": source, "target": target}
    settings |= {"validation_source": other[0], "validation_target": other[1]}
    assert read("validation", **settings) == PAIRS[:3]
    assert sorted(read("train", **settings)) == sorted(PAIRS)


def test_shards_share_the_pairs_of_one_file(tmp_path):
    source, target = lines_of(tmp_path, "a.en", "a.de")
    found = parallel.source_of_pairs(source=source, target=target, held_out=0)
    parts = [
        [
            row["inputs"].decode()
            for row in found.get_dataset(
                "train", shuffle=False, shard_info=seqio.ShardInfo(index=index, num_shards=3)
            ).as_numpy_iterator()
        ]
        for index in range(3)
    ]
    assert sorted(text for part in parts for text in part) == sorted(source for source, _ in PAIRS)


def test_documents_are_both_sides(tmp_path):
    source, target = lines_of(tmp_path, "a.en", "a.de", pairs=PAIRS[:2])
    data = parallel.documents("train", source=source, target=target, held_out=0)
    texts = [row["text"].decode() for row in data.as_numpy_iterator()]
    assert texts == ["sentence 0", "Satz 0", "sentence 1", "Satz 1"]


@pytest.mark.parametrize(
    ("name", "rows", "problem"),
    [
        ("a.tsv", ["a\tb", "", "alone"], ":3: it has 1 cells with tabs between, and must have 2"),
        ("a.tsv", ["a\tb", "c\td\te"], ":2: it has 3 cells with tabs between, and must have 2"),
        ("a.jsonl", ['{"source": "a", "target": "b"}', "", '{"source": "a"}'], ":3: there is no"),
        ("a.jsonl", ['{"source": "a", "target": "b"}', "{"], ":2: it is not JSON"),
        (
            "a.jsonl",
            ['{"source": "a", "target": "b"}', '{"source": 1, "target": "b"}'],
            ":2: there is no string 'source': it is 1",
        ),
    ],
)
def test_lines_that_are_no_pairs_are_errors(name, rows, problem, tmp_path):
    path = write(tmp_path / name, rows)
    with pytest.raises(reading.FileError, match=re.escape(f"{path}{problem}")):
        everything(pairs=path)


def batches(path, **changes):
    settings = {"split": "train", "batch_size": 4, "lengths": {"inputs": 16, "targets": 16}}
    return SeqioBatches("parallel_text", **(settings | {"pack": True, "shards": 2} | changes))


def test_batches_hold_whole_pairs_and_go_on_where_they_stopped(tmp_path):
    vocabulary = vocabularies.load("bytes:0")
    pairs = [*PAIRS, ("one that is far too long", "kurz"), ("short", "viel zu lang fuer sechzehn")]
    source, target = lines_of(tmp_path, "a.en", "a.de", pairs=pairs)
    parallel.register(
        vocabulary, seqio_objectives.build("translation"), source=source, target=target, held_out=0
    )
    one_pass = list(batches(source, pack=False, shuffle=False, repeat=False))
    texts = [
        (vocabulary.decode(inputs.tolist()), vocabulary.decode(targets.tolist()))
        for batch in one_pass
        for inputs, targets in zip(
            batch["encoder_input_tokens"], batch["decoder_target_tokens"], strict=True
        )
        if inputs.any()
    ]
    assert sorted(texts) == sorted(PAIRS)
    straight = batches(source)
    for _ in range(3):
        next(straight)
    resumed = batches(source)
    resumed.restore(straight.state())
    for _ in range(20):
        one, other = next(straight), next(resumed)
        assert all((one[name] == other[name]).all() for name in one)


WRONG = [
    ({"source": "a.en"}, "set both source and target, or only pairs"),
    ({}, "set both source and target, or only pairs"),
    ({"source": "a.en", "target": "short.de"}, "a.en has 200 lines, and .*short.de 199: line n of"),
    (
        {"source": "a.en", "target": "a.dee"},
        r"target=.*a.dee' matches no file.* Did you mean 'a.de'",
    ),
    ({"source": "*.en", "target": "*.de"}, r"has 1 files, and target=.* 2: they are matched"),
    ({"pairs": "a.en"}, "must all be .tsv or all .jsonl files"),
    ({"pairs": "a.tsv", "columns": (0, 5)}, "the first line of .*a.tsv does not have both"),
    ({"pairs": "a.tsv", "columns": ("en", "de")}, "must be two numbers from 0"),
    ({"source": "a.en", "target": "a.de", "columns": (0, 1)}, "needs `pairs`"),
    ({"source": "a.en", "target": "a.de", "validation_pairs": "a.tsv"}, "convert one of them"),
    ({"source": "a.en", "target": "a.de", "held_out": 2}, "held_out=2 must be from 0 to 1"),
    ({"sorce": "a.en"}, "Did you mean 'source'"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_mistakes_are_errors_before_anything_is_read(settings, message, tmp_path):
    lines_of(tmp_path, "a.en", "a.de")
    write(tmp_path / "short.de", [german for _, german in PAIRS[:-1]])
    write(tmp_path / "a.tsv", map("\t".join, PAIRS))
    settings = {
        name: f"{tmp_path}/{value}" if isinstance(value, str) else value
        for name, value in settings.items()
    }
    with pytest.raises(ValueError, match=message):
        parallel.register(
            vocabularies.load("bytes"), seqio_objectives.build("translation"), **settings
        )


def test_an_objective_of_documents_is_refused(tmp_path):
    source, target = lines_of(tmp_path, "a.en", "a.de")
    with pytest.raises(ValueError, match=r"'span_corruption' reads documents.*translation"):
        parallel.register(
            vocabularies.load("bytes"),
            seqio_objectives.build("span_corruption"),
            source=source,
            target=target,
        )
