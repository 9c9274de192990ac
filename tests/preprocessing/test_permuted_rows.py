"""XLNet's rows: a worked example, how they go on, and statistics over thousands of them."""

import base64
import functools
import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5x_like import vocabularies
from t5x_like.batches import converters
from t5x_like.batches.encoder_rows import SpecialTokens
from t5x_like.objectives import examples_of
from t5x_like.objectives.masking import harmonic
from t5x_like.objectives.permuted import PermutedText, Spans
from t5x_like.preprocessing import seqio_objectives
from t5x_like.preprocessing.pipeline import SeqioBatches
from t5x_like.preprocessing.sources import add_document_task
from t5x_like.preprocessing.task_vocabulary import TaskVocabulary
from tests.word_vocabulary import WordVocabulary

SENTENCE, SENTENCES, DOCUMENTS, GROUP, LENGTH = 7, 40, 256, 16, 64
DOCUMENT = SENTENCE * SENTENCES  # tokens
TEXT = DOCUMENT * DOCUMENTS  # no two tokens alike, so that a token identifies its place
CLS, SEP, FIRST = 2, 3, 5
# Words of one, two and three tokens by turns.
VOCABULARY = WordVocabulary(("" if i % 6 in {0, 1, 3} else "##") + f"w{i}" for i in range(TEXT))


def examples(texts, lengths, *, row=LENGTH, seed=0, vocabulary=VOCABULARY, **settings):
    dataset = tf.data.Dataset.from_tensor_slices({"text": texts, "sentence_lengths": lengths})
    with seqio.utils.map_seed_manager(seed):
        for step in seqio_objectives.build("xlnet", **settings).preprocessors:
            step = seqio.utils.add_kwargs_to_transform(
                step,
                sequence_length={"inputs": row},
                output_features={"inputs": seqio.Feature(TaskVocabulary(vocabulary))},
            )
            dataset = step(dataset)
    whole = ("reused", "continued", "reversed")
    shapes = {name: [1] if name in whole else [row] for name in dataset.element_spec}
    dataset = dataset.padded_batch(1_000_000, shapes, padding_values=-1)
    [batch] = dataset.as_numpy_iterator()
    return {name: x[:, 0] if name in whole else x for name, x in batch.items()}


@functools.cache
def rows(**settings):
    """All rows of the text as one array a feature, [B, L], padded with -1, or [B]."""
    text = np.arange(FIRST, FIRST + TEXT, dtype=np.int32).reshape(DOCUMENTS, DOCUMENT)
    lengths = np.full([DOCUMENTS, SENTENCES], SENTENCE, np.int32)
    return examples(text, lengths, **{"group": GROUP, **settings})


def test_a_row_to_read():
    sentences = ["the man went to ##wards a store .", "he bought milk .", "we sang ."]
    words = " ".join(sentences).split()
    vocabulary = WordVocabulary(dict.fromkeys(words))
    ids = [vocabulary.encode(one) for one in sentences]
    settings = {"row": 20, "reuse": 0.4, "rate": 0.3, "context": 1, "backward": 0.0}
    found = examples(
        np.array([vocabulary.encode(" ".join(words))], np.int32),
        np.array([[len(one) for one in ids]], np.int32),
        vocabulary=vocabulary,
        **settings,
    )
    row = {name: x[0][x[0] >= 0].tolist() if x.ndim > 1 else x[0] for name, x in found.items()}
    #         the man went to ##wards a store .   he bought milk . [SEP] we sang . [SEP] [SEP] [CLS]
    weights = [1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0]
    order = [6, 0, 0, 4, 5, 0, 0, 0, 9, 10, 18, 9, 13, 14, 9, 9, 17, 16, 11]
    types = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2]
    text = "the man went to ##wards a store . he bought milk . [SEP] we sang . [SEP] [SEP] [CLS]"
    assert vocabulary.decode(row["inputs"]) == vocabulary.decode(row["targets"]) == text
    assert (row["loss_weights"], row["order"], row["token_types"]) == (weights, order, types)
    assert (row["reused"], row["continued"], row["reversed"]) == (8, 0, 0)


def first_rows(batch):
    """Whether each row is the first of its group."""
    return batch["continued"] == 0


def text_of(row):
    """The tokens of text of a row."""
    return row[row >= FIRST]


@pytest.mark.parametrize("backward", [0.0, 1.0])
def test_first_parts_are_all_the_text_one_after_the_other(backward):
    batch = rows(backward=backward)
    assert (batch["reversed"] == backward).all()
    parts = [row[:n] for row, n in zip(batch["inputs"], batch["reused"], strict=True)]
    assert first_rows(batch).sum() == DOCUMENTS // GROUP
    groups = np.split(np.arange(len(parts)), np.flatnonzero(first_rows(batch))[1:])
    for number, group in enumerate(groups):
        joined = np.concatenate([parts[row] for row in group])
        joined = joined[::-1] if backward else joined
        documents = joined.reshape(GROUP, DOCUMENT + 1)
        assert (documents[:, -1] == SEP).all()
        start = FIRST + number * GROUP * DOCUMENT
        expected = np.arange(start, start + GROUP * DOCUMENT)
        np.testing.assert_array_equal(documents[:, :-1].ravel(), expected)
        assert all(len(parts[row]) == LENGTH // 2 for row in group[:-1])


def second_part(row, reused):
    """A and B, B empty where there is none, and the special tokens after them."""
    part = row[reused:]
    part = part[part >= 0]
    assert part[-1] == CLS
    assert part[-2] == SEP
    return part


@pytest.mark.parametrize("backward", [0.0, 1.0])
def test_second_parts_go_on_from_the_first_and_half_of_them_elsewhere(backward):
    batch = rows(backward=backward)
    step = -1 if backward else 1
    elsewhere = full = 0
    for row, types, reused in zip(
        batch["inputs"], batch["token_types"], batch["reused"], strict=True
    ):
        part, own = second_part(row, reused), types[types >= 0]
        full += len(own) == LENGTH
        assert own[-1] == 2
        assert not own[:reused].any()
        assert np.array_equal(np.unique(own[reused:-1]), [0, 1] if 1 in own else [0])
        a, b = (part[:-1][own[reused:-1] == n] for n in (0, 1))
        assert a[-1] == SEP
        for one in (a, b):
            jumps = np.diff(one[one >= FIRST])
            assert (np.abs(jumps) == 1).all()
            assert (jumps == step).all()
        last, text = row[reused - 1], text_of(a)
        if len(text) and last >= FIRST:
            assert text[0] == last + step
        if len(text_of(b)) and len(text):
            away = (text_of(b)[0] - text[-1]) * step
            elsewhere += not 0 < away <= SENTENCE * 2
    # A group ends with two short rows; another's B may end before it is full.
    assert full / len(batch["inputs"]) > 0.98
    # Half of the rows, and those whose A has no end of a sentence within it.
    assert 0.45 < elsewhere / len(batch["inputs"]) < 0.6


def parts(batch, name, *, least=2000):
    """A feature of the first and of the second part of full rows."""
    full = (batch["inputs"] >= 0).all(axis=1)
    assert full.sum() > least
    return np.split(batch[name][full], [LENGTH // 2], axis=1)


@pytest.mark.parametrize("form", ["spans", "tail"])
def test_a_sixth_of_a_row_is_predicted_half_of_it_in_each_part_and_never_a_special_token(form):
    batch = rows(form=form)
    for number, tokens, weights in zip(
        (6, 5), parts(batch, "inputs"), parts(batch, "loss_weights"), strict=True
    ):
        assert (weights.sum(axis=1) == number).all()  # 11 of 64
        assert (tokens[weights == 1] >= FIRST).all()


def test_the_published_rows_have_85_of_512():
    text = np.arange(FIRST, FIRST + 8 * DOCUMENT, dtype=np.int32)[None]
    lengths = np.full([1, 8 * SENTENCES], SENTENCE, np.int32)
    batch = examples(text, lengths, row=512)
    assert batch["loss_weights"][0, :256].sum() == 43
    assert batch["loss_weights"][0].sum() == 85


def test_spans_have_their_lengths_and_their_context():
    draw = random.Random(0)
    starts = [place % 3 == 0 for place in range(2000)]
    found = [Spans(longest=5, context=6).sample(draw, starts, goal=250) for _ in range(60)]
    sizes = np.array([end - begin for one in found for begin, end in one[:-1]])
    assert len(sizes) > 5000
    for size, chance in enumerate(harmonic(5), start=1):
        deviation = np.sqrt(chance * (1 - chance) / len(sizes))
        assert abs(np.mean(sizes == size) - chance) < 4 * deviation
    assert [sum(end - begin for begin, end in one) for one in found] == [250] * len(found)
    gaps = []
    for one in found:
        assert all(starts[begin] for begin, _ in one)
        gaps += [after[0] - before[1] for before, after in itertools.pairwise(one)]
    # On average half of the context of one and half of the next one's, and a step to a word.
    mean = 6 * np.average(np.arange(1, 6), weights=harmonic(5)) + 1
    assert np.mean(gaps) == pytest.approx(mean, rel=0.03)


def test_single_tokens_are_any_of_the_text():
    batch = rows(form="tail")
    for tokens, weights in zip(parts(batch, "inputs"), parts(batch, "loss_weights"), strict=True):
        text = tokens >= FIRST
        share = (weights == 1).sum(axis=0) / text.sum(axis=0).clip(1)
        expected = weights.sum() / text.sum()
        common = text.mean(axis=0) > 0.5
        deviation = np.sqrt(expected / text.sum(axis=0)[common])
        assert (np.abs(share[common] - expected) < 5 * deviation).all()


@pytest.mark.parametrize("block", [0, 8])
def test_a_part_is_seen_before_the_next_and_its_context_before_what_is_predicted(block):
    batch = rows(block=block)
    before = np.full(len(parts(batch, "order")[0]), -1)
    for tokens, weights, order in zip(
        *(parts(batch, name) for name in ("inputs", "loss_weights", "order")), strict=True
    ):
        context = (weights == 0) & (tokens >= FIRST)
        first = order.min(axis=1)
        assert (first > before).all()
        assert np.array_equal(order == first[:, None], context)
        ranks = np.sort(np.where(context, -1 - np.arange(order.shape[1]), order), axis=1)
        assert (np.diff(ranks, axis=1) > 0).all()  # the others each have a rank of their own
        before = order.max(axis=1)
        later = np.argsort(np.where(context, 10_000, order), axis=1)[:, 0]  # seen first of them
        if block:
            blocks = np.arange(order.shape[1]) // block
            alone = np.where(context, 10_000, blocks)
            assert (blocks[later] == alone.min(axis=1)).all()
        else:
            # Any of six is the first as often as any other.
            place = (~context).cumsum(axis=1)[np.arange(len(later)), later]
            six = (~context).sum(axis=1) == 6
            counts = np.bincount(place[six], minlength=7)[1:]
            if six.sum() > 1000:
                assert np.abs(counts / six.sum() - 1 / 6).max() < 0.04


def test_half_of_the_groups_are_backward_and_rows_differ_with_the_seed():
    settings = {"group": 2, "form": "tail"}
    batch = rows(**settings)
    share = batch["reversed"][first_rows(batch)].mean()
    assert first_rows(batch).sum() == DOCUMENTS // 2
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(DOCUMENTS // 2)
    assert not rows(**settings, backward=0.0)["reversed"].any()
    other = rows(**settings, seed=1)
    assert not np.array_equal(batch["order"], other["order"])
    assert np.array_equal(batch["order"], rows.__wrapped__(**settings)["order"])


def test_spans_of_backward_text_begin_with_a_word_read_forward():
    batch = rows(backward=1.0, longest=1, context=4)
    starts = VOCABULARY.word_starts
    found = batch["inputs"][batch["loss_weights"] == 1]
    # Nearly all are spans of one, with a share of what fills up the rows.
    assert starts[found].mean() > 0.9 > starts[FIRST:].mean() + 0.2


def test_documents_without_text_leave_no_trace():
    tokens = np.array([5, 6, 7, 8, 9, 10])
    text = PermutedText.of(tokens, np.array([2, 1, 3]), np.array([0, 2, 0, 1]), end=3)
    assert text.tokens.tolist() == [5, 6, 7, 3, 8, 9, 10, 3]
    assert text.ends == [0, 2, 4, 8]
    assert text.reversed().tokens.tolist() == [3, 10, 9, 8, 3, 7, 6, 5]
    assert text.reversed().ends == [0, 4, 6, 8]
    nothing = PermutedText.of(np.zeros(0, int), np.zeros(0, int), np.array([0, 0]), end=3)
    assert (len(nothing.tokens), nothing.ends) == (0, [0])


XLNET = json.loads((Path(__file__).parents[1] / "golden" / "xlnet_rows.json").read_text())
EOD = 7  # in the table `special_symbols` of zihangdai/xlnet, data_utils.py


@pytest.fixture(scope="module")
def xlnet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("xlnet")
    (folder / "spiece.model").write_bytes(base64.b64decode(XLNET["model"]))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "XLNetTokenizer"}')
    return vocabularies.load(folder)


def released(documents):
    """The tokens, and where sentences end, by the loop of `_create_data` over lines of a file.

    A document is a list of sentences; in the file a blank line ends it.
    """
    tokens, sentence, kinds = [], True, []
    for line in itertools.chain.from_iterable([*lines, []] for lines in documents):
        if not line:
            sentence = not sentence
            line = [EOD]
        tokens.extend(line)
        kinds.extend([sentence] * len(line))
        sentence = not sentence
    changes = [n for n in range(1, len(kinds)) if kinds[n] != kinds[n - 1]]
    return tokens, [0, *changes, len(tokens)]


def test_documents_end_as_in_the_released_code(xlnet):
    special = SpecialTokens(xlnet)
    assert (special.eod, special.sep, special.cls) == (EOD, 4, 3)
    documents = [[[20, 21], [22]], [[23]], [[24, 25, 26], [27], [28, 29]]]
    lines = [line for document in documents for line in document]
    text = PermutedText.of(
        np.concatenate(lines),
        np.array([len(line) for line in lines]),
        np.array([len(document) for document in documents]),
        end=special.eod,
    )
    assert (text.tokens.tolist(), text.ends) == released(documents)


def test_an_end_of_a_document_is_a_token_like_any_other(xlnet):
    """In the released `_local_perm` only <sep> and <cls> are functional tokens."""
    assert SpecialTokens(xlnet).word_starts[EOD]  # `_is_start_piece`: it begins with "<"
    text = np.random.default_rng(0).integers(9, xlnet.vocab_size, [400, 12], dtype=np.int32)
    lengths = np.full([400, 3], 4, np.int32)
    batch = examples(text, lengths, vocabulary=xlnet, form="tail", group=400, backward=0.0)
    joined = np.concatenate(
        [row[:n] for row, n in zip(batch["inputs"], batch["reused"], strict=True)]
    )
    np.testing.assert_array_equal(joined.reshape(400, 13)[:, -1], EOD)
    for tokens, weights, order in zip(
        *(parts(batch, name, least=100) for name in ("inputs", "loss_weights", "order")),
        strict=True,
    ):
        ends, words = tokens == EOD, tokens > EOD + 1
        share = weights[words].mean()
        deviation = np.sqrt(share * (1 - share) / ends.sum())
        assert abs(weights[ends].mean() - share) < 4 * deviation
        context = (weights == 0) & (ends | words)
        assert np.array_equal(order == order.min(axis=1, keepdims=True), context)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"form": "words"}, r"form of xlnet='words'.*spans"),
        ({"rate": 1.0}, r"xlnet: rate must lie between 0 and 1"),
        ({"reuse": 0.0}, r"xlnet: reuse=0\.0 must lie between 0 and 1"),
        ({"longest": 0}, r"xlnet: longest=0 must be 1 or more"),
        ({"backward": 1.5}, r"xlnet: backward=1\.5 must be from 0 to 1"),
        ({"group": 0}, r"xlnet: group=0 must be 1 or more"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        seqio_objectives.build("xlnet", **settings)


def test_rows_without_room_are_refused_before_anything_is_read():
    with pytest.raises(ValueError, match=r"lengths\.inputs=64 with reuse=0\.9 have 57 and 7"):
        rows(reuse=0.9)


def batches(*, rows=2, length=24):
    """Batches of a task of 12 documents, each row with every second of them."""
    texts = [" ".join(f"w{n * 50 + i}" for i in range(30 + n)) for n in range(12)]
    vocabulary = WordVocabulary(f"w{n}" for n in range(12 * 50 + 30))
    add_document_task(
        "permuted",
        source=seqio.FunctionDataSource(
            lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices(
                {"text": texts}
            ),
            splits=["train"],
        ),
        vocabulary=vocabulary,
        objective=seqio_objectives.build("xlnet", group=3, backward=0.0),
    )
    made = converters.build("encoder", **examples_of("xlnet", {}).converter_settings)
    return SeqioBatches(
        "permuted",
        split="train",
        batch_size=rows,
        shards=rows,
        lengths={"inputs": length},
        converter=made.continued(end=SEP),
        shuffle=False,
    )


def test_a_row_goes_on_from_the_row_of_the_batch_before_and_from_a_saved_position():
    source = batches()
    found = [next(source) for _ in range(6)]
    assert found[0]["continued"].tolist() == [0, 0]
    for before, after in itertools.pairwise(found):
        for row in np.flatnonzero(after["continued"]):
            end = before["encoder_input_tokens"][row, before["reused"][row] - 1]
            begin = after["encoder_input_tokens"][row, 0]
            assert begin == end + 1 or SEP in (begin, end)
    shapes = {name: (x.shape, x.dtype.name) for name, x in found[0].items()}
    assert shapes["encoder_order"] == ((2, 24), "int32")
    assert shapes["reused"] == shapes["reversed"] == ((2,), "int32")
    again = batches()
    position = batches()
    for _ in range(3):
        next(position)
    again.restore(position.state())
    for expected in found[3:]:
        one = next(again)
        assert one.keys() == expected.keys()
        assert all(np.array_equal(one[name], x) for name, x in expected.items())
