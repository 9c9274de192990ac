"""InstructGPT on documentation: all stages for several seeds, and the paper's comparisons.

    python -m benchmarks.instructgpt --out=runs/instructgpt --seeds=0,1,2 --write=docs/studies

data/generators/instructions.py has the instructions, and the labeler that replaces people. For each
seed, in OUT/SEED:

    lm, large           language models of 0.4 and 4.5 million parameters, on the same texts
    sft                 lm, fine-tuned on demonstrations
    samples, compared   four responses of sft to each instruction, ranked by a noisy labeler
    reward              sft, trained as a reward model on these comparisons, and normalized
    ppo_...             sft, trained by PPO with three values of beta, and by PPO-ptx with one
    measured.json       labels and rewards of the responses to the test instructions

A finished stage is not run again, so that after a kill the same command, with the same --steps,
continues; processes with other seeds may run at the same time. At the end the table is written from
all measured seeds.
"""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import instructgpt_measures, instructgpt_table
from benchmarks.instructgpt_measures import LENGTHS
from data.generators import instructions
from t5x_like import checkpoints
from t5x_like.config import one_line_errors
from t5x_like.experiment.command_line import ArgumentParser, check_folder

BETAS = (0.02, 0.1, 0.5)
PTX = "ppo_ptx"
_PTX_BETA, _PTX_GAMMA, _PTX_ROWS = 0.1, 1.0, 2
_MISSING_END = -1.0  # one standard deviation of rewards below the mean of demonstrations
_PPO_STEPS = 60
RESPONSES = 4  # compared responses per instruction
# Notes about the runs for the page.
NOTES = (
    "The policies, also those along the curves, are moving averages of the weights (0.992 an "
    "update, 4 updates a step), as the paper's are.",
    f"PPO-ptx has beta {_PTX_BETA}, gamma {_PTX_GAMMA} and {_PTX_ROWS} pretraining rows an "
    "episode; the paper has 0.02, 27.8 and 8.",
    "Instructions, demonstrations and vocabulary are the same for all seeds; sampling, the "
    "labeler's noise and the weights are each seed's own.",
    f"A response without an end token in its {LENGTHS['targets']} tokens has the reward "
    f"{_MISSING_END} in training, instead of the reward model's (Huang et al. 2024, \"The N+ "
    'Implementation Details of RLHF with PPO"); `ended` is the share of the others.',
)
_DATA = ("demonstrations", "compared", "prompts", "test", "texts", "held_out_texts")
# 0.43 and 4.5 million parameters; the embedding tables have 0.20 and 0.52 million.
_SMALL = {"vocab_size": 2048, "layers": 2, "d_model": 96, "heads": 4, "d_ff": 384}
_LARGE = {"vocab_size": 2048, "layers": 5, "d_model": 256, "heads": 8, "d_ff": 1024}


def policies() -> list[str]:
    """Return the names of the PPO runs."""
    return [*(f"ppo_{beta}" for beta in BETAS), PTX]


def main(arguments: Sequence[str]) -> None:
    """Run the missing stages of each seed, and write the table."""
    parser = ArgumentParser(__doc__, prog="python -m benchmarks.instructgpt")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="of the runs")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--write", metavar="FOLDER", help="for table and figure (--out)")
    parser.add_argument("--steps", type=float, default=1.0, help="times the steps, to try it out")
    options = parser.parse_args(arguments)
    out = Path(options.out)
    with one_line_errors():
        check_folder("--out", out)
        check_folder("--write", options.write or out)
        seeds = [int(one) for one in options.seeds.split(",")]
        keep_steps(out, options.steps)
        _prepare(out)
        for seed in seeds:
            Stages(out, out / str(seed), seed, options.steps).run()
    path = instructgpt_table.write(out, Path(options.write or out), policies(), notes=NOTES)
    print(path.read_text())
    print(f"written to {path}")


def keep_steps(out: Path, steps: float) -> None:
    """Write --steps beside the data, once.

    Finished stages are used again in any case, so that otherwise a trial with fewer steps would mix
    with a full run.

    Raises:
        ValueError: the folder was made with other steps (with 1 if it has data but no such file).
    """
    file = out / "steps.json"
    if not file.is_file():
        made = any((out / f"{name}.jsonl").is_file() for name in _DATA)
        out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(1.0 if made else steps))
    before = json.loads(file.read_text())
    if steps != before:
        raise ValueError(
            f"--steps={steps}: {out} was made with --steps={before}, and its files would be used "
            "again: give another --out"
        )


def _prepare(out: Path) -> None:
    """Make the files and the vocabulary, which all seeds share."""
    if not all((out / f"{name}.jsonl").is_file() for name in _DATA):
        instructions.main([f"--output={out}"])
    if not (out / "vocabulary").is_dir():
        _command(
            "vocabulary",
            "--data=data/grain_files.py",
            f"--set=files={out}/texts.jsonl",
            *("--kind=gpt2_bpe", "--size=2048", f"--output={out}/vocabulary"),
        )


@dataclasses.dataclass(frozen=True)
class Stages:
    """The stages of a seed.

    Attributes:
        out: the folder of the data.
        folder: the folder of the seed's runs.
        seed: the seed of all stages.
        scale: factor for the numbers of steps.
    """

    out: Path
    folder: Path
    seed: int
    scale: float

    def run(self) -> None:
        """Run the missing stages."""
        self._pretrain()
        self._fine_tune()
        self._reward()
        self._optimize()
        if not (self.folder / "measured.json").is_file():
            instructgpt_measures.measure(self.out, self.folder, policies(), seed=self.seed)

    def _pretrain(self) -> None:
        texts = {
            "data.module": "data/grain_files.py",
            "data.task": "grain_files",
            "data.settings.files": self.out / "texts.jsonl",
            "data.vocabulary": self.out / "vocabulary",
            "data.batch_size": 32,
        }
        for name, network, rate in (("lm", _SMALL, 2e-3), ("large", _LARGE, 1e-3)):
            model = {f"model.{key}": value for key, value in network.items()}
            self._train(name, "configs/gpt2.py:demo", 1000, **texts, **model, **_rate(rate))

    def _fine_tune(self) -> None:
        own = {
            "data.settings.train": self.out / "demonstrations.jsonl",
            "decode.max_new_tokens": LENGTHS["targets"],
            "model.dropout": 0.0,
        }
        config = f"configs/instructgpt.py:sft:{self.folder}/lm"
        self._train("sft", config, 600, **own, **_lengths(), **_rate(1e-3))

    def _reward(self) -> None:
        """Sample and compare responses of sft, and train the reward model on the comparisons."""
        compared, rewards = self.folder / "compared.jsonl", self.folder / "reward" / "rewards.json"
        if not compared.is_file():
            samples = self.folder / "samples.jsonl"
            instructgpt_measures.sample(
                self.out, self.folder / "sft", samples, number=RESPONSES, seed=self.seed
            )
            instructions.main([f"--rank={samples}", f"--output={compared}", f"--seed={self.seed}"])
        own = {"data.settings.train": compared, "data.objective_settings.responses": RESPONSES}
        own |= {"data.batch_size": 32, **_lengths(), **_rate(3e-4)}
        self._train("reward", f"configs/instructgpt.py:reward:{self.folder}/sft", 150, **own)
        if not rewards.is_file():
            _command(
                "evaluate",
                f"--config=configs/instructgpt.py:rewards:{self.folder}/reward",
                f"--config.data.settings.validation={self.out}/demonstrations.jsonl",
                *_flags(_lengths()),
                f"--output={rewards}",
            )

    def _optimize(self) -> None:
        every = max(1, int(_PPO_STEPS * self.scale) // 5)
        shared = {
            "data.settings.prompts": self.out / "prompts.jsonl",
            "data.batch_size": 128,
            "train.minibatches": 4,
            "loss.missing_end": _MISSING_END,
            **_rate(1e-4),
            "optimizer.start_learning_rate": 1e-5,
            **{"checkpoint.every": every, "checkpoint.keep": 9, "evaluate.every": every},
        }
        alone = {"loss.gamma_ptx": 0.0, "data.objective_settings.pretraining_rows": 0}
        mixed = {"loss.gamma_ptx": _PTX_GAMMA}
        mixed["data.objective_settings.pretraining_rows"] = _PTX_ROWS
        mixed["data.settings.pretraining"] = self.out / "texts.jsonl"
        arms = {f"ppo_{beta}": {**alone, "loss.beta": beta} for beta in BETAS}
        arms[PTX] = {**mixed, "loss.beta": _PTX_BETA}
        config = f"configs/ppo.py:{self.folder}/sft:{self.folder}/reward"
        for name, own in arms.items():
            self._train(name, config, _PPO_STEPS, **shared, **own)

    def _train(self, name: str, config: str, steps: int, **changes: object) -> None:
        """Train a run, unless its last checkpoint exists."""
        total = max(4, int(steps * self.scale))
        if total in checkpoints.checkpoint_steps(self.folder / name / "checkpoints"):
            return
        settings = {
            "workdir": self.folder / name,
            **{f"{part}.seed": self.seed for part in ("train", "data")},
            "train.steps": total,
            "train.log_every": max(1, total // 20),
            "optimizer.warmup_steps": total // 15,
            "checkpoint.every": total,
            "evaluate.every": total,
            **changes,
        }
        _command("train", f"--config={config}", *_flags(settings))


def _lengths() -> dict[str, object]:
    return {f"data.lengths.{name}": size for name, size in LENGTHS.items()}


def _rate(rate: float) -> dict[str, object]:
    return {"optimizer.learning_rate": rate}


def _flags(settings: dict[str, object]) -> list[str]:
    return [f"--config.{name}={value}" for name, value in settings.items()]


def _command(name: str, *arguments: str) -> None:
    """Run a command of the package; if it fails, exit with its status after its message."""
    words: Sequence[str] = [sys.executable, "-m", f"t5x_like.{name}", *arguments]
    print(" ".join(words[1:]), flush=True)
    status = subprocess.run(words, stdout=subprocess.DEVNULL).returncode
    if status:
        sys.exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
