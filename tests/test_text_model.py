"""Scoring and writing text, for every system that writes: any batch, any sampler, any padding."""

import functools

import numpy as np
import pytest

from t5x_like import partitioning, text_model
from t5x_like.evaluation.likelihood import Pair
from t5x_like.hf import from_pretrained
from tests.programs import tiny_writer

# Each system that writes text, and settings of its own.
SYSTEMS = {
    "gpt2": {},
    "t5": {},
    "t5 as a prefix lm": {"architecture": "prefix_decoder"},
}
SAMPLERS = {
    "greedy": {},
    "beams": {"num_beams": 3, "length_penalty": 0.6},
    "no repetition": {"no_repeat_ngram_size": 2, "min_new_tokens": 4},
    "top_k": {"do_sample": True, "top_k": 3},
    "top_p": {"do_sample": True, "top_p": 0.7, "temperature": 0.8},
}
PROMPTS = ["A", "The cat sat", "naïve — 世界", "x" * 100]
# Float32 sums over other lengths of padding differ in their order.
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=SYSTEMS)
def made(request):
    own = tiny_writer.settings(request.param.split()[0], **SYSTEMS[request.param])
    if "prefix" in request.param:
        own.data.objective, own.data.converter = "prefix_lm", "prefix_lm"
        own.data.lengths = {"inputs": 32, "targets": 32}
    return own


@pytest.fixture(scope="module")
def folder(made, tmp_path_factory):
    return tiny_writer.write(tmp_path_factory.mktemp("writer") / "run", made)


@pytest.fixture(scope="module")
def build(made, folder):
    """Makes the text model with settings of `decode`, each once."""

    @functools.cache
    def build(*decode, mesh=None):
        own = made.copy_and_resolve_references()
        own.decode = {"max_new_tokens": 12, **dict(decode)}
        return text_model.build(from_pretrained(folder, mesh=mesh), own)

    return build


def log_softmax(logits):
    """In float64, by NumPy alone."""
    shifted = np.float64(logits) - np.max(logits, axis=-1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))


def logits_of(model, pair):
    """The logits for each token of a continuation, of one row without any padding."""
    prompt, after = np.array(pair.prompt), np.array(pair.continuation)
    start = [model.form.start]
    if model.encodes:
        batch = {
            "encoder_input_tokens": prompt[None],
            "decoder_input_tokens": np.array([[*start, *after[:-1]]]),
        }
        skipped = 0
    else:
        row = np.array([*start, *prompt, *after])[None, :-1]
        batch = {"decoder_input_tokens": row}
        if model.form.sees_prompt:
            batch["decoder_causal_attention"] = np.arange(row.shape[1])[None] <= len(prompt)
        skipped = len(prompt)
    module, params = model.pretrained.module, model.pretrained.params
    return np.asarray(module.apply({"params": params}, batch)[0, skipped:])


def test_scores_are_the_log_softmax_of_the_logits_at_the_continuation(build):
    model = build()
    pairs = [(prompt, after) for prompt in PROMPTS[:3] for after in ("a", " dog on it")]
    scores = model.score(pairs)
    for pair, score in zip(pairs, scores, strict=True):
        tokens = model.pair(*pair)
        logits = logits_of(model, tokens)
        expected = log_softmax(logits)[np.arange(len(logits)), np.array(tokens.continuation)]
        np.testing.assert_allclose(score.log_probs, expected, atol=TOLERANCE, rtol=0)
        assert score.total == pytest.approx(expected.sum(), abs=TOLERANCE * len(expected))
        assert score.tokens == len(tokens.continuation)
        assert score.per_token == pytest.approx(expected.mean(), abs=TOLERANCE)
        assert score.greedy == bool(np.all(logits.argmax(-1) == np.array(tokens.continuation)))


def test_what_greedy_decoding_writes_is_what_it_would_have_said(build):
    model = build()
    prompts = [model.prompt(text) for text in PROMPTS[:3]]
    written = model.generate_tokens(prompts)
    assert all(score.greedy for score in model.score_written(prompts, written))
    other = [[*tokens[:-1], (tokens[-1] + 1) % 256 + 3] for tokens in written]
    assert not any(score.greedy for score in model.score_written(prompts, other))


def test_the_probabilities_of_all_next_tokens_are_one(build):
    model = build()
    prompt = model.prompt("The")
    scores = model.score_tokens([Pair(prompt, [token]) for token in range(384)])
    assert sum(np.exp(score.total) for score in scores) == pytest.approx(1, abs=1e-5)
    assert sum(score.greedy for score in scores) == 1


def test_a_mesh_changes_no_score(build):
    pairs = [(prompt, after) for prompt in PROMPTS for after in ("a", " dog")]
    mesh = partitioning.make_mesh({"data": 4, "model": 2})
    for one, two in zip(build().score(pairs), build(mesh=mesh).score(pairs), strict=True):
        np.testing.assert_allclose(one.log_probs, two.log_probs, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_prompts_of_unequal_length_are_continued_as_each_alone(build, sampler):
    if "do_sample" in SAMPLERS[sampler]:
        # What is drawn depends on the row: each prompt in the first one, by the same numbers.
        orders = [[*PROMPTS[n:], *PROMPTS[:n]] for n in range(len(PROMPTS))]
    else:
        orders = [[prompt] for prompt in PROMPTS]
    model = build(*SAMPLERS[sampler].items())
    together = model.generate(PROMPTS)
    assert len(set(together)) > 1
    alone = [model.generate(order)[0] for order in orders]
    if "do_sample" in SAMPLERS[sampler]:
        together = [model.generate([prompt])[0] for prompt in PROMPTS]
    assert alone == together
