"""A batch that grows in phases over weighted corpora: one stream, and what is read of each."""

import jax
import numpy as np
import pytest

from t5x_like import checkpoints, config, train, vocabularies
from t5x_like.batches import converters
from t5x_like.config import parse
from t5x_like.experiment import reporting
from t5x_like.experiment.run import of_config
from t5x_like.preprocessing import seqio_objectives, sources
from t5x_like.preprocessing.pipeline import SeqioBatches
from t5x_like.systems import gpt3

pytestmark = pytest.mark.usefixtures("one_device")

PHASES = {"small": {"steps": 2, "batch_size": 8}, "large": {"steps": 3, "batch_size": 16}}
EPOCHS = ("epochs/mixture_files_few", "epochs/mixture_files_many")


class Killed(BaseException):
    """Ends a run at once, as no `except Exception` notices."""


def settings(folder, *, saved_every=5):
    for name, lines in (("few", 40), ("many", 900)):
        (folder / f"{name}.txt").write_text("".join(f"{name} {n:04}\n" for n in range(lines)))
    made = config.defaults()
    made.system = "gpt3"
    made.workdir = str(folder / "run")
    made.model = gpt3.SIZES["small"] | {
        "vocab_size": 384,
        "positions": 16,
        "layers": 2,
        "d_model": 16,
        "d_ff": 16,
        "heads": 2,
        "head_width": 8,
        "window": 4,
    }
    made.data.module = "data/mixture_files.py"
    made.data.task = "mixture_files"
    made.data.settings = {
        "corpora": {
            name: {"files": str(folder / f"{name}.txt"), "weight": weight}
            for name, weight in (("few", 3.0), ("many", 1.0))
        },
        "held_out": 0.2,
    }
    made.data.vocabulary = "bytes"
    made.data.objective = "language_modeling"
    made.data.converter = "decoder"
    made.data.lengths = {"targets": 16}
    made.data.shards = 1
    made.train.steps = 5
    made.train.phases = ("small", "large")
    made.phases = PHASES
    made.train.log_every = 1
    made.optimizer = {"name": "adamw", "schedule": "constant", "learning_rate": 1e-3}
    made.checkpoint.every = saved_every
    made.evaluate.every = 1
    made.evaluate.batches = 1
    made.evaluate.tasks = ("mixture_files_few",)
    return made


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The folder of a whole run, and the rows that it was trained on."""
    folder, rows = tmp_path_factory.mktemp("straight"), []
    fit = train.fit

    def recording(state, *, put, **settings):
        def put_and_record(batch):
            rows.append(batch["decoder_target_tokens"])
            return put(batch)

        return fit(state, put=put_and_record, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "fit", recording)
        train.main(parse(settings(folder)))
    return folder, rows


def stream(folder):
    """The data as a run without phases reads them."""
    made = settings(folder)
    sources.load_module(made.data.module).register(
        vocabularies.load(made.data.vocabulary),
        seqio_objectives.build("language_modeling"),
        **made.data.settings.to_dict(),
    )
    return SeqioBatches(
        "mixture_files",
        split="train",
        batch_size=8,
        lengths=made.data.lengths.to_dict(),
        converter=converters.build("decoder"),
    )


@pytest.mark.slow
def test_a_phase_of_another_batch_size_reads_on(straight):
    folder, rows = straight
    assert [len(batch) for batch in rows] == [8, 8, 16, 16, 16]
    one = stream(folder)
    expected = [next(one)["decoder_target_tokens"] for _ in range(8)]
    np.testing.assert_array_equal(np.concatenate(rows), np.concatenate(expected))


def test_epochs_grow_by_what_is_read_and_never_ahead_of_the_step(straight):
    log = reporting.read_log(straight[0] / "run")
    few, many = (log[name] for name in EPOCHS)
    sizes = stream(straight[0]).sizes()
    read = [sum(log[f"epochs/{task}"][step] * size for task, size in sizes.items()) for step in few]
    tokens = np.cumsum([np.count_nonzero(batch) for batch in straight[1]])
    np.testing.assert_allclose(read, tokens, rtol=1e-6)
    assert few[5] > 1 > many[5]


@pytest.mark.slow
def test_a_run_that_dies_logs_the_same_epochs(straight, tmp_path, monkeypatch):
    show = reporting.ProgressLine.__call__

    def die(self, step, values):
        show(self, step, values)
        if step == 4:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(reporting.ProgressLine, "__call__", die)
        with pytest.raises(Killed):
            train.main(parse(settings(tmp_path, saved_every=1)))
    train.main(parse(settings(tmp_path, saved_every=1)))
    logs = [reporting.read_log(folder / "run") for folder in (straight[0], tmp_path)]
    for name in EPOCHS:
        assert logs[0][name] == logs[1][name]
    parameters = [
        checkpoints.restore_params(folder / "run")[0] for folder in (straight[0], tmp_path)
    ]
    jax.tree.map(np.testing.assert_array_equal, *parameters)


def test_only_a_batch_size_reads_on(tmp_path):
    made = settings(tmp_path)
    made.train.phases = ("small", "large", "long", "longer", "again")
    made.phases = PHASES | {
        "long": {"steps": 1, "batch_size": 16, "lengths": {"targets": 8}},
        "longer": {"steps": 1, "batch_size": 32, "lengths": {"targets": 8}},
        "again": {"steps": 1, "batch_size": 32, "lengths": {"targets": 8}, "seed": 7},
    }
    made.train.steps = 8
    found = of_config(made).phases
    assert [phase.reading for phase in found] == ["small", "small", "long", "long", "again"]
    assert [phase.data.seed for phase in found] == [0, 0, 2, 2, 7]
    assert [(phase.first, phase.last) for phase in found] == [
        (0, 2),
        (2, 5),
        (5, 6),
        (6, 7),
        (7, 8),
    ]
