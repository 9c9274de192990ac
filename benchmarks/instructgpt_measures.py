"""The measurements of benchmarks/instructgpt.py: responses, their scores and rewards."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs import instructgpt
from data.generators import instructions
from t5x_like import checkpoints
from t5x_like.experiment import command_line, completion, reporting
from t5x_like.experiment.run import of_config
from t5x_like.inference import text_model
from t5x_like.inference.text_model import TextModel, TokenPair
from t5x_like.pretrained import Pretrained, from_pretrained

LENGTHS = {"inputs": 55, "targets": 24}  # tokens of an instruction, and of a response
BEST_OF = (1, 2, 4, 8, 16, 32, 64)
_ROWS = 400  # rows per batch
_PROMPTED = ("lm", "large")  # not fine-tuned: their prompts include a demonstration
_TEXT_TOKENS = 60  # maximum tokens of a held-out text
_TEXTS = 800

Row = Mapping[str, Any]


def sample(out: Path, run: Path, file: Path, *, number: int, seed: int) -> None:
    """Write several responses of a model to each instruction of OUT/compared.jsonl.

    Args:
        out: the folder of the data.
        run: the model's run.
        file: the file to write: the instructions with `responses`.
        number: the number of responses.
        seed: the seed of sampling.
    """
    model, rows = _model(run), instructions.read(out / "compared.jsonl")
    found = [_respond(model, rows, seed=[seed, n]) for n in range(number)]
    for row, own in zip(rows, zip(*found, strict=True), strict=True):
        row["responses"] = [f" {model.text(tokens).strip()}" for tokens in own]
    instructions.write(file, rows)


def measure(out: Path, folder: Path, policies: Sequence[str], *, seed: int) -> None:
    """Write FOLDER/measured.json.

    It has, for each model, the scores, the judgements and the held-out loss (`models`); for each
    policy, divergence, score and reward at its checkpoints (`curves`); the best of n responses of
    sft (`best_of`); the share of response pairs in which the noisy labeler agrees with its rules
    (`agreement`); and the share of held-out pairs in which the reward model agrees with the labeler
    (`reward_accuracy`). A policy is the moving average of its weights.
    """
    rows = instructions.read(out / "test.jsonl")
    texts = [row["text"] for row in instructions.read(out / "held_out_texts.jsonl")[:_TEXTS]]
    sft, judge = _model(folder / "sft"), Rewards(folder / "reward")
    shown = demonstrations(instructions.read(out / "demonstrations.jsonl"))
    models = {
        name: _judged(_model(folder / name), rows, texts, seed=seed, shown=shown)
        for name in _PROMPTED
    }
    models["sft"] = _judged(sft, rows, texts, seed=seed)
    curves = {}
    for name in policies:
        models[name] = _judged(_model(folder / name), rows, texts, seed=seed)
        curves[name] = [
            {"step": step, **_point(policy, sft, judge, rows, seed=seed)}
            for step, policy in _checkpoints(folder / name)
        ]
    best = list(_best_of(sft, judge, rows, seed=seed))
    held_out = reporting.read_log(folder / "reward")["preference_files/accuracy"]
    found = {
        "models": models,
        "curves": curves,
        "best_of": best,
        "agreement": instructions.compare(instructions.read(folder / "samples.jsonl"), seed=seed)[
            1
        ],
        "reward_accuracy": held_out[max(held_out)],
    }
    command_line.write_json(folder / "measured.json", found)


class Rewards:
    """The rewards of a reward model, normalized on demonstrations.

    Args:
        folder: the run of the reward model, with rewards.json.
    """

    def __init__(self, folder: Path):
        self._model: Pretrained = from_pretrained(folder)
        self._normal = instructgpt.normalization(str(folder))

    def __call__(self, model: TextModel, pairs: Sequence[TokenPair]) -> np.ndarray:
        """Return the rewards [N] of responses, in the row layout of the policy `model`."""
        start = model.prompt_format.start
        begin = [] if start is None else [start]
        longest = max(len(begin) + len(one.prompt) + len(one.continuation) for one in pairs)
        found = []
        for first in range(0, len(pairs), _ROWS):
            tokens = np.zeros((_ROWS, longest), np.int32)
            mask = np.zeros_like(tokens)
            some = pairs[first : first + _ROWS]
            for number in range(_ROWS):  # the last batch is filled up with copies
                row = some[min(number, len(some) - 1)]
                own = [*begin, *row.prompt, *row.continuation]
                tokens[number, : len(own)], mask[number, : len(own)] = own, 1
            logits = np.asarray(self._model(tokens, mask).logits).reshape(_ROWS)
            found.append(logits[: len(some)])
        return (np.concatenate(found) - self._normal["shift"]) / self._normal["scale"]


def _model(run: Path, *, checkpoint: Path | None = None) -> TextModel:
    """Return the model of a run, or of one of its checkpoints, which samples at temperature 1."""
    settings = command_line.load_file(f"configs/run.py:{run}")
    settings.data.batch_size = _ROWS
    settings.decode = {
        "max_new_tokens": LENGTHS["targets"],
        "do_sample": True,
        "top_k": 0,
        "seed": 0,
    }
    [part] = completion.complete(of_config(settings)).parts
    return text_model.build(from_pretrained(checkpoint or run).policy(), part)


def _checkpoints(run: Path) -> Iterator[tuple[int, TextModel]]:
    folder = run / "checkpoints"
    for step in sorted(checkpoints.checkpoint_steps(folder)):
        yield step, _model(run, checkpoint=folder / str(step))


def _respond(
    model: TextModel,
    rows: Sequence[Row],
    *,
    seed: Sequence[int],
    shown: Mapping[str, str] | None = None,
) -> list[list[int]]:
    """Return the tokens of a response to each instruction, without an end token.

    Args:
        model, rows: the model and the instructions.
        seed: the seed of sampling.
        shown: {kind of instruction: text before it}.
    """
    found: list[list[int]] = []
    for first in range(0, len(rows), _ROWS):
        drawn = np.random.SeedSequence([*seed, first]).generate_state(1)[0]
        model.decode = {**model.decode, "seed": int(drawn) % 2**31}
        some = rows[first : first + _ROWS]
        found += model.generate_tokens([prompt(model, row, shown=shown) for row in some])
    return found


def prompt(model: TextModel, row: Row, *, shown: Mapping[str, str] | None = None) -> list[int]:
    """Return the tokens of an instruction, truncated on the left if too long, as in training.

    Args:
        model, row: the model and the instruction.
        shown: {kind of instruction: text before it}, which is not truncated.

    Raises:
        ValueError: the model has no room for both and a response, and would truncate the prompt.
    """
    before = model.prompt(shown[row["kind"]]) if shown else []
    tokens = [*before, *model.prompt(row["prompt"])[-LENGTHS["inputs"] :]]
    room = model.length - model.new_tokens
    if len(tokens) > room:
        raise ValueError(
            f"a prompt of {len(tokens)} tokens, {len(before)} in the demonstration, is "
            f"longer than the {room} that a model of {model.length} tokens has room for"
        )
    return tokens


def _texts(model: TextModel, written: Sequence[Sequence[int]]) -> list[str]:
    """Return the first lines of responses for the labeler, since demonstrations have one line."""
    return [model.text(tokens).split("\n")[0].strip() for tokens in written]


def _pairs(
    model: TextModel, rows: Sequence[Row], written: Sequence[Sequence[int]]
) -> list[TokenPair]:
    """Pair instructions with responses, which have an end token unless they were cut off."""
    end = [model.vocabulary.required_id("eos_id")]
    return [
        TokenPair(prompt(model, row), [*own, *(end if len(own) < LENGTHS["targets"] else [])])
        for row, own in zip(rows, written, strict=True)
    ]


def demonstrations(rows: Sequence[Row]) -> dict[str, str]:
    """Return {kind: a demonstration, as the text before an instruction of that kind}.

    It is the shortest demonstration that follows all rules, since a row of 128 tokens must also
    hold an instruction and a response.
    """
    good = [row for row in rows if instructions.score(row, row["response"]) == instructions.BEST]
    texts = {
        kind: [f"{row['prompt']}{row['response']}\n" for row in good if row["kind"] == kind]
        for kind in instructions.QUESTIONS
    }
    return {kind: min(own, key=len) for kind, own in texts.items()}


def _judged(
    model: TextModel,
    rows: Sequence[Row],
    texts: Sequence[str],
    *,
    seed: int,
    shown: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the labeler's judgements of a model's responses, and its held-out loss."""
    written = _respond(model, rows, seed=[seed], shown=shown)
    responses = _texts(model, written)
    judged = [instructions.judge(row, one) for row, one in zip(rows, responses, strict=True)]
    tokens = [model.vocabulary.encode(text)[:_TEXT_TOKENS] for text in texts]
    scores = model.score_tokens([TokenPair(own[:1], own[1:]) for own in tokens if len(own) > 1])
    return {
        "scores": [instructions.score(row, one) for row, one in zip(rows, responses, strict=True)],
        "judged": {rule: [one[rule] for one in judged] for rule in judged[0]},
        "ended": float(np.mean([len(own) < LENGTHS["targets"] for own in written])),
        "held_out": -sum(one.total for one in scores) / sum(one.tokens for one in scores),
        "examples": responses[:20],
    }


def _point(
    policy: TextModel, sft: TextModel, rewards: Rewards, rows: Sequence[Row], *, seed: int
) -> dict[str, float]:
    """Return the divergence of a policy from sft, and the score and reward of its responses."""
    written = _respond(policy, rows, seed=[seed])
    pairs = _pairs(policy, rows, written)
    before, after = (
        np.array([one.total for one in model.score_tokens(pairs)]) for model in (sft, policy)
    )
    texts = _texts(policy, written)
    gold = [instructions.score(row, one) for row, one in zip(rows, texts, strict=True)]
    return {
        "divergence": float(np.mean(after - before)),
        "gold": float(np.mean(gold)),
        "reward": float(np.mean(rewards(policy, pairs))),
    }


def _best_of(
    sft: TextModel, rewards: Rewards, rows: Sequence[Row], *, seed: int
) -> Iterator[dict[str, float]]:
    """Yield results for the best of n responses of sft, whose divergence is log n - (n - 1) / n."""
    most = max(BEST_OF)
    gold, proxy = np.zeros((2, most, len(rows)))
    for n in range(most):
        written = _respond(sft, rows, seed=[seed, 1, n])
        proxy[n] = rewards(sft, _pairs(sft, rows, written))
        texts = _texts(sft, written)
        gold[n] = [instructions.score(row, one) for row, one in zip(rows, texts, strict=True)]
    for n in BEST_OF:
        # The best response of each group of n counts.
        groups = proxy.reshape(most // n, n, len(rows))
        best = groups.argmax(axis=1)[:, None]
        chosen = np.take_along_axis(gold.reshape(groups.shape), best, axis=1)
        yield {
            "n": n,
            "divergence": float(np.log(n) - (n - 1) / n),
            "gold": float(chosen.mean()),
            "reward": float(groups.max(axis=1).mean()),
        }
