"""Read a model's settings and parameters from the folder of a run or of another library."""

import dataclasses
import fnmatch
import functools
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import flax.traverse_util
import jax
import numpy as np
from absl import logging

from t5x_like import checkpoints, hub, paths, systems
from t5x_like.decoding.settings import GenerationSettings
from t5x_like.hf import folder as files
from t5x_like.hf import generation_config, weight_map, without_effect
from t5x_like.hf.architectures import Labels, read_labels
from t5x_like.hf.config_settings import TEXT
from t5x_like.hf.generation_config import TOKEN_IDS, read_generation
from t5x_like.hf.record import HuggingFaceFormat
from t5x_like.names import hint, note_code, trust_folder
from t5x_like.nn import lora
from t5x_like.pretrained import peft, t5x_files
from t5x_like.pretrained.allennlp import ReleasedElmo, is_released_elmo
from t5x_like.pretrained.assembled import assembled
from t5x_like.pretrained.model_card import ModelCard
from t5x_like.pretrained.t5x import T5XCheckpoint, find_checkpoint
from t5x_like.vocabularies import Vocabulary
from t5x_like.vocabularies import load as load_vocabulary

_T5X = "t5x:"  # prefix of a folder's path
# Tensors that transformers has written and computes again, or that are always zero.
_BUFFERS = (
    *("*position_ids", "*token_type_ids", "*.version", "final_logits_bias"),
    *("*.attn.bias", "*.attention.bias", "*.masked_bias", "*.inv_freq"),
)
Leaves = dict[str, Any]  # {path: array or shape}; "encoder/layers/block/feed_forward/wi/kernel"


class Source(Protocol):
    """The settings of a model in a folder, and access to its parameters."""

    @property
    def system(self) -> str:
        """The name of the model's system in t5x_like.systems."""

    @property
    def config(self) -> dict[str, Any]:
        """The settings for the system's `build`."""

    @property
    def generation(self) -> GenerationSettings:
        """The generation settings."""

    @property
    def token_ids(self) -> dict[str, Any]:
        """{name in config.json, such as `pad_token_id`: id}, of a folder or a run's vocabulary."""

    @property
    def model_type(self) -> str:
        """Hugging Face's `model_type`; empty for a checkpoint."""

    @property
    def labels(self) -> dict[str, Labels]:
        """{task: labels of its head}; the key is "" unless it is a run of several tasks."""

    @property
    def run(self) -> dict[str, Any]:
        """The metadata of a checkpoint (`step`, `config`, ...); {} for another library's folder."""

    @property
    def lora(self) -> dict[str, Any]:
        """The `rank` and `alpha` of the folder's LoRA matrices (`nn.lora`); {} if it has none."""

    @property
    def card(self) -> ModelCard | None:
        """The model card of a run's model; None for a model without a run."""

    def available(self, wanted: Leaves) -> set[str]:
        """Return the paths of the wanted parameters that the folder has with the same shapes.

        LoRA matrices are wanted together with their kernels.
        """

    def read(self, wanted: Leaves, *, whole: bool) -> Leaves:
        """Read parameters, with the dtypes and shardings of the wanted ShapeDtypeStructs.

        A kernel with LoRA matrices is read with their product added, unless the matrices are
        wanted, too.

        Args:
            whole: whether the folder must contain no other parameters.

        Raises:
            ValueError: a parameter is missing or left over, has another shape, or is not
                floating-point.
        """


def open_source(
    path: pathlib.Path,
    *,
    system: str | None = None,
    average: int = 1,
    whole: bool = False,
    trust_code: bool = False,
) -> Source:
    """Open a folder of Hugging Face, T5X or AllenNLP, a run or a checkpoint; read its settings.

    Args:
        path: the folder, or the file `checkpoint` of a T5X checkpoint. `t5x:FOLDER` also requires
            that FOLDER is a T5X checkpoint or contains such checkpoints. If there is no such
            folder, the path is the name of a model of Hugging Face's hub, see `hub`.
        system: the system to read a Hugging Face folder as, if several systems support its
            model_type; None for the default.
        average: the number of newest checkpoints to average, see `checkpoints.restore_params`;
            above 1 only for a run or a folder of checkpoints.
        whole: whether to read all networks of a run that trains a policy (`System.policy`), rather
            than only the policy.
        trust_code: whether to run the Python file that a checkpoint names as its system.

    Raises:
        ValueError: the folder does not exist, it has no model or a model that is not supported,
            `average` is above 1 for a folder with one model, or its system is a Python file that is
            not trusted.
    """
    address = str(path)
    path = paths.path(checkpoints.locate(paths.path(address.removeprefix(_T5X))))
    if path.name == t5x_files.FILE and path.is_file():  # T5X takes both
        path = path.parent
    if not path.is_dir():
        path = _of_hub(address, path)
    if address.startswith(_T5X) and not find_checkpoint(path):
        raise ValueError(
            f"{address!r}: {path} has neither a file `checkpoint` nor a folder checkpoint_STEP"
        )
    open_other = _opener(path, system)
    if open_other is not None and paths.in_bucket(path):
        raise ValueError(
            f"{path}: of a bucket only runs and their checkpoints are read: copy this folder to "
            "the machine"
        )
    if open_other is not None and average != 1:
        raise ValueError(
            f"average={average}: {path} contains one model; only the checkpoints of a run can be "
            "averaged"
        )
    open_ours = functools.partial(
        _open_checkpoint, path, average=average, whole=whole, trust_code=trust_code
    )
    source = (open_other or open_ours)()
    if system not in (None, source.system):
        raise ValueError(f"system={system!r}: {path} has a model of system {source.system!r}")
    return source


def data_settings(source: Source) -> dict[str, Any]:
    """Return the settings `data` of a run; {} for a folder without a run."""
    return source.run.get("config", {}).get("data", {})


def vocabulary_of(source: Source) -> str:
    """Return the path of the model's vocabulary, or its name; "" if it is not known.

    The files of a Hugging Face folder are together its vocabulary.
    """
    if isinstance(source, _HuggingFace):
        return str(source.tensors.folder)
    return _vocabulary_of_run(source.run)


def _vocabulary_of_run(stored: Mapping[str, Any]) -> str:
    of_data = stored.get("config", {}).get("data", {}).get("vocabulary")
    return str(of_data or stored.get("vocabulary", ""))


def _opener(path: pathlib.Path, system: str | None) -> Callable[[], Source] | None:
    """Return a function that opens a folder of T5X, Hugging Face or AllenNLP; None for others."""
    if checkpoint := find_checkpoint(path):
        return functools.partial(T5XCheckpoint, checkpoint)
    config = path / files.CONFIG
    if config.is_file() and "model_type" in (settings := files.read_json(config)):
        return functools.partial(_open_hugging_face, path, settings, system)
    if (path / peft.CONFIG).is_file():
        return functools.partial(_open_adapter, path, system)
    if is_released_elmo(path):
        return functools.partial(ReleasedElmo, path)
    if any(path.glob("*.safetensors")):
        raise ValueError(f"{path} contains tensors, but no {files.CONFIG} with a model_type")
    return None


def _of_hub(name: str, path: pathlib.Path) -> pathlib.Path:
    """Return the folder of a model of Hugging Face's hub.

    Args:
        name: the name of a model.
        path: the folder of this machine with this name, which does not exist.

    Raises:
        ValueError: it is not the name of a model, or the hub does not give the model.
    """
    beside = [p.name for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
    absent = f"there is no folder {path}.{hint(path.name, beside).partition(' Allowed: ')[0]}"
    if not hub.names(name):
        raise ValueError(absent)
    try:
        return hub.folder(name)
    except ValueError as error:
        raise ValueError(f"{absent} {error}") from error


def _open_adapter(path: pathlib.Path, wanted: str | None) -> Source:
    """Open a LoRA adapter of PEFT with its base model."""
    adapter = peft.read(path)
    settings = files.read_json(adapter.base / files.CONFIG)
    return _open_hugging_face(adapter.base, settings, wanted, adapter=adapter)


def _open_hugging_face(
    path: pathlib.Path,
    settings: Mapping[str, Any],
    wanted: str | None,
    *,
    adapter: peft.Adapter | None = None,
) -> Source:
    TEXT.check("model_type", settings["model_type"])
    if settings.get("quantization_config") is not None:
        raise ValueError(
            f"{path / files.CONFIG} has a quantization_config, and quantized weights are not "
            f"supported: {files.again(path, 'dequantize it')}"
        )
    names = settings.get("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names else ""
    readers = systems.hugging_face_readers(settings["model_type"], architecture=architecture)
    name = wanted or readers[0]
    if name not in readers:
        raise ValueError(
            f"system={name!r}: a folder of model_type {settings['model_type']!r} can be read as "
            f"{', '.join(readers)}"
        )
    base = files.TensorFiles(path)
    tensors: files.TensorFiles | peft.AdaptedTensors = base
    record = systems.hugging_face_format(name)
    config = record.from_config(settings, names=base.names)
    other_head = adapter.settings(config) if adapter else {}
    config |= other_head
    if adapter is not None:
        tensors = peft.AdaptedTensors(base, adapter, aliases=record.of(config).aliases)
    unread = record.without_effect(settings, names=base.names)
    without_effect.warn(
        path,
        *generation_config.without_effect(path, settings, unread),
        known=record.known | generation_config.KNOWN,
    )
    implied = {k: v for k, v in implied_generation(name, config).items() if settings.get(k) is None}
    generation = read_generation(path, {**settings, **implied})
    # The labels of a base belong to its head, if the adapter has another.
    labels = {"": read_labels(settings)} if "head" in config and not other_head else {}
    ids = {key: settings[key] for key in TOKEN_IDS if key in settings}
    return _HuggingFace(name, config, generation, ids, settings["model_type"], tensors, labels)


def implied_generation(system: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the generation settings that follow from a model's settings."""
    return {name: config[ours] for name, ours in systems.find(system).generation.items()}


@dataclasses.dataclass(frozen=True)
class _HuggingFace:
    """A folder in Hugging Face's format."""

    system: str
    config: dict[str, Any]
    generation: GenerationSettings
    token_ids: dict[str, Any]
    model_type: str
    tensors: files.TensorFiles | peft.AdaptedTensors
    labels: dict[str, Labels]
    run: dict[str, Any] = dataclasses.field(default_factory=dict)  # it has no run
    card: None = None

    @property
    def lora(self) -> dict[str, Any]:
        return {} if isinstance(self.tensors, files.TensorFiles) else self.tensors.adapter.lora

    def available(self, wanted: Leaves) -> set[str]:
        if matrices := {path for path in wanted if lora.is_matrix(path)}:
            rest = {path: leaf for path, leaf in wanted.items() if path not in matrices}
            return self.available(rest) | set(self._matrices(wanted))
        known = weight_map.mapped(self._record.weights, wanted)
        parts = self._parts({path: wanted[path] for path in known})
        names = self._names({piece.tensor for pieces in parts.values() for piece in pieces})
        return {
            path
            for path, pieces in parts.items()
            if all(
                piece.tensor in names
                and self.tensors.shape(names[piece.tensor][0]) == piece.tensor_shape
                for piece in pieces
            )
        }

    def read(self, wanted: Leaves, *, whole: bool) -> Leaves:
        matrices = self._matrices(wanted)
        beside = {f"{path.rpartition('/')[0]}/kernel" for path in matrices}
        stored = {path: leaf for path, leaf in wanted.items() if path not in matrices}
        complete = whole and not self.lora  # the base of an adapter may have another head
        parts = self._parts(stored)
        shapes = {piece.tensor: piece.tensor_shape for pieces in parts.values() for piece in pieces}
        names = self._names(shapes)
        present = set(names) if complete else set(names) & set(shapes)
        weight_map.check_names(shapes, present, where=str(self.tensors.folder))
        for name, shape in shapes.items():
            self._check_shape(names[name][0], names[name][1:], shape)
        used = {name for tensor in shapes for name in names[tensor]}
        _name_dropped(str(self.tensors.folder), frozenset(self.tensors.names) - used)
        params = {
            path: jax.device_put(array, wanted[path].sharding) for path, array in matrices.items()
        }
        # One parameter at a time, so that the host's memory holds only one.
        for path, leaf in stored.items():
            part = functools.partial(self._read_tensor, names, plain=path in beside)
            params[path] = assembled(leaf, parts[path], part)
        return params

    def _matrices(self, wanted: Leaves) -> dict[str, np.ndarray]:
        """Return the wanted LoRA matrices that the folder has, see `Adapter.matrices`."""
        shapes = {path: leaf.shape for path, leaf in wanted.items() if lora.is_matrix(path)}
        if not shapes or isinstance(self.tensors, files.TensorFiles):
            return {}
        kernels = {f"{path.rpartition('/')[0]}/kernel" for path in shapes}
        known = weight_map.mapped(self._record.weights, kernels)
        parts = self._parts({path: wanted[path] for path in known})
        return self.tensors.adapter.matrices(parts, shapes)

    def _read_tensor(
        self,
        names: Mapping[str, list[str]],
        name: str,
        index: weight_map.Index,
        *,
        plain: bool,
    ) -> np.ndarray:
        """Read a part of a tensor.

        Args:
            names: {tensor: its name in the files, and the names of its copies}.
            plain: whether to leave out the product of an adapter's matrices.

        Raises:
            ValueError: a copy is not equal to the tensor.
        """
        original, *copies = names[name]
        tensors = self.tensors
        if plain and isinstance(tensors, peft.AdaptedTensors):
            tensors = tensors.base
        tensor = tensors.read(original, index)
        if not np.isfinite(tensor).all():
            logging.warning("%s: %s has NaN or infinite values", self.tensors.folder, original)
        for copy in copies:
            if not np.array_equal(tensors.read(copy, index), tensor):
                raise ValueError(self._unlike(copy, original))
        return tensor

    @property
    def _record(self) -> HuggingFaceFormat:
        return systems.hugging_face_format(self.system).of(self.config)

    def _parts(self, wanted: Leaves) -> dict[str, list[weight_map.Piece]]:
        shapes = {path: leaf.shape for path, leaf in wanted.items()}
        return weight_map.pieces(self._record.weights, shapes)

    def _names(self, wanted: Iterable[str]) -> dict[str, list[str]]:
        """Map the names of tensors in the weight map to their names in the files."""
        used = set(wanted)
        return weight_map.canonical_names(
            set(self.tensors.names) - (set(self._record.unused) - used),
            self._record.aliases,
            wanted=used,
        )

    def _check_shape(self, name: str, copies: list[str], shape: tuple[int, ...]) -> None:
        """Check the shape of a tensor and of its copies."""
        if self.tensors.shape(name) != shape:
            raise ValueError(
                f"{self.tensors.folder}: {name} has shape {list(self.tensors.shape(name))}; "
                f"config.json implies {list(shape)}"
            )
        for copy in copies:
            if self.tensors.shape(copy) != shape:
                raise ValueError(self._unlike(copy, name))

    def _unlike(self, copy: str, original: str) -> str:
        return (
            f"{self.tensors.folder}: {copy} differs from {original}, but the model has one "
            "parameter for both"
        )


@functools.cache
def _name_dropped(folder: str, names: frozenset[str]) -> None:
    """Log one warning with the weights of a folder that the model does not use."""
    weights = [
        name
        for name in sorted(names)
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in _BUFFERS)
    ]
    if weights:
        logging.warning(
            "%s has weights that the model does not use and does not save again: %s",
            folder,
            weight_map.first_names(weights),
        )


def _open_checkpoint(path: pathlib.Path, *, average: int, whole: bool, trust_code: bool) -> Source:
    stored = checkpoints.read_metadata(path)
    config = stored.get("config", {})
    if "system" not in config or "model" not in config:
        raise ValueError(f"the checkpoint {path} lacks the config of its run")
    if trust_code:
        trust_folder(config)
    note_code(config, folder=path)
    system, settings = config["system"], systems.complete(config["system"], config["model"])
    part = "" if whole else systems.find(system).result
    if part:
        system, settings = systems.policy_of(system, settings)
    return _Checkpoint(system, settings, path, average, part, stored)


@dataclasses.dataclass(frozen=True)
class _Checkpoint:
    """A checkpoint, the newest checkpoint of a run, or the mean of its newest checkpoints.

    Attributes:
        part: the submodule of the run's network to read; empty for the whole network.
    """

    system: str
    config: dict[str, Any]
    path: pathlib.Path
    average: int
    part: str
    run: dict[str, Any]

    @property
    def model_type(self) -> str:
        return self.run.get("model_type", "")

    @functools.cached_property
    def generation(self) -> GenerationSettings:
        ids: dict[str, Any] = {}
        if self._vocabulary is not None:
            ids["eos_token_id"] = self._vocabulary.eos_id
            ids["pad_token_id"] = self._vocabulary.padding_id
            ids["decoder_start_token_id"] = self._vocabulary.start_id
        ids |= implied_generation(self.system, self.config)
        return GenerationSettings(**(ids | self.run.get("generation", {})))

    @property
    def token_ids(self) -> dict[str, Any]:
        if "token_ids" in self.run:
            return self.run["token_ids"]
        if self._vocabulary is None:
            return {}
        return {
            "bos_token_id": self._vocabulary.bos_id,
            "eos_token_id": self._vocabulary.eos_id,
            "pad_token_id": self._vocabulary.padding_id,
            "sep_token_id": self._vocabulary.sep_id,
        }

    @functools.cached_property
    def _vocabulary(self) -> Vocabulary | None:
        """The vocabulary; None if it is not known, or cannot be read where the run now is."""
        name = _vocabulary_of_run(self.run)
        try:
            return load_vocabulary(name)
        except ValueError as error:
            if name and "generation" not in self.run:
                logging.warning(
                    "%s: the vocabulary cannot be read, so special tokens have T5's ids "
                    "(padding and start 0, end 1): %s",
                    self.path,
                    error,
                )
            return None

    @property
    def labels(self) -> dict[str, Labels]:
        return {
            task: Labels(tuple(stored["names"]), stored.get("problem", ""))
            for task, stored in self.run.get("labels", {}).items()
        }

    @property
    def lora(self) -> dict[str, Any]:
        settings = self.run["config"].get("lora", {})
        return {name: settings[name] for name in ("rank", "alpha")} if settings.get("rank") else {}

    @property
    def card(self) -> ModelCard | None:
        is_run = "data_shards" in self.run  # rather than converted weights
        return ModelCard(self.run, self.path, self.average) if is_run else None

    def available(self, wanted: Leaves) -> set[str]:
        shapes = self._shapes()
        return {path for path, leaf in wanted.items() if shapes.get(path) == leaf.shape}

    def read(self, wanted: Leaves, *, whole: bool) -> Leaves:
        matrices = self._matrices() if self.lora else {}
        tree = flax.traverse_util.unflatten_dict(lora.beside(wanted, matrices), sep="/")
        if self.part:
            tree = {self.part: tree}
        params, step = checkpoints.restore_params(
            self.path, tree, whole=whole and not self.part, average=self.average
        )
        if step != self.run.get("step", step):  # else numbers would be named after another step
            raise checkpoints.DamagedCheckpointError(
                f"{self.path}: the parameters of step {self.run['step']} are damaged: to use those "
                f"of step {step}, name the folder of its checkpoint (--checkpoint=FOLDER)"
            )
        leaves = flax.traverse_util.flatten_dict(
            params[self.part] if self.part else params, sep="/"
        )
        return lora.merge(leaves, wanted, scale=lora.scale_of(**self.lora)) if matrices else leaves

    def _matrices(self) -> Leaves:
        """Return the shapes of the LoRA matrices."""
        return {
            path: jax.ShapeDtypeStruct(shape, np.float32)
            for path, shape in self._shapes().items()
            if lora.is_matrix(path)
        }

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the stored parameters in `part`, by path."""
        before, shapes = f"{self.part}/" if self.part else "", {}
        for path, shape in checkpoints.parameter_shapes(self.path).items():
            if path.startswith(before):
                shapes[path.removeprefix(before)] = shape
        return shapes
