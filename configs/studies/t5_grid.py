"""The comparisons of the T5 paper at demo size: pretrained on documentation, fine-tuned on PyGLUE.

    python -m t5x_like.study t5_grid --plan
    python -m t5x_like.study t5_grid --processes=2

Raffel et al. 2020, sections 3.2 to 3.4: architecture x objective (table 2), no pretraining
(table 1), objectives (tables 4 and 5), corruption rates (table 6), lengths of spans (table 7), data
repeated up to 4,096 times (table 9), and from section 3.5 fine-tuning a part of the parameters
(table 10) and multi-task training (table 12). The arms of table 10 share the baseline's
pretraining. `--arms=baseline,decoder` runs only these arms.

| the paper | here |
|---|---|
| 220 million parameters, 12 + 12 layers | 2 + 2 layers, 128 wide, 4,096 pieces |
| C4, 2^19 batches of 128 rows of 512 | documentation, 1,600 batches of 64 rows of 16, 400 of 32 |
| fine-tuned on each benchmark, 2^18 steps | on `topic`, `span` and `summary` at once, 1,000 steps |
| all rows of a benchmark | a quarter, 2,000 of each task |
| Adafactor, constant rate 1e-3 | the same to 0.02, then linear decay: a demo is small |
| the best checkpoint of each task | the last one |
| adapters of d = 32, 128, 512 in a network of width 768 | d = 8, 32, 128 in width 128 |
| one task left out in turn, then fine-tuning on it | `span` left out, then the mixture of all |
| GLUE, SQuAD, CNN/Daily Mail | the average of the three tasks, `span` and `summary` |

Claims are judged by the average score, and again by the average loss in nats per token, in which
networks that are still far from solving the tasks differ first.

With all 8,000 rows of a task, so small a network reaches the same score without pretraining; on the
other six tasks of PyGLUE (all but one with pairs of texts), it stays at chance.

A small network learns to attend to the encoder for masked tokens only after a plateau of a thousand
steps, which is longer for longer rows: with rows of 64 tokens the encoder-decoders were still on it
after 2,000 steps, at 3.1 nats. This is why short rows come before longer rows.

Deshuffling, which table 4 has only for the encoder-decoder, is run for all architectures.

The language-modeling rows of table 2 are prefix language modeling for architectures with a prefix
(section 3.2.3). For denoising, a decoder reads the inputs and then the targets, on which the loss
is computed.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from t5x_like.research.studies import Arm, Claim, OutcomeMeasure, Study, TrainingRun

Changes = dict[str, Any]  # changed settings of a run

# {phase: (steps, tokens per row of text)}
_PHASES = {"short": (1600, 16), "long": (400, 32)}
_STEPS = sum(steps for steps, _ in _PHASES.values())
_BATCH = 64
# Epochs over the 1.63 million tokens of `pyglue_text`; the paper reads its full data set at most
# once.
_EPOCHS = 1.5

_CONCATENATED = {"data.converter": "prefix_lm"}


_PRETRAINING = {
    "train.phases": tuple(_PHASES),
    "train.log_every": 100,
    "data.module": "data/pyglue.py",
    "data.task": "pyglue_text",
    "data.settings": {},
    "data.vocabulary": "runs/studies/pyglue_vocabulary.model",
    "data.batch_size": _BATCH,
    "evaluate.every": 0,
    "checkpoint.keep": 1,
}
_MEASURED = {
    "pyglue_topic": ("accuracy",),
    "pyglue_span": ("exact_match", "f1"),
    "pyglue_summary": ("rouge_1", "rouge_2", "rouge_l"),
}
_LEFT_OUT = (
    "pyglue_acceptability",
    "pyglue_similarity",
    "pyglue_paraphrase",
    "pyglue_entailment",
    "pyglue_continuation",
    "pyglue_ranking",
)
_TUNING_STEPS = 1000
_FINE_TUNING: Changes = {
    "train.steps": _TUNING_STEPS,
    "model.dropout": 0.1,
    "optimizer": {
        "name": "adafactor",
        "schedule": "linear",
        "learning_rate": 0.02,
        "warmup_steps": 50,
        "decay_steps": _TUNING_STEPS,
    },
    "data.lengths": {"inputs": 80, "targets": 16},
    "data.settings": {"leave_out": _LEFT_OUT, "share": 0.25},
    "decode": {"max_new_tokens": 16, "num_beams": 1},
    "evaluate.every": _TUNING_STEPS,
    "evaluate.batches": 0,
    "evaluate.tasks": tuple(_MEASURED),
    "evaluate.measures": {"loss": {}, "benchmark": {"every": _TUNING_STEPS}},
    "evaluate.averages": {
        "pyglue": {
            task: tuple(f"{task}/benchmark/{metric}" for metric in metrics)
            for task, metrics in _MEASURED.items()
        },
        "pyglue_loss": {task: (f"{task}/cross_entropy",) for task in _MEASURED},
    },
}


def _pretraining(
    name: str, lengths: Callable[[int], dict[str, int]], *, longer: int = 0, **settings: Any
) -> Changes:
    """Return settings of an objective, with lengths derived from a row's tokens."""
    phases: Changes = {
        phase: {"steps": steps, "lengths": lengths(length)}
        for phase, (steps, length) in _PHASES.items()
    }
    phases["long"]["steps"] += longer
    return {
        "data.objective": name,
        "data.objective_settings": settings,
        "data.lengths": phases["long"]["lengths"],
        "train.steps": _STEPS + longer,
        "phases": phases,
    }


def _whole(name: str) -> Changes:
    """Return settings of an objective whose targets are the text or a part of the text."""
    return _pretraining(name, lambda length: {"inputs": length, "targets": length})


def _masked(name: str, *, rate: float = 0.15, **settings: Any) -> Changes:
    """Return settings of an objective with masked tokens and their sentinels as targets."""

    def lengths(length: int) -> dict[str, int]:
        return {"inputs": length, "targets": 2 * math.ceil(rate * length) + 2}

    return _pretraining(name, lengths, rate=rate, **settings)


def _noise(rate: float, **settings: Any) -> Changes:
    return _masked("iid_replace_spans", rate=rate, **settings)


def _spans(mean: float) -> Changes:
    return _masked("span_corruption", mean_span=mean)


def _network(architecture: str = "encoder_decoder", layers: int = 2) -> Changes:
    both = {"model.encoder_layers": layers, "model.decoder_layers": layers}
    concatenated = {} if "encoder" in architecture else _CONCATENATED
    return {"model.architecture": architecture, **both, **concatenated}


def _arm(
    part: str,
    objective: Changes,
    *paper: float,
    network: Changes | None = None,
    fine_tuning: Changes | None = None,
    **more: Any,
) -> Arm:
    """Return an arm, optionally with the paper's numbers: GLUE, CNN/DM, SQuAD."""
    network = network or {}
    concatenated = {name: network[name] for name in _CONCATENATED if name in network}
    return Arm(
        changes={
            "pretraining": {**network, **objective},
            "fine_tuning": concatenated | (fine_tuning or {}),
        },
        paper=dict(zip(("average", "summary", "span"), paper, strict=True)) if paper else {},
        part=part,
        **more,
    )


def _repeated(times: int) -> Changes:
    return {"data.settings": {"share": _EPOCHS / times}}


def _adapted(width: int) -> Changes:
    return {"model.d_adapter": width, "optimizer.trained": ("adapter", "*norm")}


def _mixed(*tasks: str, left_out: tuple[str, ...] = _LEFT_OUT) -> Changes:
    """Return settings of pretraining on tasks in proportion to examples, K = 8,000 (3.5.3)."""
    loss = {"z_loss": 1e-4, "label_smoothing": 0.0}
    supervised = {
        "task": "pyglue",
        "objective": "text_to_text",
        "objective_settings": {},
        "settings": _FINE_TUNING["data.settings"] | {"leave_out": left_out},
        "lengths": _FINE_TUNING["data.lengths"],
    }
    known = {
        "denoising": {"share": 8_000.0, "loss": loss},
        "pyglue": {
            "share": 6_000.0,
            "loss": loss,
            "data": supervised,
            "evaluate": {"measures": {"loss": {}}},
        },
    }
    return {"tasks": {task: known[task] for task in tasks}}


_STRATEGIES = {
    "adapters_8": (_adapted(8), 80.52, 15.08, 79.32),
    "adapters_32": (_adapted(32), 81.51, 16.62, 79.47),
    "adapters_128": (_adapted(128), 81.54, 17.78, 79.18),
    "unfreezing": ({"optimizer.unfreeze_steps": _TUNING_STEPS}, 82.50, 18.95, 79.17),
}

_PREFIX, _SHUFFLED = _whole("prefix_lm"), _whole("deshuffling")
_NEXT = _pretraining("language_modeling", lambda length: {"targets": length})
_ALONE = {"data.converter": "decoder"}
_SHARED, _HALF = _network("shared_encoder_decoder"), _network(layers=1)
_DECODER, _PREFIX_DECODER = _network("decoder"), _network("prefix_decoder")
_TABLE_2 = "Table 2: architectures and objectives"
_BEYOND = "Deshuffling of other architectures, which the paper has not"
_TABLE_7 = "Table 7: lengths of spans"
_TABLE_9 = "Table 9: data repeated"
_TABLE_10 = "Table 10: fine-tuning a part of the parameters"
_TABLE_12 = "Table 12: multi-task training, without and with fine-tuning"
# No fine-tuning: a step of this rate leaves the pretrained parameters as they are.
_MEASURED_ONLY = {"train.steps": 1, "optimizer.learning_rate": 1e-9}

ARMS = {
    "baseline": _arm(_TABLE_2, _noise(0.15), 83.28, 19.24, 80.88),
    "shared": _arm(_TABLE_2, _noise(0.15), 82.81, 18.78, 80.63, network=_SHARED),
    "half": _arm(_TABLE_2, _noise(0.15), 80.88, 18.97, 77.59, network=_HALF),
    "decoder": _arm(_TABLE_2, _noise(0.15), 74.70, 17.93, 61.14, network=_DECODER),
    "prefix_decoder": _arm(_TABLE_2, _noise(0.15), 81.82, 18.61, 78.94, network=_PREFIX_DECODER),
    "baseline_lm": _arm(_TABLE_2, _PREFIX, 79.56, 18.59, 76.02),
    "shared_lm": _arm(_TABLE_2, _PREFIX, 79.60, 18.13, 76.35, network=_SHARED),
    "half_lm": _arm(_TABLE_2, _PREFIX, 78.67, 18.26, 75.32, network=_HALF),
    "decoder_lm": _arm(_TABLE_2, {**_NEXT, **_ALONE}, 73.78, 17.54, 53.81, network=_DECODER),
    "prefix_decoder_lm": _arm(_TABLE_2, _PREFIX, 79.68, 17.84, 76.87, network=_PREFIX_DECODER),
    "no_pretraining": _arm(
        "Table 1: no pretraining", _noise(0.15), 66.22, 17.60, 50.31, leaves_out=("pretraining",)
    ),
    "bert_style": _arm("Table 4: objectives", _whole("bert_style"), 82.96, 19.17, 80.65),
    "deshuffling": _arm("Table 4: objectives", _SHUFFLED, 73.17, 18.59, 67.61),
    **{
        f"{name}_deshuffling": _arm(_BEYOND, _SHUFFLED, network=network)
        for name, network in {
            "shared": _SHARED,
            "half": _HALF,
            "decoder": _DECODER,
            "prefix_decoder": _PREFIX_DECODER,
        }.items()
    },
    "mass_style": _arm("Table 5: simpler objectives", _whole("mass_style"), 82.32, 19.16, 80.10),
    "drop_tokens": _arm(
        "Table 5: simpler objectives",
        _masked("iid_drop_tokens"),
        *(84.44, 19.31, 80.52),
    ),
    "rate_10": _arm("Table 6: corruption rates", _noise(0.10), 82.82, 19.00, 80.38),
    "rate_25": _arm("Table 6: corruption rates", _noise(0.25), 83.00, 19.54, 80.96),
    "rate_50": _arm("Table 6: corruption rates", _noise(0.50), 81.27, 19.32, 79.80),
    "span_2": _arm(_TABLE_7, _spans(2.0), 83.54, 19.39, 82.09),
    "span_3": _arm(_TABLE_7, _spans(3.0), 83.49, 19.62, 81.84),
    "span_5": _arm(_TABLE_7, _spans(5.0), 83.40, 19.24, 82.05),
    "span_10": _arm(_TABLE_7, _spans(10.0), 82.85, 19.33, 81.84),
    "repeated_64": _arm(_TABLE_9, _noise(0.15) | _repeated(64), 82.87, 19.19, 80.97),
    "repeated_256": _arm(_TABLE_9, _noise(0.15) | _repeated(256), 82.62, 19.20, 79.78),
    "repeated_1024": _arm(_TABLE_9, _noise(0.15) | _repeated(1024), 79.55, 18.57, 76.27),
    "repeated_4096": _arm(_TABLE_9, _noise(0.15) | _repeated(4096), 76.34, 18.33, 70.92),
    **{
        name: _arm(_TABLE_10, _noise(0.15), *paper, fine_tuning=fine_tuning)
        for name, (fine_tuning, *paper) in _STRATEGIES.items()
    },
    "multi_task_alone": _arm(
        _TABLE_12,
        _noise(0.15, longer=_TUNING_STEPS) | _mixed("denoising", "pyglue"),
        *(81.42, 19.24, 79.78),
        fine_tuning=_MEASURED_ONLY,
    ),
    "multi_task": _arm(
        _TABLE_12, _noise(0.15) | _mixed("denoising", "pyglue"), 83.11, 19.12, 80.26
    ),
    "leave_one_out": _arm(
        _TABLE_12,
        _noise(0.15) | _mixed("denoising", "pyglue", left_out=(*_LEFT_OUT, "pyglue_span")),
        *(81.98, 19.05, 79.97),
    ),
    "supervised": _arm(_TABLE_12, _noise(0.15) | _mixed("pyglue"), 79.93, 18.96, 77.38),
}

_better = functools.partial(Claim, measure="average")
_as_good = functools.partial(Claim, measure="average", within=1.0)

CLAIMS = (
    _better("Pretraining helps (3.1.3).", "baseline", "no_pretraining"),
    _better("An encoder-decoder is better than a language model (3.2.4).", "baseline", "decoder"),
    _better("... and than a prefix language model.", "baseline", "prefix_decoder"),
    _as_good("Shared parameters do nearly as well.", "shared", "baseline"),
    _better("Shared parameters are better than a prefix LM.", "shared", "prefix_decoder"),
    _better("Half of the layers hurt.", "baseline", "half"),
    _better("Denoising is better than LM: encoder-decoder.", "baseline", "baseline_lm"),
    _better("... shared.", "shared", "shared_lm"),
    _better("... half of the layers.", "half", "half_lm"),
    _better("... decoder.", "decoder", "decoder_lm"),
    _better("... prefix decoder.", "prefix_decoder", "prefix_decoder_lm"),
    _better("BERT-style is better than prefix LM (3.3.1).", "bert_style", "baseline_lm"),
    _better("Prefix LM is better than deshuffling.", "baseline_lm", "deshuffling"),
    _as_good("Replacing spans does as well as BERT-style (3.3.2).", "baseline", "bert_style"),
    _as_good("MASS-style does as well.", "mass_style", "bert_style"),
    _better("A rate of 50% hurts (3.3.3).", "baseline", "rate_50"),
    _as_good("A rate of 10% does as well as 15%.", "rate_10", "baseline"),
    _as_good("... and one of 25%.", "rate_25", "baseline"),
    _better("Spans of 3 are better than single tokens (3.3.4).", "span_3", "baseline"),
    _as_good("64 repetitions do little harm (3.4.2).", "repeated_64", "baseline"),
    _better("1,024 repetitions hurt.", "baseline", "repeated_1024"),
    _better("4,096 repetitions hurt more.", "repeated_1024", "repeated_4096"),
    _better(
        "Training all parameters is better than small adapters (3.5.1).", "baseline", "adapters_8"
    ),
    _better("... and than larger ones.", "baseline", "adapters_128"),
    _better("Larger adapters are better than small ones.", "adapters_128", "adapters_8"),
    _as_good("Gradual unfreezing does nearly as well.", "unfreezing", "baseline"),
    _better("Multi-task training alone is worse (3.5.2).", "baseline", "multi_task_alone"),
    _as_good("Multi-task pretraining does as well (3.5.3).", "multi_task", "baseline"),
    _better("Supervised pretraining alone is worse.", "baseline", "supervised"),
    Claim(
        text="A task left out of pretraining does nearly as well.",
        measure="span",
        arm="leave_one_out",
        than="multi_task",
        within=1.0,
    ),
)


def _by_loss(claim: Claim) -> Claim:
    within = 0.05 if claim.within else 0.0
    return dataclasses.replace(claim, text=f"By loss: {claim.text}", measure="loss", within=within)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="The comparisons of T5 at demo size",
        source="Raffel et al. 2020, tables 1, 2, 4 to 7, 9, 10 and 12",
        needs={
            "runs/studies/pyglue_vocabulary.model": (
                "t5x_like.vocabulary --data=data/pyglue.py --size=3996 "
                "--output=runs/studies/pyglue_vocabulary.model"
            ),
        },
        runs={
            "pretraining": TrainingRun(config="configs/t5.py:demo", changes=_PRETRAINING),
            "fine_tuning": TrainingRun(
                config="configs/pyglue.py:text", changes=_FINE_TUNING, starts_from="pretraining"
            ),
        },
        arms=ARMS,
        measures={
            "average": OutcomeMeasure(
                run="fine_tuning", number="pyglue/average", scale=100.0, in_paper="GLUE"
            ),
            "loss": OutcomeMeasure(
                run="fine_tuning", number="pyglue_loss/average", smaller_is_better=True
            ),
            "span": OutcomeMeasure(
                run="fine_tuning",
                number="pyglue_span/benchmark/exact_match",
                scale=100.0,
                in_paper="SQuAD",
            ),
            "summary": OutcomeMeasure(
                run="fine_tuning",
                number="pyglue_summary/benchmark/rouge_2",
                scale=100.0,
                in_paper="CNN/DM",
            ),
        },
        claims=(*CLAIMS, *map(_by_loss, CLAIMS)),
        text="natural",
    )
