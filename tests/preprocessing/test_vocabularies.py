"""Vocabularies: T5's ids, sentinels at the end, training that repeats itself, errors that help."""

import io

import pytest
import sentencepiece

from t5x_like import vocabularies
from t5x_like.preprocessing.task_vocabulary import TaskVocabulary
from t5x_like.vocabularies.trainers import train
from tests.programs import xlm_r

TEXTS = [f"The value of item {n} is {n * n}, and its name is café number {n}." for n in range(200)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "deep" / "small.model"
    train(TEXTS, vocab_size=80, output=path)
    return path


@pytest.fixture(scope="module")
def vocabulary(model):
    return vocabularies.load(model)


def test_special_ids_are_those_of_t5(vocabulary):
    assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 2)
    assert vocabulary.vocab_size == 80 + 100


def test_pieces_are_those_of_the_model(vocabulary):
    model = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model)
    pieces = [vocabulary.piece(token) for token in range(vocabulary.vocab_size)]
    assert pieces == [model.IdToPiece(token) for token in range(len(model))]
    assert (pieces[1], pieces[-1]) == ("</s>", "\u2581<extra_id_0>")


def test_sentinels_are_the_last_ids_counted_down(vocabulary):
    last = vocabulary.vocab_size - 1
    for number in (0, 1, 57, 99):
        assert vocabulary.encode(f"<extra_id_{number}>") == [last - number]
        assert vocabulary.decode([last - number]) == f"<extra_id_{number}>"


def test_text_survives_encoding_by_python_and_by_tensorflow(vocabulary):
    ids = vocabulary.encode(TEXTS[17])
    assert vocabulary.decode(ids) == TEXTS[17]
    assert TaskVocabulary(vocabulary).encode_tf(TEXTS[17]).numpy().tolist() == ids


@pytest.mark.parametrize(("spec", "size"), [("bytes", 359), ("bytes:0", 259), ("bytes:125", 384)])
def test_bytes(spec, size):
    vocabulary = vocabularies.load(spec)
    assert vocabulary.vocab_size == size
    assert vocabulary.encode("é") == [0xC3 + 3, 0xA9 + 3]
    assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 2)


def test_the_number_of_sentinels_can_be_chosen(model):
    assert vocabularies.load(model, sentinels=7).vocab_size == 87
    assert vocabularies.load("bytes", sentinels=7) == vocabularies.load("bytes:7")


def test_sentinels_that_a_model_has_are_not_added_again(model, tmp_path):
    path = tmp_path / "mt5" / "spiece.model"
    path.parent.mkdir()
    path.write_bytes(vocabularies.load(model, sentinels=5).model)
    found = vocabularies.load(path.parent)
    assert (found.vocab_size, found.extra_ids) == (85, 5)
    assert found.encode("<extra_id_0>") == [84]


def test_a_folder_of_xlm_r_has_the_ids_of_its_tokenizer(tmp_path):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"under other ids")
    with pytest.raises(ValueError, match=r"take tokenizer.json of the same model"):
        vocabularies.load(tmp_path / "sentencepiece.bpe.model")
    xlm_r.write_tokenizer(tmp_path, words=["value", "item"])
    found = vocabularies.load(tmp_path)
    assert (found.cls_id, found.pad_id, found.sep_id, found.unk_id) == (0, 1, 2, 3)
    assert [found.pieces[one] for one in found.encode("item value")] == [
        "\u2581item",
        "\u2581value",
    ]


def test_a_folder_with_one_model_stands_for_it(model, vocabulary):
    assert vocabularies.load(model.parent) == vocabulary


def test_training_again_gives_the_same_bytes(model, tmp_path):
    train(iter(TEXTS), vocab_size=80, output=tmp_path / "again.model")
    assert (tmp_path / "again.model").read_bytes() == model.read_bytes()
    assert [file.name for file in tmp_path.iterdir()] == ["again.model"]


def test_bytes_stand_in_for_characters_that_are_not_covered(tmp_path, vocabulary):
    train(TEXTS, vocab_size=340, output=tmp_path / "bytes.model", byte_fallback=True)
    fallback = vocabularies.load(tmp_path / "bytes.model")
    assert fallback.unk_id not in fallback.encode("日本")
    assert fallback.decode(fallback.encode("日本")) == "日本"
    assert vocabulary.unk_id in vocabulary.encode("日本")


def test_digits_can_be_split(tmp_path):
    train(TEXTS, vocab_size=38, output=tmp_path / "digits.model", split_digits=True)
    pieces = vocabularies.load(tmp_path / "digits.model").tokenizer.EncodeAsPieces("value 1024")
    assert pieces[-4:] == ["1", "0", "2", "4"]


def test_chosen_words_are_one_piece_each(tmp_path, vocabulary):
    train(TEXTS, vocab_size=40, output=tmp_path / "words.model", whole_words=["RATE", "1"])
    loaded = vocabularies.load(tmp_path / "words.model")
    assert [len(loaded.encode(text)) for text in ("RATE", " 1", "RATE 1")] == [1, 1, 2]
    assert loaded.decode(loaded.encode("RATE 1")) == "RATE 1"
    assert len(vocabulary.encode("RATE")) > 1


@pytest.mark.parametrize(("kind", "size"), [("unigram", 22), ("albert", 24)])
def test_every_word_is_one_piece_and_other_words_are_spelled(tmp_path, kind, size):
    texts = ["a rope , the page .", "the page , a lora ."] * 50
    train(texts, kind=kind, vocab_size=size, output=tmp_path / "v.model", every_word=True)
    loaded = vocabularies.load(tmp_path / "v.model")
    assert len(loaded.encode(texts[0])) == len(texts[0].split())
    other = loaded.encode("the pear")
    assert loaded.unk_id not in other
    assert loaded.decode(other) == "the pear"


def test_characters_can_be_kept_that_nfkc_would_replace(tmp_path):
    texts, text = [f"Of x² + {n} half is ½ of it." for n in range(50)], "x²\n½"
    decoded = {}
    for keep in (False, True):
        path = tmp_path / f"{keep}.model"
        train(texts, vocab_size=286, output=path, byte_fallback=True, keep_characters=keep)
        loaded = vocabularies.load(path)
        decoded[keep] = loaded.decode(loaded.encode(text))
    assert decoded == {False: "x2 1\u20442", True: text}


def test_a_line_of_any_length_is_trained_on(tmp_path):
    text = " ".join(f"word{n % 50}" for n in range(20_000))
    train([text], vocab_size=20, output=tmp_path / "long.model")
    assert "▁word" in vocabularies.load(tmp_path / "long.model").tokenizer.EncodeAsPieces("word7")


def test_a_missing_file_names_the_nearest(model):
    with pytest.raises(ValueError, match=r"smal\.model' does not exist.* mean '.*small\.model'"):
        vocabularies.load(model.parent / "smal.model")
    with pytest.raises(ValueError, match=r"'byte' does not exist.* mean 'bytes'"):
        vocabularies.load("byte")


@pytest.mark.parametrize("spec", ["bytes:", "bytes:many", "bytes:-1"])
def test_a_bad_number_of_byte_sentinels(spec):
    with pytest.raises(ValueError, match=f"vocabulary='{spec}'"):
        vocabularies.load(spec)


def test_a_file_that_is_no_model(tmp_path):
    (tmp_path / "text.model").write_text("This is not a protocol buffer.")
    with pytest.raises(ValueError, match="is not a SentencePiece model"):
        vocabularies.load(tmp_path / "text.model")


def test_a_model_with_other_special_ids(tmp_path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=80, minloglevel=2
    )
    (tmp_path / "other.model").write_bytes(model.getvalue())
    with pytest.raises(ValueError, match=r"ids \(-1, 2, 0\)"):
        vocabularies.load(tmp_path / "other.model")


def test_a_size_that_the_text_does_not_allow(tmp_path):
    with pytest.raises(ValueError, match=r"--size=5000: .* <= \d+"):
        train(TEXTS, vocab_size=5000, output=tmp_path / "large.model")
    with pytest.raises(ValueError, match=r"--size=9: .* smaller than required_chars"):
        train(TEXTS, vocab_size=9, output=tmp_path / "small.model")
    with pytest.raises(ValueError, match="all documents are empty"):
        train(["", "\n \n"], vocab_size=80, output=tmp_path / "none.model")
    assert list(tmp_path.iterdir()) == []
