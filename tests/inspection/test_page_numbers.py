"""The numbers of the page are those of the model."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from t5x_like import page
from t5x_like.nn import moe
from t5x_like.research.inspection import inspected, server
from tests.programs import tiny_encoder, tiny_writer

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog"]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of tiny models by system, each written once."""
    written = {}

    def folder(system):
        if system not in written:
            path = tmp_path_factory.mktemp(system) / "run"
            if system in ("bert", "electra", "bigbird_etc"):
                written[system] = tiny_encoder.write(path, system, words=WORDS)
            else:
                written[system] = tiny_writer.write(path, tiny_writer.settings(system))
        return written[system]

    return folder


@pytest.fixture(scope="module")
def models(folders):
    """Inspected models by system, each loaded once."""
    loaded = {}

    def model(system):
        if system not in loaded:
            loaded[system] = inspected.load(str(folders(system)))
        return loaded[system]

    return model


def probabilities(model, tokens, **given):
    """What `model(...)` gives for one row: [T, V]."""
    logits = np.float64(model.pretrained(input_ids=np.array([tokens]), **given).logits[0])
    grown = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return grown / grown.sum(axis=-1, keepdims=True)


def check_next(model, shown, following, expected):
    # The network has more rows than its vocabulary has pieces.
    known = expected[:, : model.vocabulary.vocab_size]
    for place, one in enumerate(shown[1:]):
        p = expected[place][one["id"]]
        assert one["probability"] == pytest.approx(p, abs=TOLERANCE)
        assert one["bits"] == pytest.approx(-np.log2(p), rel=1e-3)
        assert one["top"][0]["probability"] == pytest.approx(known[place].max(), abs=TOLERANCE)
    for one in following:
        assert one["probability"] == pytest.approx(expected[-1][one["id"]], abs=TOLERANCE)
    assert following[0]["probability"] == pytest.approx(known[-1].max(), abs=TOLERANCE)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        # GPT-2's letters for bytes: a blank, a word, a line end, half a character, a whole one, 5.
        (
            ["\u0120", "\u0120cat", "\u010a", "\u00c3", "\u00c3\u00a9", "\u0105"],
            [" ", " cat", "\n", "\u00c3", "\u00e9", "\\x05"],
        ),
        (["\u2581", "\u2581cat", "s", "\u00e9", "\x05"], [" ", " cat", "s", "\u00e9", "\\x05"]),
        (["[CLS]", "cat", "##s"], ["[CLS]", "cat", "##s"]),
    ],
)
def test_tokens_are_readable(models, pieces, expected):
    class Pieces:
        vocab_size = len(pieces)

        def piece(self, token):
            return pieces[token]

    model = dataclasses.replace(models("gpt2"), vocabulary=Pieces())
    shown = [model._described(token) for token in range(len(pieces) + 1)]
    assert [one["text"] for one in shown] == [*expected, f"<{len(pieces)}>"]
    assert [one["piece"] for one in shown[:-1]] == pieces


def test_the_sizes_of_a_model_are_its_network_s(models):
    for system in ("gpt2", "switch"):
        model = models(system)
        sizes = model.about()["sizes"]
        leaves = jax.tree.leaves(model.pretrained.params)
        assert sizes["parameters"] == sum(np.asarray(leaf).size for leaf in leaves)
        assert sizes["wide"] == model.pretrained.config["d_model"]
        assert ("experts" in sizes) == (system == "switch")


def test_examples_are_texts_that_a_model_can_show(models):
    for system in ("gpt2", "t5", "bert", "electra"):
        model = models(system)
        for text in model.about()["examples"]:
            found = server.answer([model], "/api/look", {"text": text})
            marks = [one for one in found["tokens"] if one["id"] == model.about()["mask"]]
            assert bool(marks) == (system == "bert")


def test_next_tokens_of_a_decoder(models):
    model = models("gpt2")
    tokens = model.read("The cat sat")
    found = server.answer([model], "/api/look", {"text": "The cat sat"})
    assert [one["id"] for one in found["tokens"]] == tokens
    check_next(model, found["tokens"], found["next"], probabilities(model, tokens))
    longer = [*tokens, found["next"][0]["id"]]  # as a click continues
    again = server.answer([model], "/api/look", {"tokens": longer})
    check_next(model, again["tokens"], again["next"], probabilities(model, longer))


def test_attention_and_the_last_layer_of_the_lens(models):
    model = models("gpt2")
    tokens = model.read("The cat sat")
    asked = {"tokens": tokens, "side": "", "layer": 1, "head": 1}
    found = server.answer([model], "/api/attention", asked)
    assert (found["sides"], found["layers"], found["heads"]) == (["decoder"], 2, 2)
    weights = np.array(found["weights"])
    assert weights.shape == (len(tokens), len(tokens))
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=TOLERANCE)
    assert np.abs(np.triu(weights, 1)).max() == 0
    _, collected = model.pretrained.module.apply(
        {"params": model.pretrained.params},
        {"decoder_input_tokens": np.array([tokens])},
        collect=("attention_scores",),
    )
    scores = np.float64(collected["decoder"].attention_scores[1, 0, 1])
    grown = np.exp(scores - scores.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(weights, grown / grown.sum(-1, keepdims=True), atol=TOLERANCE)
    expected = probabilities(model, tokens)
    lens = server.answer([model], "/api/lens", {"tokens": tokens})
    assert len(lens["layers"]) == 3
    own = [one["probability"] for one in lens["layers"][-1]]
    np.testing.assert_allclose(own, expected.max(axis=-1), atol=TOLERANCE)
    first = [one["probability"] for one in lens["layers"][0]]
    assert np.abs(np.array(first) - own).max() > 10 * TOLERANCE


@pytest.mark.slow
def test_masks_of_an_encoder(models):
    model = models("bert")
    found = server.answer([model], "/api/look", {"text": "the [MASK] sat"})
    tokens = [one["id"] for one in found["tokens"]]
    assert tokens[2] == model.about()["mask"]
    expected = probabilities(model, tokens)[2]
    known = expected[: model.vocabulary.vocab_size]
    for one in found["tokens"][2]["top"]:
        assert one["probability"] == pytest.approx(expected[one["id"]], abs=TOLERANCE)
    assert found["tokens"][2]["top"][0]["id"] == known.argmax()
    lens = server.answer([model], "/api/lens", {"tokens": tokens})
    assert lens["layers"][-1][2]["probability"] == pytest.approx(expected.max(), abs=TOLERANCE)


@pytest.mark.slow
def test_replaced_tokens(models):
    model = models("electra")
    found = server.answer([model], "/api/look", {"text": "the cat sat"})
    tokens = [one["id"] for one in found["tokens"]]
    logits = np.float64(model.pretrained(input_ids=np.array([tokens])).logits[0])
    replaced = [one["replaced"] for one in found["tokens"]]
    np.testing.assert_allclose(replaced, 1 / (1 + np.exp(-logits)), atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["t5", "switch"])
def test_what_an_encoder_decoder_generates(models, system):
    model = models(system)
    found = server.answer([model], "/api/look", {"text": "The cat"})
    tokens, targets = ([one["id"] for one in found[name]] for name in ("tokens", "targets"))
    assert targets[1:] == model.text.generate_tokens([tokens])[0]
    expected = probabilities(model, tokens, decoder_input_ids=np.array([targets]))
    check_next(model, found["targets"], found["next"], expected)
    asked = {"tokens": tokens, "targets": targets, "side": "cross", "layer": 0, "head": 1}
    found = server.answer([model], "/api/attention", asked)
    assert found["sides"] == ["encoder", "decoder", "cross"]
    weights = np.array(found["weights"])
    assert weights.shape == (len(targets), len(tokens))
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=TOLERANCE)
    last = model.vocabulary.vocab_size - 1
    text = server.answer([model], "/api/look", {"tokens": [9, last, 1], "targets": [0, last, 7, 8]})
    assert [(one["id"], one["filled"]) for one in text["filled"]] == [
        (9, False),
        (7, True),
        (8, True),
        (1, False),
    ]


def test_experts_of_each_token(models):
    model = models("switch")
    assert model.about()["routes"]
    tokens, targets = model.read("The cat sat on a mat"), [0, 7, 8, 9]
    batch = {
        f"{side}_{name}": np.array([row if name == "input_tokens" else [1] * len(row)])
        for side, row in (("encoder", tokens), ("decoder", targets))
        for name in ("input_tokens", "segment_ids")
    }
    params = {"params": model.pretrained.params}
    apply = jax.jit(functools.partial(model.pretrained.module.apply, mutable=["routing"]))
    _, sown = apply(params, batch)
    routing = moe.collect(sown["routing"])  # the encoder's layers first
    asked = {"tokens": tokens, "targets": targets, "layer": 0}
    layer = 0
    for side, row in (("encoder", tokens), ("decoder", targets)):
        found = server.answer([model], "/api/experts", {**asked, "side": side})
        assert (found["sides"], found["side"]) == (["encoder", "decoder"], side)
        assert [one["id"] for one in found["tokens"]] == row
        computed = [expert for one in found["tokens"] for expert in one["experts"]]
        counts = np.bincount(computed, minlength=found["experts"])
        chosen = np.round(np.asarray(routing["load"][layer]) * len(row))
        assert (counts <= chosen).all()
        dropped = sum(not one["experts"] for one in found["tokens"])
        assert dropped == (chosen - counts).sum() == round(routing["dropped"][layer] * len(row))
        layer += found["layers"]
    assert layer == len(routing["load"])
    with pytest.raises(ValueError, match="sparse layer 9: there are"):
        server.answer([model], "/api/experts", {**asked, "side": "", "layer": 9})
    with pytest.raises(ValueError, match="this gpt2 has no experts on the side ''"):
        server.answer([models("gpt2")], "/api/experts", {"tokens": [3], "side": "", "layer": 0})


@pytest.mark.slow
def test_there_is_no_lens_where_the_output_layer_does_not_read_the_last_layer(models):
    assert not models("bigbird_etc").about()["lens"]


@pytest.mark.parametrize(
    ("path", "asked", "message"),
    [
        ("/api/look", {"text": "x" * 10_001}, "10001 characters: at most 10000"),
        ("/api/look", {"text": "x" * 100}, "of 10. tokens: this model is shown 1 to 64"),
        ("/api/look", {"tokens": []}, "a text of 0 tokens"),
        ("/api/look", {"tokens": [384]}, "ids from 0 to 383"),
        ("/api/look", {"tokens": ["a"]}, "ids from 0 to 383"),
        ("/api/look", {"model": 1, "text": "a"}, "model=1: 0 to 0 allowed"),
        ("/api/look", {"text": 3}, "text=3 must be of type str"),
        ("/api/nothing", {"tokens": [3]}, "the path='/api/nothing' does not exist"),
        (
            "/api/attention",
            {"tokens": [3], "side": "", "layer": 2, "head": 0},
            "layer 2, head 0: there are 2 layers, 2 heads",
        ),
        (
            "/api/attention",
            {"tokens": [3], "side": "cross", "layer": 0, "head": 0},
            "no attention weights 'cross'",
        ),
        ("/api/layers", {"tokens": [3], "side": "cross"}, "has no layers on the side 'cross'"),
        ("/api/lens", {"tokens": [3], "targets": [0]}, "targets belong to a text"),
    ],
)
def test_a_bad_question_is_refused(models, path, asked, message):
    with pytest.raises(ValueError, match=message):
        server.answer([models("gpt2")], path, asked)


def refused(folder, capsys):
    with pytest.raises(SystemExit) as ended:
        page.main([f"--from={folder}"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_folder_without_a_model_is_one_line(tmp_path, capsys):
    assert f"there is no folder {tmp_path / 'nothing'}" in refused(tmp_path / "nothing", capsys)
    assert "no checkpoint at" in refused(tmp_path, capsys)


@pytest.mark.slow
def test_a_folder_without_a_tokenizer_is_one_line(tmp_path, capsys):
    folder = tiny_encoder.write(tmp_path / "run", "bert", words=WORDS)
    (folder / "vocab.txt").unlink()
    line = refused(folder, capsys)
    assert f"{folder} has no tokenizer that can be read: vocabulary=" in line
