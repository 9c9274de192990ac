"""ELMo's released models: a folder with AllenNLP's options in JSON and weights in HDF5."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from t5x_like import systems
from t5x_like.decoding.settings import GenerationSettings
from t5x_like.hf.architectures import Labels
from t5x_like.hf.folder import read_json

_CLIPS = {"cell_clip": "cell_clip", "proj_clip": "projection_clip"}
_SIZES = {"n_layers": "layers", "dim": "cell", "projection_dim": "d_model"}
# Options for which the network has no setting -> the only supported value.
_FIXED = {
    ("lstm", "use_skip_connections"): True,
    ("char_cnn", "activation"): "relu",
    ("char_cnn", "max_characters_per_token"): 50,
}


def is_released_elmo(folder: pathlib.Path) -> bool:
    """Return whether a folder has exactly one *options.json and one *.hdf5."""
    return all(len([*folder.glob(end)]) == 1 for end in ("*options.json", "*.hdf5"))


@dataclasses.dataclass(frozen=True)
class ReleasedElmo:
    """An ELMo in AllenNLP's format: a source of weights, without the output layer.

    Attributes:
        folder: the folder of the two files.
    """

    folder: pathlib.Path
    system: str = "elmo"
    model_type: str = ""
    run: dict[str, Any] = dataclasses.field(default_factory=dict)  # it has no run
    card: None = None
    labels: dict[str, Labels] = dataclasses.field(default_factory=dict)
    lora: dict[str, Any] = dataclasses.field(default_factory=dict)
    token_ids: dict[str, Any] = dataclasses.field(default_factory=dict)
    generation: GenerationSettings = dataclasses.field(default_factory=GenerationSettings)

    @property
    def config(self) -> dict[str, Any]:
        """The settings for the system's `build`, with the head `features`.

        Raises:
            ValueError: an option is missing, or its value is not supported.
        """
        (path,) = self.folder.glob("*options.json")
        options = read_json(path)
        for (part, name), value in _FIXED.items():
            if _option(path, options, part, name) != value:
                raise ValueError(
                    f"{path}: {part}.{name}={options[part][name]!r} is not supported; only "
                    f"{value!r} is"
                )
        settings = {ours: _option(path, options, "lstm", name) for name, ours in _SIZES.items()}
        clips = {ours: float(options["lstm"].get(name) or 0) for name, ours in _CLIPS.items()}
        convolutions = _option(path, options, "char_cnn", "filters")
        return {
            **systems.find("elmo").sizes["original"],
            **settings,
            **clips,
            "filters": tuple(tuple(convolution) for convolution in convolutions),
            "highways": _option(path, options, "char_cnn", "n_highway"),
            "head": "features",
        }

    def available(self, wanted: Mapping[str, Any]) -> set[str]:
        """Return the paths of the wanted parameters that the file has with the same shapes."""
        with self._open() as file:
            return {path for path, leaf in wanted.items() if _shape(file, path) == leaf.shape}

    def read(self, wanted: Mapping[str, Any], *, whole: bool) -> dict[str, Any]:
        """Read parameters, with the dtypes and shardings of the wanted ShapeDtypeStructs.

        Raises:
            ValueError: a parameter is missing or has another shape.
        """
        del whole  # the file has no parameters that the network lacks
        arrays = {}
        with self._open() as file:
            for path, leaf in wanted.items():
                if (shape := _shape(file, path)) != leaf.shape:
                    problem = "is missing" if shape is None else f"has shape {list(shape)}"
                    raise ValueError(
                        f"{file.filename}: the tensor of {path} {problem}; the options imply "
                        f"{list(leaf.shape)}"
                    )
                array = np.asarray(_find(file, path)).astype(leaf.dtype)
                arrays[path] = jax.device_put(array, leaf.sharding)
        return arrays

    def _open(self) -> Any:
        import h5py  # only these files need it

        (path,) = self.folder.glob("*.hdf5")
        try:
            return h5py.File(path, "r")
        except OSError as error:
            raise ValueError(f"{path} is not a file in the format HDF5: {error}") from error


def _option(path: pathlib.Path, options: Mapping[str, Any], part: str, name: str) -> Any:
    if name not in options.get(part, {}):
        raise ValueError(f"{path} lacks the option {part}.{name}")
    return options[part][name]


def _shape(file: Any, path: str) -> tuple[int, ...] | None:
    try:
        return np.shape(_find(file, path))
    except KeyError:
        return None


def _find(file: Any, path: str) -> np.ndarray:
    """Return the parameter at a path, in our layout.

    Raises:
        KeyError: the file has no such tensor.
    """
    if path == "words/embedding":  # row 0, padding, is not in the file
        table = file["char_embed"][...]
        return np.concatenate([np.zeros_like(table[:1]), table])
    if match := re.fullmatch(r"words/convolution_(\d+)/(\w+)", path):
        number, name = match.groups()
        tensor = file["CNN"][f"{'W' if name == 'kernel' else 'b'}_cnn_{number}"][...]
        return tensor[0] if name == "kernel" else tensor
    if match := re.fullmatch(r"words/highway_(\d+)/(gate|transform)/(\w+)", path):
        number, part, name = match.groups()
        part = "carry" if part == "gate" else part
        return file[f"CNN_high_{number}"][f"{'W' if name == 'kernel' else 'b'}_{part}"][...]
    if match := re.fullmatch(r"words/projection/(\w+)", path):
        return file["CNN_proj"]["W_proj" if match[1] == "kernel" else "b_proj"][...]
    if match := re.fullmatch(r"lstm/layer_(\d+)/(\w+)", path):
        number, name = match.groups()
        cells = [
            file[f"RNN_{direction}"]["RNN"]["MultiRNNCell"][f"Cell{number}"]["LSTMCell"]
            for direction in (0, 1)
        ]
        return np.stack([_of_cell(cell, name) for cell in cells])
    raise KeyError(path)


def _of_cell(cell: Any, name: str) -> np.ndarray:
    """Return a parameter of one LSTM; the gates are in our order: input, new, forget, output."""
    if name == "projection":
        return cell["W_P_0"][...]
    if name == "bias":
        bias = cell["B"][...].reshape(4, -1)
        bias[2] += 1  # TensorFlow adds 1 to the forget gate at run time
        return bias
    both = cell["W_0"][...]  # the rows for the inputs, then for the previous step's outputs
    inputs = both.shape[0] - cell["W_P_0"].shape[1]
    rows = both[:inputs] if name == "input" else both[inputs:]
    return rows.reshape(len(rows), 4, -1)
