"""Predictions of encoders: mask tokens, answers in windows, the same in any batch; errors."""

import json

import numpy as np
import pytest

from t5x_like import infer, vocabularies
from t5x_like.config import parse
from t5x_like.experiment.run import of_config
from t5x_like.inference import predictions
from t5x_like.inference.predictor import Predictor
from t5x_like.pretrained import from_pretrained
from tests.programs import command_flags, in_process, tiny_encoder

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog", "who", "?", "."]
LENGTH = 24
CONTEXT = "The cat sat on the mat. A dog sat on a cat. The dog sat on the dog, the cat on a dog."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_encoder.write(tmp_path_factory.mktemp("encoder") / "run", "bert", words=WORDS)


@pytest.fixture(scope="module")
def predictor(folder):
    """Makes predictors with heads, each once."""
    made = {}

    def make(head, *, batch_size=4, labels=(), **settings):
        key = str((head, batch_size, labels, settings))
        if key not in made:
            kept = {"head": head} if head == "pretraining" else {"head": head, "labels": 3}
            model = from_pretrained(folder, **kept)
            vocabulary = vocabularies.load(folder)
            prediction = predictions.make(
                predictions.name_of(model),
                vocabulary=vocabulary,
                labels=labels,
                length=LENGTH,
                settings=settings,
            )
            made[key] = Predictor(model, prediction, batch_size=batch_size)
        return made[key]

    return make


def test_masks_are_filled_in_with_the_likeliest_tokens(folder, predictor):
    vocabulary, model = vocabularies.load(folder), from_pretrained(folder)
    [predicted] = predictor("pretraining", top=3)([{"text_a": "the [MASK] sat on a <mask>"}])
    tokens = [2, *vocabulary.encode("the [MASK] sat on a [MASK]"), 3]
    logits = np.asarray(model(input_ids=np.array([tokens])).logits[0], np.float64)
    assert len(predicted["masks"]) == 2
    words = predicted["prediction"].split()
    for place, mask in zip((2, 6), predicted["masks"], strict=True):
        expected = np.exp(logits[place]) / np.exp(logits[place]).sum()
        # The model has 64 logits, of which the vocabulary has tokens only for the first.
        best = np.argsort(-expected[: vocabulary.vocab_size])[:3]
        assert [one["token"] for one in mask] == [vocabulary.pieces[token] for token in best]
        # Rows of other lengths sum in another order.
        found = [one["probability"] for one in mask]
        np.testing.assert_allclose(found, expected[best], rtol=1e-4)
        assert words[place - 1] == mask[0]["token"]


@pytest.mark.parametrize("top", [-1, 0, 65])
def test_more_likely_tokens_than_there_are_pieces_are_refused(predictor, top):
    with pytest.raises(ValueError, match=rf"predict.top={top} must be from 1 to \d+, all pieces"):
        predictor("pretraining", top=top)


ITEMS = {
    "pretraining": [{"text_a": f"{word} [MASK]"} for word in WORDS[:5]],
    "classification": [{"text_a": word, "text_b": "a mat"} for word in WORDS[:5]],
    "regression": [{"text": word} for word in WORDS[:5]],
    "tagging": [{"words": ["the", word]} for word in WORDS[:5]],
    "question_answering": [
        {"question": f"who {word} ?", "context": CONTEXT[:end]}
        for word, end in zip(WORDS, (9, 40, 80, 12, 60), strict=False)
    ],
}


@pytest.mark.parametrize("head", ITEMS)
def test_predictions_do_not_depend_on_the_batch(head, predictor):
    settings = {"stride": 4, "longest_question": 4} if head == "question_answering" else {}
    predict = predictor(head, **settings)
    together = predict(ITEMS[head])
    apart = [predict([item])[0] for item in ITEMS[head]]
    assert [one["prediction"] for one in together] == [one["prediction"] for one in apart]
    assert len(together) == 5


def test_classes_have_their_names_and_add_up(predictor):
    predicted = predictor("classification", labels=("no", "so-so", "yes"))(ITEMS["classification"])
    for one in predicted:
        assert list(one["probabilities"]) == ["no", "so-so", "yes"]
        assert sum(one["probabilities"].values()) == pytest.approx(1, abs=1e-5)  # float32
        assert one["probabilities"][one["prediction"]] == max(one["probabilities"].values())
    assert predictor("classification")([{"text_a": "a"}])[0]["prediction"] in ("0", "1", "2")


def test_words_that_do_not_fit_have_no_tag(predictor):
    [predicted] = predictor("tagging", labels=("A", "B", "C"))([{"words": "the cat " * 15}])
    assert len(predicted["prediction"]) == 30
    assert set(predicted["prediction"][:22]) <= {"A", "B", "C"}
    assert predicted["prediction"][22:] == [None] * 8


def test_an_answer_is_a_part_of_the_context_under_the_limit(predictor):
    settings = {"stride": 4, "longest_question": 4, "longest_answer": 2}
    item = {"question": "who?", "context": CONTEXT}
    [predicted] = predictor("question_answering", **settings)([item])
    assert predicted["prediction"] == predicted["answer"] != ""
    assert predicted["answer"] in CONTEXT
    assert len(predicted["answer"].split()) <= 2
    [none] = predictor(
        "question_answering",
        **settings,
        no_answer=True,
        null_threshold=predicted["null_margin"] - 1,
    )([item])
    assert (none["prediction"], none["answer"]) == ("", predicted["answer"])
    [blank] = predictor("question_answering", **settings)([{"question": "who?", "context": " "}])
    assert blank["prediction"] == ""


@pytest.mark.parametrize(
    ("head", "item", "message"),
    [
        ("pretraining", {"text_a": "the cat"}, r"'the cat' has no \[MASK\] .*: {\"text_a\""),
        ("classification", {"txt": "a"}, "needs the string 'text_a', and has txt"),
        ("tagging", {"words": []}, "needs `words`"),
        ("question_answering", {"text_a": "who?"}, "needs the string 'question'"),
    ],
)
def test_an_item_that_lacks_something_is_an_error(head, item, message, predictor):
    settings = {"stride": 4, "longest_question": 4} if head == "question_answering" else {}
    with pytest.raises(ValueError, match=message):
        predictor(head, **settings)([item])


def test_other_mistakes_are_errors(predictor):
    with pytest.raises(ValueError, match=r"predict\.tpo does not exist. Did you mean 'top'"):
        predictor("pretraining", tpo=3)
    with pytest.raises(ValueError, match=r"model.head='features': the system bert is not trained"):
        predictor("features")


def test_infer_fills_in_the_lines_of_standard_input(folder, tmp_path, monkeypatch):
    made = tiny_encoder.settings("bert")
    made.workdir, made.data.vocabulary = str(folder), str(folder)
    made.data.lengths = {"inputs": LENGTH}
    made.data.batch_size = 2
    made.data.module = "data/text_files.py"
    of_config(made)
    output = tmp_path / "predictions.jsonl"
    command_flags.give(monkeypatch, input="-", output=str(output))
    lines = ["the [MASK] sat .", '{"text_a": "the cat", "text_b": "a [MASK]"}', "[MASK]"]
    monkeypatch.setattr("sys.stdin", in_process.standard_input("\n".join(lines) + "\n"))
    infer.main(parse(made))
    predicted = [json.loads(line) for line in output.read_text().splitlines()]
    assert [one["inputs"] for one in predicted] == [lines[0], json.loads(lines[1]), lines[2]]
    assert all(len(one["masks"]) == 1 and len(one["masks"][0]) == 5 for one in predicted)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("rows.csv", 'sentence,text_b,id\n"the cat, a mat",on,1\nsat,a,2\n'),
        ("rows.tsv", "sentence\ttext_b\tid\nthe cat, a mat\ton\t1\nsat\ta\t2\n"),
        (
            "rows.jsonl",
            '{"text_a": "the cat, a mat", "text_b": "on", "id": "1", "sentence": "x"}\n',
        ),
    ],
)
def test_tables_have_the_columns_of_the_run(file, content, predictor, tmp_path):
    (tmp_path / file).write_text(content)
    made, output = predictor("classification", labels=("a", "b", "c")), tmp_path / "out.jsonl"
    infer.predict_lines(
        made, str(tmp_path / file), str(output), columns={"text_a": "sentence", "label": "label"}
    )
    first, *more = (json.loads(line) for line in output.read_text().splitlines())
    [expected] = made([{"text_a": "the cat, a mat", "text_b": "on"}])
    assert first["prediction"] == expected["prediction"]
    assert first["probabilities"] == pytest.approx(expected["probabilities"])
    assert first["inputs"]["id"] == "1"
    assert len(more) == (file != "rows.jsonl")


def test_a_json_value_is_no_file_of_lines(predictor, tmp_path):
    (tmp_path / "rows.json").write_text('[{"text_a": "the cat"}]')
    with pytest.raises(ValueError, match=r"rows\.json' is one JSON value: write a row a line"):
        infer.predict_lines(
            predictor("classification"), str(tmp_path / "rows.json"), "-", columns={}
        )


@pytest.mark.parametrize("flag", ["interactive", "stream", "log_probs"])
def test_an_encoder_neither_types_nor_converses(folder, flag, monkeypatch, capsys):
    made = tiny_encoder.settings("bert")
    made.workdir, made.data.vocabulary = str(folder), str(folder)
    given = {} if flag == "interactive" else {"input": "-"}
    command_flags.give(monkeypatch, **{flag: True}, **given)
    with pytest.raises(SystemExit):
        infer.main(parse(made))
    assert f"--{flag} needs a model that generates text" in capsys.readouterr().err


def test_infer_shows_held_out_texts_with_their_masks_filled_in(
    folder, tmp_path, monkeypatch, capsys
):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"The cat sat on a {word}. A dog sat.\n" for word in WORDS * 30))
    made = tiny_encoder.settings("bert")
    made.workdir, made.data.vocabulary = str(folder), str(folder)
    made.data.module, made.data.task = "data/text_files.py", "text_files"
    made.data.settings = {"files": str(text), "held_out": 0.5}
    made.data.objective, made.data.converter = "bert", "encoder"
    made.data.lengths = {"inputs": LENGTH}
    made.data.batch_size = 8
    command_flags.give(monkeypatch, examples=2, output="-")
    infer.main(parse(made))
    shown = capsys.readouterr().out
    assert shown.count("text_a: ") == shown.count("model: ") == shown.count("original: ") == 2
    assert "[MASK]" in shown
    for line in shown.splitlines():
        assert "[MASK]" not in line or line.lstrip().startswith("text_")
