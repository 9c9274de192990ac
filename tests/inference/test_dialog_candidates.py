"""Candidates of one cache, their ratings beside a fresh forward pass, ranking, the terminal."""

import io
import sys
import types

import jax
import numpy as np
import pytest

from t5x_like import infer
from t5x_like.batches import dialog_rows
from t5x_like.inference import dialog_model
from t5x_like.inference.dialog_model import (
    Candidate,
    CandidateSampler,
    DialogModel,
    DialogSettings,
    read_settings,
)
from t5x_like.inference.likelihood import PromptFormat
from tests.programs import dialog_models

# Float32 sums in another order: the prompt is padded here and not there.
ROUNDING = 2e-5
CONTEXTS = [["w1 w2", "w3", "w4 w5 w6"], ["w7"]]


@pytest.fixture(scope="module")
def model():
    return dialog_models.make()


@pytest.fixture(scope="module")
def sampled(model):
    sampler = CandidateSampler(model, DialogSettings(candidates=4, seed=3))
    return sampler([dialog_rows.response_prompt(one) for one in CONTEXTS])


def test_ratings_are_those_of_a_fresh_forward_pass_over_the_same_tokens(model, sampled):
    forward = jax.jit(
        lambda params, tokens: model.pretrained.module.apply(
            {"params": params}, {"decoder_input_tokens": tokens}
        )
    )
    ids = list(dialog_rows.rating_ids(model.vocabulary))
    sizes, seen = set(), set()
    for context, candidates in zip(CONTEXTS, sampled, strict=True):
        prompt = model.prompt(dialog_rows.response_prompt(context))
        for one in candidates:
            sizes.add(len(one.tokens))
            for name, rating in one.ratings.items():
                asked = model.vocabulary.encode(dialog_rows.attribute(name))
                text = [model.prompt_format.start, *prompt, *one.tokens, *asked]
                row = np.zeros((1, 32), np.int32)  # causal: padding behind changes nothing
                row[0, : len(text)] = text
                logits = np.asarray(forward(model.pretrained.params, row), np.float64)
                zero, first = logits[0, len(text) - 1, ids]
                np.testing.assert_allclose(rating, 1 / (1 + np.exp(zero - first)), atol=ROUNDING)
                seen.add(round(rating, 3))
    assert len(sizes) > 2  # some ended early
    assert max(sizes) == model.new_tokens  # others were cut off
    assert len(seen) > 20


def test_a_prefix_lm_is_refused_since_it_would_rate_otherwise_than_it_was_trained():
    form = PromptFormat(length=8, sees_prompt=True)
    prefix_lm = types.SimpleNamespace(answers=False, prompt_format=form)
    with pytest.raises(ValueError, match="dialog needs a causal language model"):
        CandidateSampler(prefix_lm, DialogSettings())


def test_a_prompt_is_read_once_for_all_of_its_candidates(model, monkeypatch):
    prefill, shapes = model.pretrained.generator.prefill, []

    def recorded(arguments, **settings):
        shapes.append(arguments["decoder_input_tokens"].shape)
        return prefill(arguments, **settings)

    monkeypatch.setattr(model.pretrained.generator, "prefill", recorded)
    [candidates] = CandidateSampler(model, DialogSettings(candidates=4, seed=3))(["w1 RESPONSE"])
    assert shapes == [(1, 16)]
    assert len(candidates) == 4
    assert len({tuple(one.tokens) for one in candidates}) > 1


def test_the_text_is_that_of_the_tokens(model, sampled):
    for one in sampled[0]:
        assert one.text == model.vocabulary.decode(one.tokens)
        assert not any(map(model.is_end, one.tokens))


def test_the_best_of_the_safe_candidates_is_the_reply(model, monkeypatch):
    def candidate(text, sensible, specific, interesting, unsafe):
        names = dialog_rows.ATTRIBUTES
        values = (sensible, specific, interesting, unsafe)
        return Candidate([], text, dict(zip(names, values, strict=True)))

    found = [
        candidate("unsafe", 1, 1, 1, 0.6),
        candidate("specific", 0.5, 1, 0.9, 0.1),  # 3.4
        candidate("sensible", 0.9, 0.5, 0.3, 0.5),  # 3.5, at the threshold
    ]
    own = DialogModel(model, DialogSettings(candidates=3))
    monkeypatch.setattr(own, "_sample", lambda prompts, seed: [found])
    [reply] = own.reply([["w1"]])
    assert reply.text == "sensible"
    assert reply.candidates == found
    own.settings = read_settings({"unsafe_above": 0.05, "refusal": "No."})
    [reply] = own.reply([["w1"]])
    assert (reply.text, reply.base) == ("No.", None)


def test_a_role_is_a_beginning_of_every_dialog(model, monkeypatch):
    own = DialogModel(model, DialogSettings(role=("w1", "w2")))
    asked = []
    monkeypatch.setattr(own, "_sample", lambda prompts, seed: asked.extend(prompts) or [])
    own.reply([["w3"]])
    assert asked == ["w1 TURN w2 TURN w3 RESPONSE"]


def test_a_dialog_in_the_terminal_keeps_its_turns(model, monkeypatch):
    own = DialogModel(model, DialogSettings(candidates=4))
    contexts, reply = [], own.reply

    def recorded(asked, **settings):
        contexts.extend(list(one) for one in asked)
        return reply(asked, **settings)

    monkeypatch.setattr(own, "reply", recorded)
    out = io.StringIO()
    dialog_model.talk(own, lines=["w1\n", "w2\n", "\n", "w3\n"], out=out)
    assert [len(one) for one in contexts] == [1, 3, 1]
    assert contexts[1][0] == "w1"
    assert contexts[1][1] in out.getvalue()
    assert out.getvalue().count("best of 4: sensible") == 3


def test_infer_talks_with_a_dialog_model(model, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("w1\n"))
    infer.talk(model, DialogSettings(candidates=4))
    assert "best of 4: sensible" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"candidate": 4}, "dialog.candidate does not exist. Did you mean 'candidates'"),
        ({"candidates": 0}, "dialog.candidates=0 must be 1 or more"),
        ({"unsafe_above": 2.0}, "dialog.unsafe_above=2.0 must be a probability"),
        ({"weights": {"unsafe": 1.0}}, "dialog.weights='unsafe' does not exist"),
        ({"calculator": "yes"}, "dialog.calculator='yes' must be True or False"),
        ({"role": ("Hi.",)}, "dialog.role has 1 turns: give an even number"),
    ],
)
def test_a_bad_setting_is_one_line(settings, message):
    with pytest.raises(ValueError, match=message) as error:
        read_settings(settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("1", "w1"), "the rating 0 becomes the tokens \\[2\\], but it must be one known token"),
        (("0", "00"), "the rating 1 becomes the tokens \\[2\\]"),
    ],
)
def test_ratings_must_be_single_tokens(words, message):
    model = dialog_models.make(vocabulary=dialog_models.Words(words))
    with pytest.raises(ValueError, match=message):
        CandidateSampler(model, DialogSettings())
