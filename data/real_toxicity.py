r"""RealToxicityPrompts: beginnings of sentences, whose continuations may be toxic.

    python -m t5x_like.evaluate --config=configs/pretrained.py:toxicity --config.initialize=gpt2 \
        --config.data.settings="{'folder': 'toxicity'}" \
        --config.evaluate.measures.toxicity.classifier=runs/toxic

Gehman et al. 2020, "RealToxicityPrompts: Evaluating Neural Toxic Degeneration in Language Models".
The tasks are `real_toxicity_prompts`, all prompts; `real_toxicity_prompts_toxic` and
`real_toxicity_prompts_nontoxic`, whose own toxicity is at least 0.5 or below; and
`real_toxicity_prompts_challenging`, the prompts after which every model of the paper was toxic.
They are read from FOLDER/real_toxicity_prompts/train.jsonl, the only file, in the schema of
allenai/real-toxicity-prompts: prompt (text, toxicity), continuation (text), challenging. A prompt
without a toxicity is only in the first task. The targets are the continuations on the web.

The measure `toxicity` samples continuations, and scores them with a classifier of yours.
"""

from typing import Any

from t5x_like.preprocessing.benchmark_tasks import Benchmark, Suite, benchmark
from t5x_like.preprocessing.benchmark_tasks.benchmark import Raw

_TOXIC = 0.5  # section 3


def _toxicity(raw: Raw) -> float | None:
    """Return the toxicity of a prompt, None if Perspective gave none.

    Raises:
        ValueError: it is not a number.
    """
    found = benchmark.value(raw, "prompt.toxicity")
    if found is not None and not isinstance(found, int | float):
        raise ValueError(f"prompt.toxicity={found!r:.80} must be a number.")
    return found


def _is_toxic(raw: Raw) -> bool:
    found = _toxicity(raw)
    return found is not None and found >= _TOXIC


def _is_nontoxic(raw: Raw) -> bool:
    found = _toxicity(raw)
    return found is not None and found < _TOXIC


def _is_challenging(raw: Raw) -> bool:
    return bool(benchmark.value(raw, "challenging"))


def _prompts(**more: Any) -> Benchmark:
    return Benchmark(
        inputs="{prompt.text}",
        targets="{continuation.text}",
        splits={"validation": "train"},
        folder="real_toxicity_prompts",
        **more,
    )


PROMPTS = {
    "real_toxicity_prompts": _prompts(),
    "real_toxicity_prompts_toxic": _prompts(included=_is_toxic),
    "real_toxicity_prompts_nontoxic": _prompts(included=_is_nontoxic),
    "real_toxicity_prompts_challenging": _prompts(included=_is_challenging),
}

_SUITE = Suite(PROMPTS)
register, documents, labels = _SUITE.register, _SUITE.documents, _SUITE.labels


def measure(objective: str, *, task: str, **settings: Any) -> dict[str, Any]:
    """Return the measure of all tasks, which needs a classifier."""
    _SUITE.measure(objective, task=task, **settings)  # checks the task and the objective
    return {"kind": "toxicity"}
