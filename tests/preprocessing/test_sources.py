"""Sources: the held-out rule, shards that are disjoint and complete, positions, registration."""

import pytest
import seqio
import tensorflow as tf

from t5x_like.preprocessing import sources

DOCUMENTS = [f"Document {number} has its own text." for number in range(3000)]


def held_out(texts: list[str], fraction: float) -> list[bool]:
    return sources.held_out(tf.constant(texts), fraction=fraction).numpy().tolist()


def test_the_held_out_part_is_the_fraction_asked_for():
    assert sum(held_out(DOCUMENTS, 0.0)) == 0
    assert sum(held_out(DOCUMENTS, 1.0)) == len(DOCUMENTS)
    # Binomial: 300 expected, with a standard deviation of 16.
    assert abs(sum(held_out(DOCUMENTS, 0.1)) - 300) < 80


def test_the_held_out_rule_never_changes():
    """Models trained before would else be evaluated on what they were trained on."""
    is_held_out = held_out(DOCUMENTS, 0.002)
    assert [number for number, out in enumerate(is_held_out) if out] == [260, 1841]


def test_a_larger_fraction_holds_out_all_that_a_smaller_one_does():
    small, large = held_out(DOCUMENTS, 0.05), held_out(DOCUMENTS, 0.2)
    assert all(b for a, b in zip(small, large, strict=True) if a)


def test_the_rule_reads_every_run_of_whitespace_as_one_space():
    for text in DOCUMENTS[:200]:
        assert len(set(held_out([text, f"\n {text} ", text.replace(" ", "\r\n\t")], 0.5))) == 1


def source(units: int, rows: int) -> sources.FileSource:
    """A source of `units` units with `rows` rows each, "unit:row"."""

    def read(unit: tf.Tensor) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(rows)
        return numbers.map(lambda n: tf.strings.join([unit, tf.strings.as_string(n)], ":"))

    return sources.FileSource(
        list_units=lambda split: [f"{split}{n}" for n in range(units)],
        read=read,
        examples=lambda rows, split: rows.map(lambda row: {"text": row}),
    )


def texts(dataset: tf.data.Dataset) -> list[str]:
    return [example["text"].decode() for example in dataset.as_numpy_iterator()]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("shards", [1, 2, 3, 4, 7])
def test_any_number_of_shards_has_each_row_once(shards, shuffle):
    data = source(units=4, rows=9)
    parts = [
        texts(data.get_dataset("train", shuffle=shuffle, shard_info=seqio.ShardInfo(i, shards)))
        for i in range(shards)
    ]
    assert all(parts)
    together = [row for part in parts for row in part]
    assert sorted(together) == sorted(texts(data.get_dataset("train", shuffle=False)))


def test_units_are_shuffled_by_the_seed():
    def order(seed: int | None) -> list[str]:
        return texts(source(units=20, rows=1).get_dataset("train", seed=seed))

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_a_wrong_split_names_the_nearest():
    with pytest.raises(ValueError, match=r"split='valid' .* Did you mean 'validation'"):
        source(units=1, rows=1).list_shards("valid")


def test_settings_are_checked_against_a_function():
    def documents(split, *, files, field="text"):
        raise AssertionError

    sources.check_settings(documents, {"files": "x"})
    with pytest.raises(ValueError, match=r"fild does .* Did you mean 'field'"):
        sources.check_settings(documents, {"files": "x", "fild": "y"})
    with pytest.raises(ValueError, match="files is not set"):
        sources.check_settings(documents, {})


def test_a_data_module_is_loaded_once_by_its_path(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text('"""Mine."""\ndef register(): ...\ndef documents(): ...\n')
    again = f"{tmp_path}/../{tmp_path.name}/mine.py"
    assert sources.load_module(str(path)) is sources.load_module(again)


def test_a_data_module_that_is_not_there_or_is_none(tmp_path):
    (tmp_path / "mine.py").write_text("def register(): ...\n")
    with pytest.raises(ValueError, match=r"mime\.py' does not exist.* Did you mean '.*mine\.py'"):
        sources.load_module(f"{tmp_path}/mime.py")
    with pytest.raises(ValueError, match="lacks the function 'documents'"):
        sources.load_module(f"{tmp_path}/mine.py")
