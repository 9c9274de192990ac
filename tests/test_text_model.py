"""Scoring and writing text, for every system that writes: any batch, any sampler, any padding."""

import functools

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5x_like import partitioning
from t5x_like.decoding.decoder_contract import longest_rows
from t5x_like.experiment.run import of_config
from t5x_like.inference import text_model
from t5x_like.inference.likelihood import PromptFormat, Scorer, TokenPair
from t5x_like.pretrained import from_pretrained
from t5x_like.vocabularies.trainers import train
from tests.programs import tiny_writer

# Each system that writes text, and settings of its own.
SYSTEMS = {
    "gpt2": {},
    "t5": {},
    "t5 as a prefix lm": {"architecture": "prefix_decoder"},
    "gpt": {},
    "gpt3": {"window": 4},
    "gopher": {},
    "transformer_xl": {},
    "lamda": {},
    "palm": {},
    "llama": {},
    "llama with a window": {"window": 4},
    "transformer": {},
    "bart": {"sep_id": 1, "padding": 0},
    "mass": {},
}
QUICK = ("gpt2", "t5")
SAMPLERS = {
    "greedy": {},
    "beams": {"num_beams": 3, "length_penalty": 0.6},
    "no repetition": {"no_repeat_ngram_size": 2, "min_new_tokens": 4},
    "top_k": {"do_sample": True, "top_k": 3},
    "top_p": {"do_sample": True, "top_p": 0.7, "temperature": 0.8},
}
PROMPTS = ["The cat", "A", "ï 世界"]
# Float32 sums over other lengths of padding differ in their order.
TOLERANCE = 1e-4


def slow_unless(quick, names):
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture(scope="module", params=slow_unless(QUICK, SYSTEMS))
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
        return text_model.build(from_pretrained(folder, mesh=mesh), of_config(own).parts[0])

    return build


def log_softmax(logits):
    """In float64, by NumPy alone."""
    shifted = np.float64(logits) - np.max(logits, axis=-1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))


def logits_of(model, pair):
    """The logits for each token of a continuation, of one row without any padding."""
    prompt, after = np.array(pair.prompt), np.array(pair.continuation)
    start = [model.prompt_format.start]
    if model.encodes:
        batch = {
            "encoder_input_tokens": prompt[None],
            "decoder_input_tokens": np.array([[*start, *after[:-1]]]),
        }
        skipped = 0
    else:
        row = np.array([*start, *prompt, *after])[None, :-1]
        batch = {"decoder_input_tokens": row}
        if model.prompt_format.sees_prompt:
            batch["decoder_causal_attention"] = np.arange(row.shape[1])[None] <= len(prompt)
        skipped = len(prompt)
    apply = jax.jit(model.pretrained.module.apply)
    return np.asarray(apply({"params": model.pretrained.params}, batch)[0, skipped:])


def test_scores_are_the_log_softmax_of_the_logits_at_the_continuation(build):
    model = build()
    pairs = [("The cat", " sat"), ("A", " dog on it")]
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


def test_greedily_generated_tokens_are_the_likeliest(build):
    model = build()
    prompts = [model.prompt(text) for text in PROMPTS]
    written = model.generate_tokens(prompts)
    assert all(score.greedy for score in model.score_written(prompts, written))
    end = model.vocabulary.eos_id  # the last token of a text that is empty
    lasts = [tokens[-1] if tokens else end for tokens in written]
    other = [
        [*tokens[:-1], (last + 1) % 256 + 3] for tokens, last in zip(written, lasts, strict=True)
    ]
    assert not any(score.greedy for score in model.score_written(prompts, other))


def test_samples_of_equal_prompts_differ_between_batches_and_greedy_text_is_without_sampling(build):
    model = build(("do_sample", True), ("temperature", 2.0), ("top_k", 0))
    prompts = [model.prompt("The cat")] * (3 * model.batch_size)
    written = model.generate_tokens(prompts)
    assert len(set(map(tuple, written))) > len(prompts) - 3
    assert written == model.generate_tokens(prompts)
    assert written[:8] == model.generate_tokens(prompts[:8])
    assert (model.samples, model.greedy().samples, build().samples) == (True, False, False)
    assert model.greedy().generate_tokens(prompts[:1]) == build().generate_tokens(prompts[:1])


def test_the_probabilities_of_all_next_tokens_are_one(build):
    model = build()
    prompt = model.prompt("The")
    scores = model.score_tokens([TokenPair(prompt, [token]) for token in range(384)])
    assert sum(np.exp(score.total) for score in scores) == pytest.approx(1, abs=1e-5)
    assert sum(score.greedy for score in scores) == 1


def test_a_mesh_changes_no_score(build):
    pairs = [(prompt, " dog") for prompt in PROMPTS]
    mesh = partitioning.make_mesh({"data": 4, "model": 2})
    for one, two in zip(build().score(pairs), build(mesh=mesh).score(pairs), strict=True):
        np.testing.assert_allclose(one.log_probs, two.log_probs, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("sampler", slow_unless(("greedy", "beams", "top_k"), SAMPLERS))
def test_prompts_of_unequal_length_are_continued_as_each_is_without_padding(build, sampler):
    model = build(*SAMPLERS[sampler].items())
    prompts = [model.prompt(text) for text in PROMPTS]
    together = model.generate_tokens(prompts)
    # In as many rows, since samples depend on them.
    row = prompts[0] if model.encodes else [model.prompt_format.start, *prompts[0]]
    tokens = np.array([row] * 8)
    alone = model.pretrained.generate(tokens, np.ones_like(tokens), **model.decode)
    alone = alone[0, 1 if model.encodes else len(row) :]
    assert together[0] == model.until_end(alone)
    assert len(set(map(tuple, together))) > 1


def test_a_stream_has_the_tokens_of_generate(build):
    model = build(*SAMPLERS["no repetition"].items())
    prompts = [model.prompt(text) for text in PROMPTS]
    written = model.generate_tokens(prompts)
    steps = []
    model.stream(prompts[1], steps.append)
    assert model.until_end(int(step.tokens[0]) for step in steps) == written[1]
    [score] = model.score_written([prompts[1]], [[int(step.tokens[0]) for step in steps]])
    streamed = [float(step.log_probs[0, step.tokens[0]]) for step in steps]
    np.testing.assert_allclose(score.log_probs, streamed, atol=TOLERANCE, rtol=0)
    few = []
    model.stream(prompts[1], lambda step: few.append(step) or len(few) == 2)
    assert [int(step.tokens[0]) for step in few] == written[1][:2]


def test_a_prompt_that_is_too_long_is_cut_where_it_matters_least(build):
    model = build()
    text = "".join(chr(ord("a") + n % 26) for n in range(80))
    [own] = model.score([(text, "!")])
    kept = model.length - (0 if model.encodes else 1)
    closed = 1 if model.prompt_format.ends[0] else 0
    kept -= closed + (closed if not model.encodes else 0)
    [cut] = model.score([(text[-kept:], "!")])
    np.testing.assert_allclose(own.log_probs, cut.log_probs, atol=TOLERANCE, rtol=0)
    assert model.excess(text, "!") == 80 - kept
    assert model.excess(text[-kept:], "!") == 0
    room = model.length - closed - (0 if model.encodes else 12)
    assert model.generate([text]) == model.generate(
        [text[:room] if model.encodes else text[-room:]]
    )


def test_tokens_without_a_room_are_refused(build):
    model = build(("max_new_tokens", 64))
    if longest_rows(model.pretrained.module).get("decoder") == 64 and model.encodes:
        with pytest.raises(ValueError, match=r"rows of 65 tokens.*more than the 64 positions"):
            build(("max_new_tokens", 65))
    elif model.encodes:
        assert build(("max_new_tokens", 65)).excess("a", None) == 0
    else:
        with pytest.raises(ValueError, match=r"decode.max_new_tokens=64 leaves no room"):
            model.generate(["a"])
    with pytest.raises(ValueError, match=r"more than the 64 that the model reads"):
        model.score([("a", "b" * 65)])


def test_beams_are_not_streamed(build):
    with pytest.raises(ValueError, match="num_beams=3: a stream needs num_beams=1"):
        build(("num_beams", 3)).stream([5], lambda step: None)


def test_a_blank_belongs_to_what_comes_after_it(tmp_path):
    """By byte-level BPE, where " sat" is another token than "sat"."""
    train(["The cat sat on the mat"] * 9, vocab_size=270, output=tmp_path, kind="gpt2_bpe")
    own = tiny_writer.settings("gpt2")
    own.data.vocabulary = str(tmp_path)
    model = text_model.build(
        from_pretrained(tiny_writer.write(tmp_path / "run", own)), of_config(own).parts[0]
    )
    assert model.prompt_format.start == model.vocabulary.eos_id
    whole = model.tokens("The cat sat on", end=False)
    for prompt, after in (("The cat", " sat on"), ("The cat ", "sat on"), ("The", " cat sat on")):
        pair = model.pair(prompt, after)
        assert [*pair.prompt, *pair.continuation] == whole
        assert model.piece(pair.continuation[0]).startswith("\u0120")
    # The chain rule: cut at a blank, the likelihoods of the parts multiply to the whole's.
    one, two, both = model.score([("The", " cat"), ("The cat", " sat on"), ("The", " cat sat on")])
    assert one.total + two.total == pytest.approx(both.total, abs=TOLERANCE)
    # A prompt that ends within a word keeps its tokens.
    pair = model.pair("The ca", "t")
    assert pair.prompt == model.tokens("The ca", end=False)
    assert pair.continuation == model.tokens("t", end=False)


def test_a_pair_that_is_too_long_is_an_error_before_any_is_scored():
    class Unread(nn.Module):
        def __call__(self, batch):
            raise AssertionError("a batch was scored")

    scorer = Scorer(Unread(), PromptFormat(length=8), batch_size=1)
    with pytest.raises(ValueError, match="prompt of 6 tokens and 3 after it are more than the 8"):
        scorer({}, [TokenPair([1], [2]), TokenPair([1] * 6, [2] * 3)])
