"""The objectives of BART, MASS and DAE: rows to read by eye, their limits, and what they refuse."""

import json

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5x_like import objectives as plain
from t5x_like import vocabularies
from t5x_like.batches import converters
from t5x_like.batches.packing import to_batch
from t5x_like.objectives import document_noise
from t5x_like.preprocessing import seqio_objectives
from t5x_like.preprocessing.task_vocabulary import TaskVocabulary
from tests.word_vocabulary import WordVocabulary

STORE = "the man went to the store .\nhe bought a full gallon of milk ."
VOCABULARY = WordVocabulary(sorted({*STORE.split(), *(f"w{n}" for n in range(50))}))
LENGTHS = {"inputs": 24, "targets": 24}


@pytest.fixture(autouse=True)
def _objectives_are_made_anew():
    """Since some tests replace what an objective is made of."""
    plain._cached.cache_clear()
    yield
    plain._cached.cache_clear()


def rows(name, texts, *, lengths=None, seed=0, vocabulary=VOCABULARY, **settings):
    """The examples of an objective over documents."""
    objective = seqio_objectives.build(name, **settings)
    dataset = tf.data.Dataset.from_tensor_slices({"text": list(texts)})
    with seqio.utils.map_seed_manager(seed):
        for step in objective.preprocessors:
            step = seqio.utils.add_kwargs_to_transform(
                step,
                sequence_length=lengths or LENGTHS,
                output_features=dict.fromkeys(
                    objective.features, seqio.Feature(TaskVocabulary(vocabulary))
                ),
            )
            dataset = step(dataset)
    return list(dataset.as_numpy_iterator())


def words(tokens):
    return VOCABULARY.decode(tokens)


def documents(count, *, size=200, sentence=10):
    """Texts of the words w0 to w49, in lines of ten."""
    random = np.random.default_rng(7)
    numbers = random.integers(0, 50, (count, size // sentence, sentence))
    return ["\n".join(" ".join(f"w{n}" for n in line) for line in text) for text in numbers]


def test_bart_by_eye(monkeypatch):
    def swap_and_fill(name, **_):
        def swapped(generator, text, mask):
            return text.take(np.argsort(1 - text.sentences, kind="stable"))

        def filled(generator, text, mask):
            kept = text.take(np.array([0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]))
            kept.tokens[[2, 8]] = mask
            return kept

        return {"sentence_permutation": swapped, "text_infilling": filled}

    monkeypatch.setattr(document_noise, "corruptions", swap_and_fill)
    [row] = rows("bart", [STORE])
    assert words(row["inputs"]) == (
        "[CLS] he bought [MASK] of milk . the man [MASK] to the store . [SEP]"
    )
    assert words(row["targets"]) == (
        "[CLS] the man went to the store . he bought a full gallon of milk . [SEP]"
    )


def test_bart_rows_are_whole_sentences_of_one_document_and_lose_none():
    texts = documents(5)
    found = rows("bart", texts, lengths={"inputs": 64, "targets": 45})
    targets = [words(row["targets"]).split() for row in found]
    assert [len(row) for row in targets] == [42] * 25  # 4 sentences of 10 and two special tokens
    assert " ".join(" ".join(row[1:-1]) for row in targets) == " ".join(texts).replace("\n", " ")


@pytest.mark.parametrize(
    ("name", "masks", "kept"),
    [("token_masking", 12, 28), ("token_deletion", 0, 28), ("text_infilling", 4.5, 28)],
)
def test_a_corruption_alone_takes_its_share_and_keeps_the_special_tokens(name, masks, kept):
    found = rows("bart", documents(60), lengths={"inputs": 42, "targets": 42}, corruptions=[name])
    assert len(found) == 300
    counts = [(row["inputs"] == VOCABULARY.mask_id).sum() for row in found]
    for row, count in zip(found, counts, strict=True):
        assert row["inputs"][0] == row["targets"][0] == VOCABULARY.cls_id
        assert row["inputs"][-1] == row["targets"][-1] == VOCABULARY.sep_id
        assert len(row["inputs"]) - 2 - count == kept
    # Infilling: 12 tokens in spans of 3, the last cut; deviation of the mean of 300 below 0.1.
    assert abs(np.mean(counts) - masks) < 0.5


def test_the_default_permutes_all_sentences_and_infills_a_third_of_the_text():
    found = rows("bart", documents(60), lengths={"inputs": 42, "targets": 42})
    same_start = 0
    for row in found:
        text, noisy = (row[side][1:-1].tolist() for side in ("targets", "inputs"))
        kept = [token for token in noisy if token != VOCABULARY.mask_id]
        assert len(kept) == 28
        assert not set(kept) - set(text)
        same_start += kept[0] == text[0] and kept[1] == text[1]
    # In one of four the first sentence stays the first, and its first two words in half of those.
    assert 15 < same_start < 65


def test_what_noise_makes_too_long_is_cut_and_keeps_its_end_token(monkeypatch):
    def longer(name, **_):
        return {"text_infilling": lambda g, text, mask: text.take(np.zeros(99, np.int64))}

    monkeypatch.setattr(document_noise, "corruptions", longer)
    [row] = rows("bart", [STORE], corruptions=["text_infilling"])
    assert len(row["inputs"]) == 24
    assert row["inputs"][-1] == VOCABULARY.sep_id


def test_byte_level_pieces_keep_the_blank_between_sentences(tmp_path):
    # A vocabulary of bytes as pieces: every character shows.
    byte_pieces = [chr(n) for n in range(33, 127)] + ["\u0120"]
    special_tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    ids = {piece: number for number, piece in enumerate([*special_tokens, *byte_pieces])}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    vocabulary = vocabularies.load(str(tmp_path))
    [row] = rows("bart", ["He came. She\nwent."], vocabulary=vocabulary, rate=0.1)
    assert vocabulary.decode(row["targets"]) == "<s>He came. She went.</s>"


def test_mass_by_eye(monkeypatch):
    class Third:
        def integers(self, count, size=None):
            return 2 if size is None else np.zeros(size, np.int64)

        def random(self, shape, dtype=None):
            return np.zeros(shape)

    monkeypatch.setattr(np.random, "default_rng", lambda seed: Third())
    _, row = rows("mass", [STORE], random_rate=0.0, kept_rate=0.0)
    assert words(row["inputs"]) == "he bought [MASK] [MASK] [MASK] [MASK] milk . [SEP]"
    assert words(row["targets"]) == "a full gallon of"
    assert row["positions"].tolist() == [2, 3, 4, 5]


def test_half_of_each_sentence_is_a_fragment_that_begins_anywhere():
    found = rows("mass", documents(150))
    assert len(found) == 3000
    positions = np.stack([row["positions"] for row in found])
    assert positions.shape == (3000, 6)  # of 10 words and [SEP]; half, rounded to even
    np.testing.assert_array_equal(np.diff(positions, axis=1), 1)
    starts = np.bincount(positions[:, 0], minlength=6)
    assert len(starts) == 6
    assert abs(starts - 500).max() < 105  # five deviations of 20.4
    inputs = np.stack([row["inputs"] for row in found])
    targets = np.stack([row["targets"] for row in found])
    places = np.take_along_axis(inputs, positions, axis=1)
    masked, kept = (places == VOCABULARY.mask_id).mean(), (places == targets).mean()
    random = ((places != VOCABULARY.mask_id) & (places != targets)).mean()
    # 18,000 places: five deviations of a share of 0.1 are 0.011. A random word may be the same.
    assert abs(masked - 0.8) < 0.015
    assert abs(kept - 0.1) < 0.015
    assert abs(random - 0.1) < 0.015
    outside = np.ones_like(inputs, bool)
    np.put_along_axis(outside, positions, False, axis=1)
    text = np.concatenate([words(row).split() for row in inputs[outside].reshape(3000, 5)])
    assert not set(text) & {"[MASK]", "[CLS]"}


def batches(name, texts, **settings):
    found = rows(name, texts, random_rate=0.0, kept_rate=0.0, **settings)
    converter = converters.build("fragment", start=VOCABULARY.eos_id)
    lengths = converter.feature_lengths(LENGTHS)
    sequences = [[converter.sequences(row)] for row in found]
    return to_batch(sequences, converter=converter, lengths=lengths, pack=False), found


def test_with_one_token_it_is_a_masked_language_model():
    batch, found = batches("mass", documents(5), tokens=1)
    assert len(found) == 100
    masks = batch["encoder_input_tokens"] == VOCABULARY.mask_id
    assert (masks.sum(axis=1) == 1).all()
    np.testing.assert_array_equal(batch["decoder_loss_weights"].sum(axis=1), 1)
    # The decoder reads only its start token, at the position of the mask, and predicts the token.
    np.testing.assert_array_equal(batch["decoder_input_tokens"][:, 0], VOCABULARY.eos_id)
    np.testing.assert_array_equal(batch["decoder_positions"][:, 0], masks.argmax(axis=1))
    filled = np.where(masks, batch["decoder_target_tokens"][:, :1], batch["encoder_input_tokens"])
    lines = [line for text in documents(5) for line in text.split("\n")]
    assert [words(row[:10]) for row in filled] == lines


def test_with_all_tokens_it_is_a_language_model():
    batch, _ = batches("mass", documents(5), rate=1.0)
    lines = [line for text in documents(5) for line in text.split("\n")]
    real = batch["encoder_segment_ids"] == 1
    np.testing.assert_array_equal(batch["encoder_input_tokens"][real], VOCABULARY.mask_id)
    converter = converters.build("decoder", start=VOCABULARY.eos_id)
    rows_of_text = [
        [converter.sequences({"targets": np.array([*VOCABULARY.encode(line), 3], np.int32)})]
        for line in lines
    ]
    plain = to_batch(rows_of_text, converter=converter, lengths=LENGTHS, pack=False)
    for field, values in plain.items():
        np.testing.assert_array_equal(batch[field], values, field)
    np.testing.assert_array_equal(batch["decoder_positions"][:, :11], [range(11)] * 100)


def test_a_long_sentence_is_cut_into_parts_and_a_short_one_has_one_token_of_noise():
    lengths = {"inputs": 9, "targets": 8}
    found = rows("mass", ["w1 " * 20, "w2", ""], lengths=lengths)
    assert [len(row["inputs"]) for row in found] == [9, 9, 5, 2]
    assert [len(row["targets"]) for row in found] == [4, 4, 2, 1]


def test_dae_without_noise_is_the_sentence_and_masks_alone_keep_positions():
    lines = [line for text in documents(5) for line in text.split("\n")]
    clean = rows("dae", documents(5), drop_rate=0.0, mask_rate=0.0, shuffle=1.0)
    for row, line in zip(clean, lines, strict=True):
        assert words(row["inputs"]) == words(row["targets"]) == f"{line} [SEP]"
    masked = rows("dae", documents(150), drop_rate=0.0, mask_rate=0.15, shuffle=0.0)
    inputs, targets = (np.stack([row[side] for row in masked]) for side in ("inputs", "targets"))
    changed = inputs != targets
    assert (inputs[changed] == VOCABULARY.mask_id).all()
    assert not changed[:, -1].any()
    # 30,000 tokens: five deviations of a share of 0.15 are 0.0103.
    assert abs(changed[:, :-1].mean() - 0.15) < 0.0103


def test_dae_drops_a_tenth_and_masks_a_tenth_of_the_rest():
    found = rows("dae", documents(150))
    masks = sum((row["inputs"] == VOCABULARY.mask_id).sum() for row in found)
    left = sum(len(row["inputs"]) - 1 for row in found)
    # 30,000 tokens: five deviations of a share of 0.1 are 0.0087.
    assert abs(left / 30_000 - 0.9) < 0.0087
    assert abs(masks / left - 0.1) < 0.0092


def test_dae_moves_a_token_by_less_than_three_positions():
    line = " ".join(f"w{n}" for n in range(10))
    found = rows("dae", ["\n".join([line] * 300)], drop_rate=0.0, mask_rate=0.0)
    order = VOCABULARY.encode(line)
    moves = np.array(
        [[order.index(t) - n for n, t in enumerate(row["inputs"][:-1])] for row in found]
    )
    assert np.abs(moves).max() == 2
    # The first token stays if the second's u + 1 and the third's u + 2 are above its u; each u
    # is uniform from 0 to 3: the integral of (1 - (x - 1)+ / 3) (1 - (x - 2)+ / 3) dx / 3 = 0.753.
    assert abs((moves[:, 0] == 0).mean() - 0.753) < 5 * np.sqrt(0.753 * 0.253 / 300)


@pytest.mark.parametrize("name", ["bart", "mass", "dae"])
def test_a_seed_fixes_every_example_and_another_changes_them(name):
    def sampled(seed):
        return [
            {key: value.tolist() for key, value in row.items()}
            for row in rows(name, documents(3), seed=seed)
        ]

    assert sampled(1) == sampled(1)
    assert sum(a == b for a, b in zip(sampled(1), sampled(2), strict=True)) < 20


def test_pairs_with_special_tokens_by_eye_and_cut_to_fit():
    pair = {"inputs": ["the man went to the store ."], "targets": ["he bought milk"]}
    objective = seqio_objectives.build("marked_text_to_text")

    def row(**lengths):
        dataset = tf.data.Dataset.from_tensor_slices(pair)
        output_features = dict.fromkeys(pair, seqio.Feature(TaskVocabulary(VOCABULARY)))
        for step in objective.preprocessors:
            dataset = seqio.utils.add_kwargs_to_transform(
                step, sequence_length=lengths, output_features=output_features
            )(dataset)
        [found] = dataset.as_numpy_iterator()
        return words(found["inputs"]), words(found["targets"])

    whole = ("[CLS] the man went to the store . [SEP]", "[CLS] he bought milk [SEP]")
    assert row(**LENGTHS) == whole
    assert row(inputs=5, targets=4) == ("[CLS] the man went [SEP]", "[CLS] he bought [SEP]")
    with pytest.raises(ValueError, match=r"needs lengths\.targets of 2 or more"):
        row(inputs=5, targets=1)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("bart", {"corruptions": ["text_infiling"]}, "Did you mean 'text_infilling'"),
        ("bart", {"corruptions": ()}, "must be a tuple of one or more of token_masking"),
        ("bart", {"corruptions": "token_masking"}, "corruptions='token_masking' must be a list"),
        ("bart", {"rate": 1.5}, "bart: rate must lie between 0 and 1"),
        ("bart", {"mean_span": 0.0}, "bart: mean_span=0.0 must be 1 token or more"),
        ("bart", {"lengths": {"inputs": 24}}, "bart needs lengths.targets of 8 or more, got 0"),
        ("bart", {"vocabulary": vocabularies.load("bytes:0")}, "has no cls_id, sep_id, mask_id"),
        ("mass", {"rate": 0.0}, "mass: rate=0.0 must be above 0 and at most 1"),
        ("mass", {"tokens": -1}, "and tokens=-1 0 or more"),
        ("mass", {"random_rate": 0.6, "kept_rate": 0.6}, "together at most 1"),
        ("mass", {"lengths": {"inputs": 24, "targets": 11}}, "has 12, more than lengths.targets"),
        ("mass", {"lengths": {"inputs": 4, "targets": 9}}, "lengths.inputs of 8 or more, got 4"),
        ("mass", {"token": 3}, "data.objective_settings.token does not exist"),
    ],
)
def test_bad_settings_are_errors_before_anything_is_read(name, settings, message):
    with pytest.raises(ValueError, match=message):
        rows(name, ["one sentence"], **settings)
