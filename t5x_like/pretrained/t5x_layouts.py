"""Weight maps of T5X's networks: an array for each layer (examples/t5), or one for all layers.

Decoder-only models (examples/decoder_only) and flaxformer's Switch Transformer, whose
mixture-of-experts layers have one kernel for all experts, have an array for each layer, too. umT5's
released checkpoints (examples/scalable_t5) have one array for all layers, which are stacked on its
second axis, and a relative position bias in each layer.
"""

from typing import Any

from t5x_like.hf.weight_map import WeightMap

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
        here, there = f"{tower}/layers/{{layer}}", f"{tower}/layers_{{layer}}"
        weights[f"{tower}/relative_position_bias/embedding"] = (
            f"{tower}/relpos_bias/rel_embedding",
            "H N -> N H",
        )
        weights[f"{tower}/final_norm/scale"] = f"{tower}/{tower}_norm/scale"
        weights[f"{here}/feed_forward_norm/scale"] = f"{there}/pre_mlp_layer_norm/scale"
        for kernel in (*_INTO_HIDDEN, "wo/kernel"):
            weights[f"{here}/feed_forward/{kernel}"] = f"{there}/mlp/{kernel}"
        for ours, (theirs, norm) in attentions.items():
            weights[f"{here}/{ours}_norm/scale"] = f"{there}/{norm}/scale"
            for kernel in _PROJECTIONS:
                line = (f"{there}/{theirs}/{kernel}", "D (H K) -> D H K")
                weights[f"{here}/{ours}/{kernel}"] = line
            line = (f"{there}/{theirs}/out/kernel", "(H K) D -> H K D")
            weights[f"{here}/{ours}/out/kernel"] = line
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
        sparse_every: the number of layers in a group here, of which the last has experts; 1 or 2.
    """
    # Our path of each layer in a group -> its layer number there.
    places = {"{layer}": "{layer}"}
    if sparse_every == 2:
        places = {f"{{layer}}/block_{n}": f"{{2*layer+{n}}}" for n in range(2)}
    last_here, last_there = list(places.items())[-1]
    weights: dict[str, Any] = {}
    for ours, line in layer_by_layer().items():
        theirs, *layout = [line] if isinstance(line, str) else line
        for here, there in places.items():
            own = theirs.replace("{layer}", there)
            weights[ours.replace("{layer}", here)] = (own, *layout) if layout else own
    for tower in _ATTENTIONS:
        here, there = f"{tower}/layers/{last_here}/feed_forward", f"{tower}/layers_{last_there}/mlp"
        weights[f"{here}/router/kernel"] = f"{there}/router/router_weights/w/kernel"
        for kernel in (*_INTO_HIDDEN, "wo/kernel"):
            weights[f"{here}/experts/{kernel}"] = f"{there}/expert/{kernel}"
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
        places = {"block": "L"} | {f"layer_{n}": f"{n}/{count}" for n in range(count)}
        for name, (theirs, there, here) in _within_a_layer(tower).items():
            first, *rest = there.split()
            for place, part in places.items():
                ours = f"L {here}" if place == "block" else here
                layout = f"{' '.join([first, part, *rest])} -> {ours}"
                weights[f"{tower}/layers/{place}/{name}"] = (f"{tower}/{tower}/{theirs}", layout)
    return weights


def _within_a_layer(tower: str) -> dict[str, tuple[str, str, str]]:
    """Return {our name within a layer: (T5X's name, axes there, axes here)}."""
    found = {
        "self_attention/relative_position_bias/embedding": (
            "relpos_bias/rel_embedding",
            "H N",
            "N H",
        ),
        "feed_forward_norm/scale": ("pre_mlp_layer_norm/scale", "D", "D"),
        "feed_forward/wo/kernel": ("mlp/wo/kernel", "F D", "F D"),
    }
    for kernel in _INTO_HIDDEN:
        found[f"feed_forward/{kernel}"] = (f"mlp/{kernel}", "D F", "D F")
    for ours, (theirs, norm) in _ATTENTIONS[tower].items():
        found[f"{ours}_norm/scale"] = (f"{norm}/scale", "D", "D")
        found[f"{ours}/out/kernel"] = (f"{theirs}/out/kernel", "H K D", "H K D")
        for kernel in _PROJECTIONS:
            found[f"{ours}/{kernel}"] = (f"{theirs}/{kernel}", "D H K", "D H K")
    return found
