"""XLNet's ablation at demo size: without memory, without spans, without text in both directions.

    python -m t5x_like.study xlnet_parts --plan
    python -m t5x_like.study xlnet_parts

Yang et al. 2019, section 3.4, table 6: memory helps, most on long texts; spans and text in both
directions help, too. The pretraining losses of arms that predict other tokens cannot be compared,
so all arms are compared by fine-tuning, as in the paper: here on tasks of PyGLUE, on test rows. The
pretraining loss is only used to compare memory.

| the paper | here |
|---|---|
| base: 12 layers, 768 wide, 512 tokens, memory of 384 | the demo: 64 tokens, memory of 48 |
| RACE, SQuAD 2.0, MNLI, SST-2 | topic (a text), paraphrase (a pair), 300 steps each |
| also BERT, a denoising variant and next sentences | left out |
"""

from typing import Any

from t5x_like.studies import Arm, Claim, OutcomeMeasure, Study, TrainingRun

_STEPS = 300
_PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "no_memory": ("Memory helps", {"model.memory": 0}),
    "no_spans": ("Spans help", {"data.objective_settings.form": "tail"}),
    "one_direction": ("Both directions help", {"data.objective_settings.backward": 0.0}),
}
_TASKS = ("topic", "paraphrase")


def _task(name: str) -> TrainingRun:
    """Return a run of fine-tuning, measured once, at its end, on test rows."""
    changes = {
        "data.lengths": {"inputs": 64},
        "train.steps": _STEPS,
        "checkpoint.every": _STEPS,
        "evaluate.every": _STEPS,
        "evaluate.batches": 0,
        "evaluate.measures": {"loss": {}, "benchmark": {"every": _STEPS}},
        "evaluate.tasks": (f"pyglue_{name}_test",),
        "optimizer.learning_rate": 1e-3,
    }
    return TrainingRun(
        config=f"configs/pyglue.py:{name}", changes=changes, starts_from="pretraining"
    )


def get_study() -> Study:
    """Return the study."""
    of_tasks = {
        name: OutcomeMeasure(run=name, number=f"pyglue_{name}_test/benchmark/accuracy", scale=100.0)
        for name in _TASKS
    }
    loss = OutcomeMeasure(run="pretraining", number="pydocs/loss", smaller_is_better=True)
    return Study(
        title="XLNet without its parts",
        source="Yang et al. 2019, table 6",
        needs={
            "runs/xlnet_demo/vocab.txt": (
                "t5x_like.vocabulary --data=data/pydocs.py --kind=wordpiece --size=4096 "
                "--output=runs/xlnet_demo/vocab.txt"
            ),
        },
        runs={
            "pretraining": TrainingRun(config="configs/xlnet.py:demo"),
            **{name: _task(name) for name in _TASKS},
        },
        arms={
            "xlnet": Arm(),
            **{
                name: Arm(changes={"pretraining": changes}) for name, (_, changes) in _PARTS.items()
            },
        },
        measures={"loss": loss, **of_tasks},
        claims=(
            Claim(text="Memory helps: loss.", measure="loss", arm="xlnet", than="no_memory"),
            *(
                Claim(text=f"{text}: {name}.", measure=name, arm="xlnet", than=arm)
                for arm, (text, _) in _PARTS.items()
                for name in _TASKS
            ),
        ),
    )
