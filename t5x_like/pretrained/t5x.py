"""T5X's checkpoints of T5 (also mT5, Flan-T5, ...), umT5 and Switch as sources of weights.

Their networks have an array for each layer (examples/t5), or one for all layers.
"""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
from jaxtyping import PyTree

from t5x_like import systems
from t5x_like.decoding.settings import GenerationSettings
from t5x_like.hf import weight_map
from t5x_like.hf.architectures import Labels
from t5x_like.hf.weight_map import Piece, WeightMap
from t5x_like.pretrained.assembled import assembled, copy_part
from t5x_like.pretrained.t5x_files import FILE, StoredArrays, write
from t5x_like.pretrained.t5x_optimizers import Adafactor, Adam

# By tower, our name of an attention -> T5X's names of the attention and of the layer norm before.
_ATTENTIONS = {
    "encoder": {"self_attention": ("attention", "pre_attention_layer_norm")},
    "decoder": {
        "self_attention": ("self_attention", "pre_self_attention_layer_norm"),
        "cross_attention": ("encoder_decoder_attention", "pre_cross_attention_layer_norm"),
    },
}
_PROJECTIONS = ("query/kernel", "key/kernel", "value/kernel")
_INTO_HIDDEN = ("wi/kernel", "wi_0/kernel", "wi_1/kernel")
_ENDS: WeightMap = {
    "token_embedder/embedding": "token_embedder/embedding",
    "lm_head/kernel": "decoder/logits_dense/kernel",
}


def layer_by_layer() -> WeightMap:
    """Return the weight map of a network with separate arrays for each layer."""
    weights: dict[str, Any] = dict(_ENDS)
    for tower, attentions in _ATTENTIONS.items():
        layer, t5x_layer = f"{tower}/layers/{{layer}}", f"{tower}/layers_{{layer}}"
        weights[f"{tower}/relative_position_bias/embedding"] = (
            f"{tower}/relpos_bias/rel_embedding",
            "H N -> N H",
        )
        weights[f"{tower}/final_norm/scale"] = f"{tower}/{tower}_norm/scale"
        weights[f"{layer}/feed_forward_norm/scale"] = f"{t5x_layer}/pre_mlp_layer_norm/scale"
        for kernel in (*_INTO_HIDDEN, "wo/kernel"):
            weights[f"{layer}/feed_forward/{kernel}"] = f"{t5x_layer}/mlp/{kernel}"
        for ours, (theirs, norm) in attentions.items():
            weights[f"{layer}/{ours}_norm/scale"] = f"{t5x_layer}/{norm}/scale"
            for kernel in _PROJECTIONS:
                line = (f"{t5x_layer}/{theirs}/{kernel}", "D (H K) -> D H K")
                weights[f"{layer}/{ours}/{kernel}"] = line
            line = (f"{t5x_layer}/{theirs}/out/kernel", "(H K) D -> H K D")
            weights[f"{layer}/{ours}/out/kernel"] = line
    return weights


def decoder_only() -> WeightMap:
    """Return the weight map of a decoder-only network with separate arrays for each layer."""
    weights: dict[str, Any] = {
        ours: theirs
        for ours, theirs in layer_by_layer().items()
        if ours.startswith("decoder/") and "cross_attention" not in ours
    }
    return {**weights, **_ENDS, "token_embedder/embedding": "decoder/token_embedder/embedding"}


def with_experts(*, sparse_every: int) -> WeightMap:
    """Return the weight map of flaxformer's Switch Transformer, with separate arrays per layer.

    Args:
        sparse_every: the number of layers in a group here, 1 or 2; the last has experts.
    """
    # Our path of each layer in a group -> its layer number there.
    layers = {"{layer}": "{layer}"}
    if sparse_every == 2:
        layers = {f"{{layer}}/block_{n}": f"{{2*layer+{n}}}" for n in range(2)}
    last_layer, last_t5x_layer = list(layers.items())[-1]
    weights: dict[str, Any] = {}
    for ours, line in layer_by_layer().items():
        theirs, *layout = [line] if isinstance(line, str) else line
        for layer, t5x_layer in layers.items():
            t5x_name = theirs.replace("{layer}", t5x_layer)
            weights[ours.replace("{layer}", layer)] = (t5x_name, *layout) if layout else t5x_name
    for tower in _ATTENTIONS:
        feed_forward = f"{tower}/layers/{last_layer}/feed_forward"
        mlp = f"{tower}/layers_{last_t5x_layer}/mlp"
        weights[f"{feed_forward}/router/kernel"] = f"{mlp}/router/router_weights/w/kernel"
        for kernel in (*_INTO_HIDDEN, "wo/kernel"):
            weights[f"{feed_forward}/experts/{kernel}"] = f"{mlp}/expert/{kernel}"
    return weights


def stacked(**layers: int) -> WeightMap:
    """Return the weight map of a network whose arrays stack all layers of a tower.

    Args:
        layers: the number of layers of each tower.
    """
    weights: dict[str, Any] = dict(_ENDS)
    for tower, count in layers.items():
        weights[f"{tower}/final_norm/scale"] = f"{tower}/{tower}_norm/scale"
        # Our scanned stack stacks the layers, too; our looped stack has each layer's part.
        parts = {"block": "L"} | {f"layer_{n}": f"{n}/{count}" for n in range(count)}
        for name, (theirs, t5x_axes, axes) in _within_a_layer(tower).items():
            first, *rest = t5x_axes.split()
            for child, part in parts.items():
                ours = f"L {axes}" if child == "block" else axes
                layout = f"{' '.join([first, part, *rest])} -> {ours}"
                weights[f"{tower}/layers/{child}/{name}"] = (f"{tower}/{tower}/{theirs}", layout)
    return weights


def _within_a_layer(tower: str) -> dict[str, tuple[str, str, str]]:
    """Return {our name within a layer: (T5X's name, axes there, axes here)}."""
    names = {
        "self_attention/relative_position_bias/embedding": (
            "relpos_bias/rel_embedding",
            "H N",
            "N H",
        ),
        "feed_forward_norm/scale": ("pre_mlp_layer_norm/scale", "D", "D"),
        "feed_forward/wo/kernel": ("mlp/wo/kernel", "F D", "F D"),
    }
    for kernel in _INTO_HIDDEN:
        names[f"feed_forward/{kernel}"] = (f"mlp/{kernel}", "D F", "D F")
    for ours, (theirs, norm) in _ATTENTIONS[tower].items():
        names[f"{ours}_norm/scale"] = (f"{norm}/scale", "D", "D")
        names[f"{ours}/out/kernel"] = (f"{theirs}/out/kernel", "H K D", "H K D")
        for kernel in _PROJECTIONS:
            names[f"{ours}/{kernel}"] = (f"{theirs}/{kernel}", "D H K", "D H K")
    return names


# The embedding table of a decoder-only network; in others it is next to the towers.
_DECODER_TABLE = "decoder/token_embedder/embedding"
# Two architectures with the same parameters; in the second, tokens of the prefix see each other.
_DECODERS = ("decoder", "prefix_decoder")
_EXPERT = "/mlp/expert/"  # in the names of layers with experts
_STACKED = "encoder/encoder/attention/query/kernel"  # of all layers, [D, L, H, K]
# Names of the scanned layers of a decoder in flaxformer and in forks of T5X.
_STACKED_DECODER = re.compile(r"decoder/(decoder|layers)/self_attention/")


def find_checkpoint(folder: pathlib.Path) -> pathlib.Path | None:
    """Return the folder if it is a checkpoint, or its newest `checkpoint_STEP`; None if neither."""
    if (folder / FILE).is_file():
        return folder
    checkpoints = {
        int(match[1]): file.parent
        for file in folder.glob(f"checkpoint_*/{FILE}")
        if (match := re.fullmatch(r"checkpoint_(\d+)", file.parent.name))
    }
    return checkpoints[max(checkpoints)] if checkpoints else None


@dataclasses.dataclass(frozen=True)
class T5XCheckpoint:
    """A checkpoint of T5X, a source of weights.

    Attributes:
        folder: the folder of the checkpoint.
    """

    folder: pathlib.Path
    model_type: str = ""
    run: dict[str, Any] = dataclasses.field(default_factory=dict)  # it has no run here
    card: None = None
    labels: dict[str, Labels] = dataclasses.field(default_factory=dict)
    lora: dict[str, Any] = dataclasses.field(default_factory=dict)
    token_ids: dict[str, Any] = dataclasses.field(default_factory=dict)
    # T5X begins the decoder's inputs with padding, and its vocabularies end texts with 1.
    generation: GenerationSettings = dataclasses.field(
        default_factory=lambda: GenerationSettings(
            decoder_start_token_id=0, eos_token_id=1, pad_token_id=0
        )
    )

    @functools.cached_property
    def arrays(self) -> StoredArrays:
        """The parameters in the files."""
        return StoredArrays(self.folder)

    @property
    def system(self) -> str:
        """The system: `t5`, `umt5` (with stacked layers) or `switch`."""
        if any(_EXPERT in name for name in self.arrays.names):
            return "switch"
        return "umt5" if _STACKED in self.arrays.names else "t5"

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The settings for the system's `build`.

        Raises:
            ValueError: the network is neither T5X's T5 or umT5 nor flaxformer's Switch Transformer.
        """
        names = set(self.arrays.names)
        only_decoder = _DECODER_TABLE in names
        attention = f"{'decoder/layers_0/self_' if only_decoder else 'encoder/layers_0/'}attention"
        sparse = self.system == "switch"
        known = f"{attention}/query/kernel" in names and not (only_decoder and sparse)
        if not known and _STACKED not in names:
            raise ValueError(f"{self.folder} is not supported: {_explain_network(names)}")
        sizes = self._stacked_sizes() if _STACKED in names else self._sizes(attention)
        tied = "decoder/logits_dense/kernel" not in names
        gated = any("/wi_0/" in name for name in names)
        table = _DECODER_TABLE if only_decoder else "token_embedder/embedding"
        vocab_size, d_model = self._shape(table)
        size = "base_8" if sparse else "v1_0_small" if tied else "small"
        return {
            **systems.find("switch" if sparse else "t5").sizes[size],
            **(self._experts() if sparse else {}),
            **sizes,
            "architecture": "decoder" if only_decoder else "encoder_decoder",
            "vocab_size": vocab_size,
            "d_model": d_model,
            "feed_forward": "gated_gelu" if gated else "relu",
            "tied_head": tied,
        }

    def _sizes(self, attention: str) -> dict[str, int]:
        """Infer the sizes from the arrays of the layer with this attention, and from the names."""
        tower, layer, _ = attention.split("/")
        heads, buckets = self._shape(f"{tower}/relpos_bias/rel_embedding")
        joined = self._shape(f"{attention}/query/kernel")[1]
        names = set(self.arrays.names)
        first = f"{tower}/{layer}{_EXPERT}wo/kernel"
        d_ff = self._shape(first, rank=3)[1] if first in names else None
        return {
            "d_ff": d_ff or self._shape(f"{tower}/{layer}/mlp/wo/kernel")[0],
            "heads": heads,
            "d_kv": joined // heads,
            "relative_buckets": buckets,
            "encoder_layers": _layers(tower, names),  # a decoder-only network does not use it
            "decoder_layers": _layers("decoder", names),
        }

    def _experts(self) -> dict[str, int]:
        """Infer the number of experts, and whether all layers have them or every second layer."""
        names = set(self.arrays.names)
        steps = set()
        for tower in ("encoder", "decoder"):
            sparse = {
                int(m[1]) for n in names if (m := re.match(rf"{tower}/layers_(\d+){_EXPERT}", n))
            }
            layers = range(_layers(tower, names))
            steps.add(next((k for k in (1, 2) if sparse == set(layers[k - 1 :: k])), 0))
        if steps not in ({1}, {2}):
            raise ValueError(
                f"{self.folder} is not supported: all layers must have experts, or every second "
                "one, the same in the encoder and the decoder"
            )
        step = steps.pop()
        experts = self._shape(f"encoder/layers_{step - 1}{_EXPERT}wo/kernel", rank=3)[0]
        return {"sparse_every": step, "experts": experts}

    def _stacked_sizes(self) -> dict[str, int]:
        heads, layers, buckets = self._shape("encoder/encoder/relpos_bias/rel_embedding", rank=3)
        return {
            "d_ff": self._shape("encoder/encoder/mlp/wo/kernel", rank=3)[0],
            "heads": heads,
            "d_kv": self._shape(_STACKED, rank=4)[3],
            "relative_buckets": buckets,
            "encoder_layers": layers,
            "decoder_layers": self._shape("decoder/decoder/relpos_bias/rel_embedding", rank=3)[1],
        }

    @functools.cached_property
    def _weights(self) -> WeightMap:
        return _layout(self.system, self.config)

    def available(self, wanted: Mapping[str, Any]) -> set[str]:
        """Return the paths of the wanted parameters that the files have with the same shapes."""
        known = weight_map.mapped(self._weights, wanted)
        names = set(self.arrays.names)
        return {
            path
            for path, parts in self.parts({path: wanted[path] for path in known}).items()
            if all(
                piece.tensor in names and self.arrays.shape(piece.tensor) == piece.tensor_shape
                for piece in parts
            )
        }

    def read(self, wanted: Mapping[str, Any], *, whole: bool) -> dict[str, Any]:
        """Read parameters, with the dtypes and shardings of the wanted ShapeDtypeStructs.

        Args:
            whole: whether the checkpoint must contain no other parameters.

        Raises:
            ValueError: a parameter is missing, left over or damaged, or has another shape.
        """
        parts = self.parts(wanted)
        shapes = {piece.tensor: piece.tensor_shape for pieces in parts.values() for piece in pieces}
        names = set(self.arrays.names)
        present = names if whole else names & set(shapes)
        weight_map.check_names(shapes, present, where=str(self.folder))
        for name, shape in shapes.items():
            if self.arrays.shape(name) != shape:
                raise ValueError(
                    f"{self.folder}: {name} has shape {list(self.arrays.shape(name))}; the others "
                    f"imply {list(shape)}"
                )
        return {
            path: assembled(leaf, parts[path], self.arrays.read) for path, leaf in wanted.items()
        }

    def parts(self, wanted: Mapping[str, Any]) -> dict[str, list[weight_map.Piece]]:
        """Return the pieces of each of our parameters: the arrays, or parts of arrays, there."""
        shapes = {path: leaf.shape for path, leaf in wanted.items()}
        return weight_map.pieces(self._weights, shapes)

    def _shape(self, name: str, *, rank: int = 2) -> tuple[int, ...]:
        if name not in self.arrays.names:
            raise ValueError(f"{self.folder} lacks the parameter {name}")
        shape = self.arrays.shape(name)
        if len(shape) != rank:
            raise ValueError(
                f"{self.folder}: {name} has shape {list(shape)}; {rank} dimensions are needed"
            )
        return shape


def _layers(tower: str, names: set[str]) -> int:
    matches = [re.match(rf"{tower}/layers_(\d+)/", name) for name in names]
    return 1 + max((int(match[1]) for match in matches if match), default=-1)


def _explain_network(names: set[str]) -> str:
    """Explain why the network of a T5X checkpoint is not supported."""
    if any("/expert/" in name or "/router/" in name for name in names):
        return (
            "it is sparse, and not named as flaxformer's Switch Transformer without scanned layers"
        )
    has_encoder = any(name.startswith("encoder/") for name in names)
    if not has_encoder and any(_STACKED_DECODER.match(name) for name in names):
        return (
            "it is a decoder alone with stacked layers, as no network in T5X and no released model "
            "has them; T5X's examples/decoder_only, which can be read, has arrays for each layer, "
            "decoder/layers_0"
        )
    if not has_encoder:
        return "it has no encoder, and its names differ from T5X's examples/decoder_only"
    return f"its parameters are named otherwise than T5's, such as {sorted(names)[0]}"


def _layout(system: str, config: Mapping[str, Any]) -> WeightMap:
    if system == "switch":
        return with_experts(sparse_every=config["sparse_every"])
    if config["architecture"] in _DECODERS:
        return decoder_only()
    if system == "t5":
        return layer_by_layer()
    return stacked(encoder=config["encoder_layers"], decoder=config["decoder_layers"])


def save(
    params: PyTree,
    folder: pathlib.Path,
    *,
    system: str,
    config: Mapping[str, Any],
    step: int = 0,
    optimizer: Adam | Adafactor | None = None,
) -> None:
    """Write a T5, umT5 or Switch Transformer as the T5X checkpoint `folder`/checkpoint_STEP.

    Args:
        system, config: the network's system, and the settings for its `build`.
        optimizer: the optimizer's state; None for a checkpoint without it.

    Raises:
        ValueError: T5X has no such network.
    """
    check_written(system, config)
    arrays = flax.traverse_util.flatten_dict(params, sep="/")
    parts = parts_of(system, config, arrays)
    target = folder / f"checkpoint_{step}"
    target.mkdir(parents=True)
    write(
        target,
        weight_map.disassemble(arrays, parts, copy=copy_part),
        step=step,
        states=() if optimizer is None else optimizer.tensors(parts),
    )


def parts_of(
    system: str, config: Mapping[str, Any], arrays: Mapping[str, Any]
) -> dict[str, list[Piece]]:
    """Return the pieces of each parameter: the arrays, or parts of arrays, that `save` writes.

    Args:
        system, config: see `save`.
        arrays: {path: parameter or its shape}.
    """
    shapes = {path: leaf.shape for path, leaf in arrays.items()}
    return weight_map.pieces(_layout(system, config), shapes)


def check_written(system: str, config: Mapping[str, Any]) -> None:
    """Check that T5X has such a network; for the arguments see `save`.

    Raises:
        ValueError: it does not.
    """
    if system not in ("t5", "umt5", "switch"):
        raise ValueError(
            f"--format=t5x: T5X's layouts are for systems 't5', 'umt5' and 'switch', and this is "
            f"{system!r}"
        )
    decoders = _DECODERS if system == "t5" else ()
    needed: dict[str, tuple[Any, ...]] = {
        "architecture": ("encoder_decoder", *decoders),
        "d_adapter": (0,),
        "scale_tied_logits": (True,),
    }
    if system == "switch":
        needed |= {"router": ("switch",), "sparse_every": (1, 2)}
    for name, values in needed.items():
        if config.get(name) not in values:
            only = " or ".join(map(repr, values))
            raise ValueError(f"model.{name}={config.get(name)!r}: T5X's T5 has only {only}")
