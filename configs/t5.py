"""T5, pretrained by span corruption and fine-tuned on pairs of texts.

    python -m t5x_like.train --config=configs/t5.py:small --config.workdir=runs/t5_small \
        --config.data.vocabulary=vocabulary.model

Sizes: `demo`; v1.1 `small`, `base`, `large`, `xl`, `xxl`; v1.0 `v1_0_small`, `v1_0_base`,
`v1_0_large`, `v1_0_3b`, `v1_0_11b`. All but the demo follow the baseline of the paper (Raffel et
al. 2020, section 3.1), which corrupts 15% of the tokens of C4 in spans of 3:

| section 3.1, table 1 | here |
|---|---|
| batch 2^16 tokens (512 x 128) | data.lengths.inputs=512, data.batch_size=128 |
| 2^19 = 524,288 steps | train.steps |
| Adafactor, inverse square root, k = 10^4 | optimizer.schedule=rsqrt, warmup_steps=10000 |
| dropout 0.1 (v1.1: none in pretraining) | model.dropout |

The comparisons of the paper, from the same file:

    --config.model.architecture=shared_encoder_decoder           (section 3.2)
    --config.model.encoder_layers=6 --config.model.decoder_layers=6
    --config.model.architecture=decoder --config.data.objective=language_modeling \
        --config.data.converter=decoder --config.data.lengths.targets=512
    --config.model.architecture=prefix_decoder --config.data.objective=prefix_lm \
        --config.data.converter=prefix_lm
    --config.data.objective=deshuffling, mass_style, iid_drop_tokens, ...   (section 3.3)

`fine_tuning` starts from a run or a folder in Hugging Face's format and reads pairs of texts:

    python -m t5x_like.train --config=configs/t5.py:fine_tuning --config.initialize=t5-v1_1-base \
        --config.workdir=runs/summaries --config.data.settings.files="cnn/*.jsonl" \
        --config.data.settings.inputs=article --config.data.settings.targets=highlights

| section 3.1.2 | here |
|---|---|
| 2^18 = 262,144 steps | train.steps |
| batch 2^16 tokens: 128 packed rows of 512 | data.batch_size, data.lengths, data.pack |
| Adafactor, constant rate of 0.001 | optimizer |
| dropout 0.1 | model.dropout |
| a checkpoint every 5,000 steps | checkpoint.every, keep_every: all are kept |
| the checkpoint that is best on validation data | checkpoint.best, kept beside the others |
| greedy decoding (section 3.7: 4 beams, length penalty 0.6 for long outputs) | decode |

The best checkpoint has the largest word F1 on validation data, decoded greedily every 5,000 steps;
for summaries set `--config.checkpoint.best=text_files/generation/rouge_2` and
`--config.evaluate.measures.generation.metrics="('rouge_2',)"`. Afterwards:

    python -m t5x_like.evaluate --config=configs/run.py:runs/summaries --checkpoint=best

`adapters` and `gradual_unfreezing` train only a part of the parameters (section 3.5.1), and
otherwise equal `fine_tuning`:

| section 3.5.1, table 10 | here |
|---|---|
| adapter layers, d = 32, 128, 512 or 2048 | model.d_adapter |
| only adapters and layer norms are updated | optimizer.trained=("adapter", "*norm") |
| 12 episodes of 2^18 / 12 steps, one more layer each | optimizer.unfreeze_steps = train.steps |

`multi_task` pretrains the base size on C4 and GLUE at once, each batch from one of the two (section
3.5.3); `fine_tuning` or `glue` then starts from that run. Tasks named in
`--config.tasks.glue.data.settings.leave_out="('glue_rte',)"` are left out, to be fine-tuned on
afterwards (leave-one-out), and GLUE's share is reduced accordingly.

| section 3.5.3, table 12 | here |
|---|---|
| in proportion to examples, at most K = 2^19 of a task | tasks.denoising.share, tasks.glue.share |
| 2^19 steps before 2^18 of fine-tuning | train.steps |

`glue` and `super_glue` fine-tune in the same way on the mixture of a benchmark (data/glue.py and
docs/tasks.md), and keep the checkpoint with the best average of its validation sets:

    python -m t5x_like.train --config=configs/t5.py:glue --config.initialize=t5-v1_1-base \
        --config.workdir=runs/glue --config.data.settings.folder=glue

The paper's baseline has 83.28 on GLUE and 71.36 on SuperGLUE (table 1).

The demo, `make demo`, learns in minutes on 2 CPU cores from the sentences in documentation strings
that use only 2,000 common words, in two phases: first rows with half of the tokens masked in spans
of three, then rows with two blanks of one or two tokens. Expect a held-out loss near 1.8 nats on
the second (unigram entropy of the targets, sentinels included: 3.76). About one blank in four is
filled exactly; most of the others fit their sentence.
"""

import ml_collections

from t5x_like.experiment import recipes


def _numbers(task: str, *metrics: str) -> tuple[str, ...]:
    return tuple(f"{task}/benchmark/{metric}" for metric in metrics)


# The numbers in the averages of the benchmarks: each task counts once (table 16).
_AVERAGES = {
    "glue": {
        "cola": _numbers("glue_cola", "matthews"),
        "sst2": _numbers("glue_sst2", "accuracy"),
        "mrpc": _numbers("glue_mrpc", "f1_binary", "accuracy"),
        "stsb": _numbers("glue_stsb", "pearson", "spearman"),
        "qqp": _numbers("glue_qqp", "f1_binary", "accuracy"),
        "mnli": (
            *_numbers("glue_mnli", "accuracy"),
            *_numbers("glue_mnli_mismatched", "accuracy"),
        ),
        "qnli": _numbers("glue_qnli", "accuracy"),
        "rte": _numbers("glue_rte", "accuracy"),
    },
    "super_glue": {
        "boolq": _numbers("super_glue_boolq", "accuracy"),
        "cb": _numbers("super_glue_cb", "f1_macro", "accuracy"),
        "copa": _numbers("super_glue_copa", "accuracy"),
        "multirc": _numbers("super_glue_multirc", "multirc_f1a", "multirc_exact_match"),
        "record": _numbers("super_glue_record", "record_f1", "record_exact_match"),
        "rte": _numbers("super_glue_rte", "accuracy"),
        "wic": _numbers("super_glue_wic", "accuracy"),
        "wsc": _numbers("super_glue_wsc", "referent"),
    },
}


# The number of training examples of the tasks in GLUE's mixture, all below 2^19.
_GLUE_EXAMPLES = {
    "glue_cola": 8_551,
    "glue_sst2": 67_349,
    "glue_mrpc": 3_668,
    "glue_qqp": 363_846,
    "glue_stsb": 5_749,
    "glue_mnli": 392_702,
    "glue_qnli": 104_743,
    "glue_rte": 2_490,
}


def get_config(size: str = "small") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    if size == "multi_task":
        return _multi_task()
    if size in _FINE_TUNING:
        return _FINE_TUNING[size]()
    if size in _AVERAGES:
        return _benchmark(size)
    config = recipes.pretraining(
        "t5", size, others=("demo", *_FINE_TUNING, "multi_task", *_AVERAGES)
    )
    config.loss = {"z_loss": 1e-4, "label_smoothing": 0.0}
    config.train.steps = 2**19
    config.optimizer = {"name": "adafactor", **recipes.rsqrt()}
    return config


def _fine_tuning() -> ml_collections.ConfigDict:
    config = recipes.fine_tuning("runs/t5_fine_tuning")
    config.model.dropout = 0.1
    config.loss = {"z_loss": 1e-4, "label_smoothing": 0.0}
    recipes.text_pairs(config)
    config.data.objective = "text_to_text"
    config.data.lengths = {"inputs": 512, "targets": 512}
    config.data.pack = True
    config.train.steps = 2**18
    config.optimizer = {"name": "adafactor", "schedule": "constant", "learning_rate": 1e-3}
    config.checkpoint.every = 5_000
    config.checkpoint.keep_every = 5_000
    config.checkpoint.best = "text_files/generation/f1"
    config.evaluate.every = 5_000
    config.evaluate.measures = {
        "loss": {},
        "generation": {"metrics": ("exact_match", "f1"), "every": 5_000},
    }
    config.decode = {"max_new_tokens": 512, "num_beams": 1}
    return config


def _adapters() -> ml_collections.ConfigDict:
    config = _fine_tuning()
    config.workdir = "runs/t5_adapters"
    config.model.d_adapter = 512
    config.optimizer.trained = ("adapter", "*norm")
    return config


def _gradual_unfreezing() -> ml_collections.ConfigDict:
    config = _fine_tuning()
    config.workdir = "runs/t5_gradual_unfreezing"
    config.optimizer.unfreeze_steps = recipes.steps(config)
    return config


_FINE_TUNING = {
    "fine_tuning": _fine_tuning,
    "adapters": _adapters,
    "gradual_unfreezing": _gradual_unfreezing,
}


def _benchmark(name: str) -> ml_collections.ConfigDict:
    config = _fine_tuning()
    config.workdir = f"runs/{name}"
    config.data.module = f"data/{name}.py"
    config.data.task = name
    config.data.settings = {"folder": ""}
    tasks = sorted({number.partition("/")[0] for own in _AVERAGES[name].values() for number in own})
    config.evaluate.tasks = tuple(tasks)
    config.evaluate.batches = 0
    config.evaluate.measures = {"loss": {}, "benchmark": {"every": 5_000}}
    config.evaluate.averages = {name: _AVERAGES[name]}
    config.checkpoint.best = f"{name}/average"
    config.decode.max_new_tokens = 32
    return config


def _multi_task() -> ml_collections.ConfigDict:
    config = get_config("v1_0_base")
    config.workdir = "runs/t5_multi_task"
    loss = config.loss.to_dict()
    config.tasks = {
        "denoising": {"share": float(2**19), "loss": loss},
        "glue": {
            "loss": loss,
            "data": {
                "module": "data/glue.py",
                "task": "glue",
                "objective": "text_to_text",
                "settings": {"folder": "", "leave_out": (), "rate_settings": {"limit": 2**19}},
                "lengths": {"inputs": 512, "targets": 62},
                "pack": True,
            },
            "evaluate": {"tasks": tuple(sorted(f"glue_{task}" for task in _AVERAGES["glue"]))},
        },
    }
    left_out = config.tasks.glue.data.settings.get_oneway_ref("leave_out")
    config.tasks.glue.share = recipes.following(left_out, _examples, default=0.0)
    return config


def _examples(left_out: tuple[str, ...]) -> float:
    """Return the number of training examples of the tasks in the mixture."""
    return float(sum(size for task, size in _GLUE_EXAMPLES.items() if task not in left_out))


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(get_config("small"), vocabulary="runs/demo/vocabulary.model", d_ff=384)
    config.workdir = "runs/demo"
    config.model.tied_head = True  # as in v1.0: the same embedding reads and predicts a word
    config.model.loop = "unroll"  # a sixth faster than a scan on a CPU
    # Plain sentences, from which a small model learns enough in minutes. The vocabulary is trained
    # on all prose: trained on only 2,000 words, it lacks pieces for some very common ones.
    config.data.settings.update({"prose": True, "common_words": 2000})
    config.data.batch_size = 16
    # A small model learns words by predicting many: first half of all tokens, the paper's highest
    # rate (section 3.3.3), and then blanks in nearly whole sentences, as in use.
    recipes.phases(
        config,
        words={
            "steps": 3000,
            "objective_settings": {"rate": 0.5, "mean_span": 3.0},
            "lengths": {"inputs": 22, "targets": 22},
        },
        blanks={
            "steps": 4500,
            "objective_settings": {"rate": 0.1, "mean_span": 1.5, "random_roll": True},
            "lengths": {"inputs": 31, "targets": 8},
        },
    )
    # A short run ends with a lower loss if its learning rate decays.
    config.optimizer = {
        "name": "adafactor",
        **recipes.linear(config, 0.02, warmup_steps=recipes.warmup(config, 100)),
    }
    config.evaluate.every = 1000
    config.evaluate.batches = 60
    config.checkpoint.every = 1000
    config.decode = {"max_new_tokens": 8, "num_beams": 4}
    return config
