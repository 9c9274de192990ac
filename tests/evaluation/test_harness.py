"""The tasks of lm-eval: the answers of its own class for the same folders, and the command."""

import json
import pathlib
import sys
import types

import flax.linen as nn
import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from t5x_like import evaluate, systems, vocabularies
from t5x_like.config import parse
from t5x_like.evaluation import harness
from t5x_like.inference.likelihood import PromptFormat, TokenPair
from t5x_like.inference.text_model import TextModel
from t5x_like.pretrained import Pretrained, from_pretrained
from tests.golden import drawn_weights, harness_folders
from tests.programs import command_flags
from tests.test_runs_from_folders import config_file

GOLDEN = np.load(pathlib.Path(__file__).parents[1] / "golden" / "harness.npz")
KINDS = tuple(harness_folders.CONFIGS)
LENGTH = harness_folders.LENGTH
# Sums of at most 51 float32 log-probabilities of about -6, by two programs.
TOLERANCE = 1e-4

pytestmark = pytest.mark.usefixtures("one_device")


def write(kind, folder):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(harness_folders.CONFIGS[kind]))
    shapes = json.loads(str(GOLDEN[f"{kind}/tensors"]))
    tensors = {name: drawn_weights.draw(name, tuple(shape)) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    if kind != "t5":
        (folder / "tokenizer.json").write_text(harness_folders.tokenizer(kind).to_str())
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    parent = tmp_path_factory.mktemp("harness")
    return {kind: write(kind, parent / kind) for kind in KINDS}


@pytest.fixture(scope="module")
def models(folders):
    def made(kind):
        encodes = kind == "t5"
        vocabulary = vocabularies.load("bytes:0" if encodes else str(folders[kind]))
        prompt_format = PromptFormat(
            length=LENGTH,
            inputs=LENGTH if encodes else 0,
            start=vocabulary.start_id,
            ends=(encodes, encodes),
        )
        model = from_pretrained(folders[kind])
        return TextModel(model, vocabulary, prompt_format, batch_size=4, decode={})

    return {kind: made(kind) for kind in KINDS}


@pytest.fixture(scope="module")
def answers(models):
    return {kind: harness.HarnessModel(models[kind], hugging_face=True) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_log_likelihoods_are_those_of_the_harness(kind, answers):
    found = answers[kind].loglikelihood(harness_folders.PAIRS)
    scores, greedy = zip(*found, strict=True)
    np.testing.assert_allclose(scores, GOLDEN[f"{kind}/scores"], rtol=0, atol=TOLERANCE)
    assert list(greedy) == GOLDEN[f"{kind}/greedy"].tolist()
    rolling = answers[kind].loglikelihood_rolling(harness_folders.TEXTS)
    np.testing.assert_allclose(rolling, GOLDEN[f"{kind}/rolling"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
def test_generated_texts_are_those_of_the_harness(kind, answers):
    found = answers[kind].generate_until(harness_folders.PROMPTS)
    assert found == json.loads(str(GOLDEN[f"{kind}/generated"]))


def test_repeats_of_a_request_are_different_samples(answers):
    """`repeats` of a task asks the same request again, also in other batches: of 4 rows here."""
    settings = {"max_gen_toks": 6, "do_sample": True, "temperature": 2.0, "until": []}
    found = answers["gpt2"].generate_until([("a b", settings)] * 12)
    assert len(set(found)) > 8
    assert found == answers["gpt2"].generate_until([("a b", settings)] * 12)


def test_what_greedy_decoding_generates_counts_as_greedy(answers):
    prompt, settings = harness_folders.PROMPTS[2]
    [text] = answers["t5"].generate_until([(prompt, settings)])
    assert len(text) == settings["max_gen_toks"]
    [(_, greedy), (_, other)] = answers["t5"].loglikelihood([(prompt, text), (prompt, f"{text}x")])
    assert (greedy, other) == (True, False)


def test_a_run_reads_its_start_token_and_never_predicts_it(models):
    """As it was trained: a text's log-likelihood is that of the text after the start token."""
    own = harness.HarnessModel(models["gpt2"], hugging_face=False)
    [whole] = own.loglikelihood_rolling(["a b cd"])
    [(first, _), (second, _)] = own.loglikelihood([("", "a b"), ("a b", " cd")])
    assert whole == pytest.approx(first + second, abs=TOLERANCE)
    assert whole == pytest.approx(models["gpt2"].score([("", "a b cd")])[0].total, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda own: own.loglikelihood([("a", "")]), "'' of a task has no token of its own"),
        (lambda own: own.loglikelihood([("a", "b" * 25)]), "has 25 tokens, and a row of this"),
        (lambda own: own.generate_until([("a", {"top_q": 1})]), "top_q.*Did you mean 'top_p'"),
        (lambda own: own.generate_until([("a", {})]), "generates 256 tokens .* at most 23 are"),
    ],
)
def test_requests_that_cannot_be_answered_are_named(ask, message, answers):
    with pytest.raises(ValueError, match=message):
        ask(answers["gpt2"])


class Hook:
    """The harness's cache, as its `LM` has it."""

    def __init__(self):
        self.kept = []

    def add_partial(self, kind, arguments, answer):
        self.kept.append((kind, arguments, answer))


class Manager:
    """The harness's manager of tasks."""

    all_tasks = ("tiny", "hellaswag")

    def __init__(self, include_path=None):
        self.include_path = include_path


def stand_in(monkeypatch, simple_evaluate):
    """Puts the parts of lm-eval that are used in its place, with the names that version 0.4 has."""

    class LM:
        def __init__(self):
            self.cache_hook = Hook()

    package = types.ModuleType("lm_eval")
    package.simple_evaluate = simple_evaluate
    modules = {"lm_eval": package, "lm_eval.api": types.ModuleType("lm_eval.api")}
    modules["lm_eval.api.model"] = types.ModuleType("lm_eval.api.model")
    modules["lm_eval.api.model"].LM = LM
    modules["lm_eval.tasks"] = types.ModuleType("lm_eval.tasks")
    modules["lm_eval.tasks"].TaskManager = Manager
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return LM


def settings(folder):
    made = config_file("pretrained")("documents")
    made.initialize = str(folder)
    made.data.batch_size = 4
    return made


def test_the_command_runs_the_tasks_and_writes_their_numbers(folders, tmp_path, monkeypatch):
    asked = {}

    def simple_evaluate(*, model, tasks, num_fewshot, limit, task_manager, log_samples):
        asked.update(tasks=tasks, shots=num_fewshot, limit=limit, folder=task_manager.include_path)
        request = types.SimpleNamespace(args=harness_folders.PAIRS[0])
        [(score, _)] = model.loglikelihood([request], disable_tqdm=True)
        assert model.cache_hook.kept[0][:2] == ("loglikelihood", harness_folders.PAIRS[0])
        assert isinstance(model, lm)
        own = {"alias": "tiny", "acc,none": 0.5, "acc_stderr,none": "N/A", "match,strict": score}
        return {"results": {"tiny": own}}

    lm = stand_in(monkeypatch, simple_evaluate)
    output = tmp_path / "numbers.json"
    command_flags.give(
        monkeypatch,
        harness="tiny",
        harness_shots=2,
        harness_folder=str(tmp_path),
        output=str(output),
    )
    evaluate.main(parse(settings(folders["gpt2"])))
    assert asked == {"tasks": ["tiny"], "shots": 2, "limit": None, "folder": str(tmp_path)}
    found = json.loads(output.read_text())["tasks"]["tiny"]
    assert found.keys() == {"acc", "match/strict"}
    assert found["match/strict"] == pytest.approx(GOLDEN["gpt2/scores"][0], abs=TOLERANCE)


@pytest.mark.parametrize(
    ("installed", "flags", "message"),
    [
        (False, {}, "error: --harness needs the package lm-eval: pip install"),
        (
            True,
            {"harness": "tinny"},
            "error: --harness has the task 'tinny', which does not exist.",
        ),
        (True, {"harness_folder": "nowhere"}, "error: --harness_folder='nowhere' is not a folder"),
    ],
)
def test_a_mistake_is_one_line(installed, flags, message, folders, monkeypatch, capsys):
    if installed:
        stand_in(monkeypatch, lambda **_: None)
    else:
        monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    command_flags.give(monkeypatch, **{"harness": "tiny", **flags})
    with pytest.raises(SystemExit) as ended:
        evaluate.main(parse(settings(folders["gpt2"])))
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1


@pytest.fixture(scope="module")
def joining(tmp_path_factory):
    """A GPT-2 whose tokens may span the end of a context: byte-level BPE with merges over it."""
    folder = tmp_path_factory.mktemp("joining")
    words = ("An", "ns", "Ans", "Answ", "Answe", "Answer", "we", "wer", ":\u0120", "\u0120C")
    pieces = [*"abcdefghijklmnopqrstuvwxyzA:CBD", "\u0120", *words, ":\u0120C", "<|endoftext|>"]
    merges = ["A n", "An s", "Ans w", "Answ e", "Answe r", "n s", "w e", "we r", "\u0120 C"]
    (folder / "vocab.json").write_text(json.dumps({p: n for n, p in enumerate(pieces)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ": \u0120C", ""]))
    vocabulary = vocabularies.load(folder)
    sizes = {"vocab_size": len(pieces), "positions": 24, "layers": 1, "d_model": 16, "heads": 2}
    config = {**systems.find("gpt2").sizes["small"], **sizes, "d_ff": 32}
    module = systems.build("gpt2", config)
    params = nn.unbox(module.init(jax.random.key(0), module.example_batch())["params"])
    return TextModel(
        Pretrained(module, params, system="gpt2", config=config),
        vocabulary,
        PromptFormat(length=24, start=vocabulary.start_id),
        batch_size=4,
        decode={},
    )


def test_a_token_over_the_end_of_a_context_ends_no_evaluation(joining):
    """lm-eval asserts that a continuation has tokens; ours has the log p that `score` gives."""
    pairs = [("Ans", "wer"), ("answer:", " C"), ("An", "s")]
    answers = harness.HarnessModel(joining, hugging_face=True).loglikelihood(pairs)
    # GPT-2's contexts have no token before them there, so compare by the tokens themselves.
    separate = [[joining.vocabulary.encode(text) for text in pair] for pair in pairs]
    expected = joining.without_start().score_tokens([TokenPair(*pair) for pair in separate])
    assert [total for total, _ in answers] == pytest.approx([one.total for one in expected])
    assert all(total < 0 for total, _ in answers)


def test_a_context_is_tokenized_by_itself_and_what_is_beyond_its_length_is_scored(joining):
    """`_encode_pair` of lm-eval: encode(context), and encode(context + continuation) cut there."""
    read = joining.vocabulary.encode
    context, continuation = "b answe", "r: C b"
    after = read(context + continuation)[len(read(context)) :]
    assert read(context) != read(context + continuation)[: len(read(context))]
    assert after
    [(total, _)] = harness.HarnessModel(joining, hugging_face=True).loglikelihood(
        [(context, continuation)]
    )
    [expected] = joining.without_start().score_tokens([TokenPair(read(context), after)])
    assert total == pytest.approx(expected.total)
