"""Write the model card of a run's model, README.md beside its weights.

Hugging Face's hub shows this file as the model's page. It contains what the run's checkpoint
stores, and the held-out numbers that the run's folder has for the same step.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from t5x_like.decoding.settings import GenerationSettings

FILE = "README.md"
# The numbers in the folder of a run: of each evaluated step, and of the command `evaluate`.
_LOG, _EVALUATED = "metrics.jsonl", "evaluation.json"
_TRAINING = "train/"  # the beginning of the names of numbers that are not held-out
_SECTIONS = ("model", "data", "tasks", "loss", "train", "optimizer")


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """The model card of the model in a run's checkpoint.

    Attributes:
        stored: the metadata of the checkpoint.
        folder: the folder of the run, of its checkpoints or of one checkpoint.
        average: the number of averaged checkpoints; only one checkpoint has numbers.
    """

    stored: Mapping[str, Any]
    folder: pathlib.Path
    average: int = 1

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the run."""
        return self.stored["config"]

    @property
    def chat_template(self) -> Any:
        """The setting `template` of the run's data, see `chat.find_template`; None without it."""
        return self.settings.get("data", {}).get("settings", {}).get("template")

    @property
    def decode(self) -> dict[str, Any]:
        """The settings of `generate` in the run's `decode`."""
        known = {field.name for field in dataclasses.fields(GenerationSettings)}
        decode = self.settings.get("decode", {})
        return {name: value for name, value in decode.items() if name in known}

    @property
    def base(self) -> str:
        """The model of the hub that the run started from; empty for any other start."""
        start = self.settings.get("initialize", "")
        is_of_hub = start in self.stored.get("fingerprints", {}).get("hub", {})
        return start.partition("@")[0] if is_of_hub else ""

    def numbers(self) -> dict[str, float]:
        """Read the held-out numbers of the checkpoint's step in the folder of the run."""
        inside = (self.folder, *self.folder.parents)
        workdir = next((path.parent for path in inside if path.name == "checkpoints"), None)
        if (self.folder / "checkpoints").is_dir():
            workdir = self.folder
        if workdir is None or self.average != 1:
            return {}
        rows = [row for row in _rows(workdir / _LOG) if row.get("step") == self.stored["step"]]
        numbers = {
            name: value
            for row in rows
            for name, value in row.items()
            if name != "step" and not name.startswith(_TRAINING)
        }
        for last in _rows(workdir / _EVALUATED, single=True):
            if last.get("step") == self.stored["step"]:
                for task, values in last["tasks"].items():
                    numbers |= {f"{task}/{name}" if task else name: n for name, n in values.items()}
        return {name: value for name, value in numbers.items() if isinstance(value, int | float)}

    def text(self, config: Mapping[str, Any]) -> str:
        """Return the card of the model in a folder with this config.json."""
        kind, numbers = config["architectures"][0], self.numbers()
        system, start = self.settings["system"], self.settings.get("initialize", "")
        header = ["library_name: transformers", "tags:", "- t5x_like", f"- {config['model_type']}"]
        if self.base:
            header.append(f"base_model: {self.base}")
        parts = [
            "\n".join(["---", *header, "---"]),
            f"# {system}",
            f"The system `{system}` of t5x_like, trained up to step {self.stored['step']:,}"
            f"{f' from `{_shown(start)}`' if start else ''}.",
            "## Held-out numbers",
            _table(numbers) if numbers else "The run's folder has none at this step.",
            "## How to load it",
            _code("python", 'import t5x_like\n\nmodel = t5x_like.from_pretrained("FOLDER")'),
            _code(
                "python",
                f"from transformers import AutoTokenizer, {kind}\n\n"
                f'model = {kind}.from_pretrained("FOLDER")\n'
                'tokenizer = AutoTokenizer.from_pretrained("FOLDER")',
            ),
            "## Settings",
            "Model, data and training, as the config of t5x_like names them:",
            _code("json", json.dumps(self._sections(), indent=2, ensure_ascii=False)),
        ]
        return "\n\n".join(parts) + "\n"

    def _sections(self) -> Any:
        return _shown({name: self.settings[name] for name in _SECTIONS if self.settings.get(name)})


def _rows(file: pathlib.Path, *, single: bool = False) -> list[dict[str, Any]]:
    """Return the objects of JSON Lines, or the only object of a JSON file; [] without a file."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    rows = []
    for line in [text] if single else text.split("\n"):
        with contextlib.suppress(ValueError):  # a kill may leave a part of a line
            rows.append(json.loads(line))
    return rows


def _table(numbers: Mapping[str, float]) -> str:
    rows = [f"| `{name}` | {value:.5g} |" for name, value in sorted(numbers.items())]
    return "\n".join(["| number | value |", "|---|---|", *rows])


def _shown(value: Any) -> Any:
    """Return settings without the folders of this machine."""
    if isinstance(value, Mapping):
        return {name: _shown(element) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(element) for element in value]
    is_path = isinstance(value, str) and os.path.isabs(os.path.expanduser(value))
    return f".../{os.path.basename(value.rstrip('/'))}" if is_path else value


def _code(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"
