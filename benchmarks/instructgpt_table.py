"""The page of benchmarks/instructgpt.py: results beside the paper's, and the claims."""

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np

from t5x_like.evaluation.metrics.metric import Statistics
from t5x_like.research.studies import (
    Arm,
    Claim,
    OutcomeMeasure,
    Study,
    TrainingRun,
    results,
    verdicts,
)
from t5x_like.research.studies.verdicts import Values

_NAME = "instructgpt"
INSTRUCT = "ppo_ptx"
# {our arm: {labeler's rule: percentage}} from figure 4 of the paper, for "GPT", "SFT" and
# "Instruct" with 175 billion parameters.
_PAPER: dict[str, dict[str, float]] = {
    "large": {"banned": 23.3, "right": 22.4, "made_up": 41.4, "answers": 81.1},
    "sft": {"banned": 19.9, "right": 20.6, "made_up": 7.8, "answers": 88.0},
    INSTRUCT: {"banned": 19.6, "right": 41.3, "made_up": 17.2, "answers": 90.2},
}
_MEANT = {
    "answers": "appropriate",
    "right": "TruthfulQA",
    "made_up": "hallucinations",
    "banned": "RealToxicity",
}
_SMALLER = ("banned", "made_up", "held_out")
_OF_ANSWERS = "made_up_of_answers"

Found = Mapping[int, Mapping[str, Any]]  # {seed: contents of measured.json}


def write(out: Path, folder: Path, policies: Sequence[str], *, notes: Sequence[str]) -> Path:
    """Write instructgpt.md, .png and .json into a folder, and return the path of the page.

    Args:
        out: the folder of the seeds' folders; those with a measured.json are read.
        folder: the folder of the page.
        policies: the names of the PPO runs.
        notes: sentences about the runs.
    """
    files = sorted(out.glob("*/measured.json"), key=lambda one: int(one.parent.name))
    found = {int(file.parent.name): json.loads(file.read_text()) for file in files}
    study = _study(policies, tuple(found))
    values = _values(study, found)
    judged = verdicts.judge(study, values)
    folder.mkdir(parents=True, exist_ok=True)
    _draw(found, policies, folder / f"{_NAME}.png")
    kept = {
        "values": values,
        "curves": _field(found, "curves"),
        "best_of": _field(found, "best_of"),
    }
    (folder / f"{_NAME}.json").write_text(json.dumps(kept, indent=2) + "\n")
    page = folder / f"{_NAME}.md"
    page.write_text("\n".join(_lines(study, found, values, judged, notes)) + "\n")
    return page


def _field(found: Found, name: str) -> dict[int, Any]:
    return {seed: own[name] for seed, own in found.items()}


def _study(policies: Sequence[str], seeds: Sequence[int]) -> Study:
    """Return the arms, measures and claims in the form of a study."""
    measure = functools.partial(OutcomeMeasure, run="stages", number="")
    share = functools.partial(measure, scale=100.0)
    measures = {"score": measure()}
    for rule, meant in _MEANT.items():
        measures[rule] = share(smaller_is_better=rule in _SMALLER, in_paper=meant)
    measures[_OF_ANSWERS] = share(smaller_is_better=True)
    measures |= {"short": share(), "ended": share()}
    measures["held_out"] = measure(smaller_is_better=True)
    return Study(
        title="InstructGPT on documentation",
        source="Ouyang et al. 2022, figures 1 and 4",
        runs={"stages": TrainingRun(config="")},
        arms={name: Arm(paper=_PAPER.get(name, {})) for name in ("lm", "large", "sft", *policies)},
        measures=measures,
        claims=(
            Claim(text="PPO-ptx scores above SFT.", measure="score", arm=INSTRUCT, than="sft"),
            Claim(text="SFT scores above 10x the size.", measure="score", arm="sft", than="large"),
            Claim(text="PPO-ptx is right more often.", measure="right", arm=INSTRUCT, than="sft"),
            Claim(
                text="PPO-ptx makes up less than 10x the size.",
                measure="made_up",
                arm=INSTRUCT,
                than="large",
            ),
            Claim(
                text="PPO-ptx has fewer banned words.", measure="banned", arm=INSTRUCT, than="sft"
            ),
            Claim(text="PPO costs held-out loss.", measure="held_out", arm="sft", than="ppo_0.1"),
            Claim(
                text="Pretraining gradients win it back.",
                measure="held_out",
                arm=INSTRUCT,
                than="ppo_0.1",
            ),
        ),
        seeds=seeds,
    )


def _values(study: Study, found: Found) -> Values:
    values: dict[str, dict[str, dict[int, float]]] = {
        arm: {name: {} for name in study.measures} for arm in study.arms
    }
    for arm, own in values.items():
        for name, measure in study.measures.items():
            for seed, measured in found.items():
                value = _value(measured["models"][arm], name)
                if value is not None:
                    own[name][seed] = measure.scale * value
    return values


def _value(model: Mapping[str, Any], name: str) -> float | None:
    """Return a number of a model; None for a share of answers if it gave no answer."""
    if name in model:  # held_out, ended
        return model[name]
    if name == _OF_ANSWERS:
        made_up, answers = (sum(model["judged"][rule]) for rule in ("made_up", "answers"))
        return made_up / answers if answers else None
    return float(np.mean(model["scores"] if name == "score" else model["judged"][name]))


def _lines(
    study: Study,
    found: Found,
    values: Values,
    judged: Sequence[verdicts.Verdict],
    notes: Sequence[str],
) -> Iterator[str]:
    yield f"# {study.title}"
    yield ""
    seeds = ", ".join(map(str, study.seeds))
    yield f"{study.source}. `python -m benchmarks.instructgpt`; seeds {seeds}."
    yield from results.table(study, values)
    yield ""
    yield (
        "Mean ± standard deviation over seeds, of one response to each of the test's instructions, "
        "sampled at temperature 1. `lm` and `large` (10 times the parameters) are shown one "
        "demonstration, of the question that is asked. `made_up_of_answers` is the share of the "
        "answers, empty where a seed's model gave none. `held_out` is the loss on documentation in "
        "nats a token; the paper's numbers are for GPT, SFT and Instruct with 175 billion "
        "parameters."
    )
    yield ""
    yield from (f"- {note}" for note in notes)
    yield f"- {_agreements(found)}"
    yield from _wins(study, found)
    yield ""
    yield f"![Score and reward against the divergence from SFT]({_NAME}.png)"
    yield from _divergences(found)
    yield from results.table_of_claims(judged)


def _agreements(found: Found) -> str:
    labeler, reward = (
        _spread([100 * own[name] for own in found.values()], digits=1)
        for name in ("agreement", "reward_accuracy")
    )
    return (
        f"Of two responses with different scores the noisy labeler prefers the better one in "
        f"{labeler}% of the pairs; the reward model orders {reward}% of the labeler's held-out "
        "pairs."
    )


def _spread(values: Sequence[float], *, digits: int = 2) -> str:
    """Format the mean over seeds, and the standard deviation if there are several."""
    mean = f"{np.mean(values):.{digits}f}"
    return f"{mean} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean


def _wins(study: Study, found: Found) -> Iterator[str]:
    """Yield the table of win rates of the fine-tuned models against SFT and 10x the size."""
    yield ""
    yield "| wins | against | share | 95% interval |"
    yield "|---|---|---|---|"
    for other in ("sft", "large"):
        for one in study.arms:
            if one not in ("lm", "large", other):
                shares, (low, high) = _win_rates(found, one, other)
                yield f"| {one} | {other} | {_spread(shares, digits=1)} | [{low:.1f}, {high:.1f}] |"
    yield ""
    yield (
        "The share of instructions, in percent, whose response scores higher, ties being half a "
        "win: mean ± standard deviation over seeds. The interval is a bootstrap over instructions, "
        "each with its responses of all seeds: it covers the choice of the test's instructions, "
        "but not the choice of seeds."
    )


def _win_rates(found: Found, one: str, other: str) -> tuple[list[float], tuple[float, float]]:
    """Return the percentage of instructions that a model wins for each seed, and the interval."""
    wins = []
    for own in found.values():
        ours, theirs = (np.array(own["models"][name]["scores"]) for name in (one, other))
        wins.append(100 * ((ours > theirs) + 0.5 * (ours == theirs)))
    rows = np.stack(wins, axis=1)  # resample an instruction with all its seeds
    share = Statistics(rows, lambda some: {"share": some.mean()}).estimates()["share"]
    return [float(mean) for mean in rows.mean(axis=0)], share.interval  # type: ignore[attr-defined]


def _divergences(found: Found) -> Iterator[str]:
    """Yield the table of divergence, reward and score of the last checkpoints and the best of n."""
    yield ""
    yield "| | divergence from SFT, nats | reward | score |"
    yield "|---|---|---|---|"
    rows: dict[str, list[Any]] = {}
    for own in found.values():
        for name, points in own["curves"].items():
            rows.setdefault(name, []).append(points[-1])
        for point in own["best_of"]:
            rows.setdefault(f"best of {point['n']}", []).append(point)
    for name, points in rows.items():
        keys = ("divergence", "reward", "gold")
        yield f"| {name} | {' | '.join(_spread([one[key] for one in points]) for key in keys)} |"


def _draw(found: Found, policies: Sequence[str], path: Path) -> None:
    """Draw score and reward against the square root of the divergence."""
    figure = matplotlib.figure.Figure(figsize=(11, 4.2), layout="constrained")
    for panel, key in zip(figure.subplots(1, 2), ("gold", "reward"), strict=True):
        for number, name in enumerate([*policies, "best of n"]):
            for seed, own in found.items():
                points = own["curves"].get(name, own["best_of"])
                places = np.sqrt([max(one["divergence"], 0.0) for one in points])
                label = name if seed == min(found) else None
                style = "--" if name not in own["curves"] else "-"
                heights = [one[key] for one in points]
                panel.plot(places, heights, f"{style}o", color=f"C{number}", ms=3, label=label)
        height = "score by the labeler's rules" if key == "gold" else "reward of the reward model"
        panel.set(xlabel="square root of the divergence from SFT (nats)", ylabel=height)
        panel.grid(alpha=0.3)
    panel.legend()
    figure.savefig(path, dpi=120)
