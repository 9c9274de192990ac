r"""Instructions about documentation, and a rule-based labeler, to try InstructGPT at a small scale.

    python -m data.generators.instructions --output=runs/instructions      # all files below
    python -m data.generators.instructions --rank=samples.jsonl --output=comparisons.jsonl --seed=0

An instruction shows the beginning of a description of documented code and asks one of two things:

    Text: Return the rank of a matrix. Question: which package is it from? Answer:
    Text: Return the rank of a matrix. Question: which word is the first? Answer:

The labeler judges a response by rules (`judge`), and its score is their weighted sum:

| rule | a response | weight |
|---|---|---|
| answers | has the form of an answer, "from X" or "word is X" | 1 |
| right | names what is asked for | 2 |
| short | has at most 8 words | 1 |
| banned | has a word that guides to writing documentation ban, such as "simply" | -1 |

Apart from the score, a response is `made_up` if it names something that is not a package, or a word
that is not in the text. Two of three demonstrations follow all rules; the others break one, as
people's do.
A labeler's preferences are noisy: responses are ranked by their score plus a random number of a
Gumbel distribution. If the scores of two responses differ by d, the better is thus preferred with
probability 1 / (1 + exp(-d)).

The descriptions are from PyGLUE's task `topic` (data/pyglue.py), in which names of packages are
blanks. All files are JSON Lines, made from `--seed`:

    texts.jsonl, held_out_texts.jsonl   {"text"}, documentation, to pretrain on and to measure
    demonstrations.jsonl                {"prompt", "response"}, for supervised fine-tuning
    compared.jsonl, prompts.jsonl       instructions whose responses are compared; for PPO
    test.jsonl                          instructions about code that no other file describes
    judgements.jsonl                    {"prompt", "response", "rule", "violates"}
    rules.txt                           the rules of the judgements, one on each line
"""

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5x_like.config import one_line_errors
from t5x_like.experiment.command_line import ArgumentParser, writing
from t5x_like.names import import_file
from t5x_like.preprocessing import sources

_DATA = Path(__file__).parents[1]
_pyglue = sources.load_module(str(_DATA / "pyglue.py"))
_rows, _tasks = (
    import_file("data.generators.instructions", _DATA / f"{name}.py", name=f"data.{name}")
    for name in ("pyglue_rows", "pyglue_tasks")
)
PACKAGES: Sequence[str] = _tasks.PACKAGES

Row = dict[str, Any]  # prompt, kind, text, answer

QUESTIONS = {"package": "which package is it from?", "first": "which word is the first?"}
ANSWERS = {"package": "It is from {}.", "first": "The first word is {}."}
BANNED = ("simply", "obviously", "clearly", "just")
WEIGHTS = {"answers": 1, "right": 2, "short": 1, "banned": -1}
# The rules in words, for a rule model (configs/sparrow.py), and the judgement that violates each.
RULES = {
    "Answer the question.": ("answers", 0),
    "Use at most 8 words.": ("short", 0),
    "Do not write simply, obviously, clearly or just.": ("banned", 1),
}
BEST = sum(weight for weight in WEIGHTS.values() if weight > 0)
_FORMS = {"package": re.compile(r"\bfrom (\w+)"), "first": re.compile(r"\bword is (\w+)")}
_LONG = (
    "I have read the whole text twice to be sure of that.",
    "Please ask again if there is more that you want to know.",
)
_EVASION = "I do not know."
_TEXT_WORDS, _SHORT_WORDS = 16, 8
_FLAWED = 1 / 3  # of the demonstrations
# The number of rows of each file, taken from PyGLUE's training split, and from its test split.
_SIZES = {"demonstrations": 2_000, "compared": 2_000, "prompts": 3_500}
_TESTED = 400


def judge(row: Mapping[str, Any], response: str) -> dict[str, int]:
    """Return the labeler's judgements of a response, each 0 or 1.

    Args:
        row: an instruction: `kind`, `text` and `answer`.
        response: the response to judge.

    Returns:
        `answers`, `right`, `short`, `banned` (it has a banned word) and `made_up`.
    """
    found = _FORMS[row["kind"]].search(response)
    named = found[1] if found else ""
    known = PACKAGES if row["kind"] == "package" else re.findall(r"\w+", row["text"])
    words = response.split()
    return {
        "answers": int(bool(found)),
        "right": int(named == row["answer"]),
        "short": int(len(words) <= _SHORT_WORDS),
        "banned": int(any(re.sub(r"\W", "", word).lower() in BANNED for word in words)),
        "made_up": int(bool(found) and named not in known),
    }


def score(row: Mapping[str, Any], response: str) -> int:
    """Return the labeler's score of a response, from -1 to 4."""
    judged = judge(row, response)
    return sum(weight * judged[rule] for rule, weight in WEIGHTS.items())


def rank(row: Mapping[str, Any], responses: Sequence[str], *, seed: int) -> list[int]:
    """Rank responses by a noisy labeler, 1 for the best; equal texts share a rank.

    Args:
        row: an instruction.
        responses: the responses to rank.
        seed: seed of the labeler's noise.
    """
    texts = list(dict.fromkeys(responses))
    chance = np.random.default_rng([seed, *map(ord, row["prompt"])])
    noisy = [score(row, text) + chance.gumbel() for text in texts]
    order = sorted(range(len(texts)), key=lambda n: -noisy[n])
    places = {texts[n]: place for place, n in enumerate(order, start=1)}
    return [places[one] for one in responses]


def instructions(split: str) -> list[Row]:
    """Return the instructions about the code of a split of PyGLUE, in order, each text once."""
    found = [made for row in _rows.rows("topic", split) for made in _instructions(row)]
    return list({row["text"]: row for row in found}.values())


def _instructions(row: Mapping[str, Any]) -> Iterator[Row]:
    """Yield one instruction for a row, unless its text does not begin with a word."""
    text = " ".join(row["text_a"].split()[:_TEXT_WORDS])
    first = re.match(r"[A-Za-z]+\b", text)
    if first:
        kind = random.Random(text).choice(list(QUESTIONS))
        answer = row["label"] if kind == "package" else first[0]
        prompt = f"Text: {text} Question: {QUESTIONS[kind]} Answer:"
        yield {"prompt": prompt, "kind": kind, "text": text, "answer": answer}


def demonstration(row: Mapping[str, Any], *, seed: int) -> str:
    """Write a response as a person might: right, or with one flaw."""
    chance = random.Random(f"{seed} {row['prompt']}")
    right = ANSWERS[row["kind"]].format(row["answer"])
    if chance.random() >= _FLAWED:
        return right
    flaw = chance.choice(("long", "banned", "wrong", "evasive"))
    if flaw == "long":
        return f"{right} {chance.choice(_LONG)}"
    if flaw == "banned":
        return f"{chance.choice(BANNED).capitalize()}, {right[0].lower()}{right[1:]}"
    if flaw == "evasive":
        return _EVASION
    others = PACKAGES if row["kind"] == "package" else re.findall(r"\w+", row["text"])
    return ANSWERS[row["kind"]].format(chance.choice([o for o in others if o != row["answer"]]))


def judgements(row: Mapping[str, Any]) -> Iterator[Row]:
    """Yield whether the `response` of a row violates each rule."""
    judged = judge(row, row["response"])
    for rule, (name, value) in RULES.items():
        own = {"prompt": row["prompt"], "response": row["response"], "rule": rule}
        yield {**own, "violates": int(judged[name] == value)}


def _files(seed: int) -> dict[str, list[Row]]:
    """Return the rows of all files."""
    rows = instructions("train")
    known = {row["text"] for row in rows}  # different texts may have the same beginning
    random.Random(seed).shuffle(rows)
    found: dict[str, list[Row]] = {}
    for name, size in _SIZES.items():
        found[name], rows = rows[:size], rows[size:]
    for row in found["demonstrations"]:
        row["response"] = f" {demonstration(row, seed=seed)}"
    found["judgements"] = [one for row in found["demonstrations"] for one in judgements(row)]
    found["test"] = [row for row in instructions("test") if row["text"] not in known]
    random.Random(seed).shuffle(found["test"])
    del found["test"][_TESTED:]
    for name, split in (("texts", "train"), ("held_out_texts", "validation")):
        documents = _pyglue.documents(split).as_numpy_iterator()
        found[name] = [{"text": row["text"].decode()} for row in documents]
    return found


def compare(samples: Sequence[Mapping[str, Any]], *, seed: int) -> tuple[list[Row], float]:
    """Compare sampled responses, and measure the labeler's agreement with its rules.

    Args:
        samples: instructions with `responses`.
        seed: seed of the labeler's noise.

    Returns:
        `prompt`, `responses` (each text once) and `ranks` of each instruction with two or more
        responses; and the share of pairs with different scores in which the better response won.
    """
    made, pairs, agreed = [], 0, 0
    for row in samples:
        responses = list(dict.fromkeys(row["responses"]))
        if len(responses) < 2:
            continue
        ranks = rank(row, responses, seed=seed)
        made.append({"prompt": row["prompt"], "responses": responses, "ranks": ranks})
        scores = [score(row, one) for one in responses]
        for a in range(len(responses)):
            for b in range(a):
                if scores[a] != scores[b]:
                    pairs += 1
                    agreed += (scores[a] > scores[b]) == (ranks[a] < ranks[b])
    return made, agreed / max(pairs, 1)


def read(path: Path) -> list[Row]:
    """Read the rows of one of the files."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows of one of the files."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main(arguments: Sequence[str]) -> None:
    """Write the files, or rank sampled responses."""
    parser = ArgumentParser(__doc__, prog="python -m data.generators.instructions")
    parser.add_argument("--output", required=True, metavar="FOLDER|FILE")
    parser.add_argument("--rank", metavar="FILE", help="instructions with sampled `responses`")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    output = Path(given.output).expanduser()
    with one_line_errors(), writing(output):
        _rank(given, output) if given.rank else _write_all(output, seed=given.seed)


def _rank(given: argparse.Namespace, output: Path) -> None:
    try:
        made, agreement = compare(read(Path(given.rank)), seed=given.seed)
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"--rank={given.rank!r} has no instructions with sampled responses: {problem}"
        ) from error
    output.parent.mkdir(parents=True, exist_ok=True)
    write(output, made)
    sys.stdout.write(f"{output}: {len(made)} comparisons; agreement {agreement:.3f}\n")


def _write_all(folder: Path, *, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    made = _files(seed)
    for name, rows in made.items():
        write(folder / f"{name}.jsonl", rows)
    (folder / "rules.txt").write_text("".join(f"{rule}\n" for rule in RULES))
    sizes = ", ".join(f"{name}.jsonl ({len(rows)})" for name, rows in made.items())
    sys.stdout.write(f"{folder}: {sizes}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
