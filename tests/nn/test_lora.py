"""LoRA in the networks of all systems, whose files do not know it."""

import flax.linen as nn
import flax.traverse_util
import jax
import pytest

from t5x_like import systems
from t5x_like.nn import lora
from t5x_like.nn.stack import logical_axes
from tests.nn.test_dropout import OF_OTHERS, settings

# ELMo has no attention, and few linear layers.
TARGETS = {"elmo": ("projection",)}
NAMES = sorted({*systems.names()} - OF_OTHERS)


def network(name, **changes):
    fitting = {"kv_heads": 1, "rotary_width": 2, "rotary_share": 0.5}
    known = next(iter(systems.find(name).sizes.values()))
    small = {key: value for key, value in fitting.items() if known.get(key)}
    return systems.build(name, settings(name, **small, **changes))


@pytest.mark.parametrize(
    ("name", "changes"),
    [*((name, {}) for name in NAMES), ("t5", {"loop": "scan", "remat": "full"})],
)
def test_every_system_multiplies_by_the_matrices_of_its_attention(name, changes):
    made = network(name, **changes)
    batch = made.example_batch()
    boxed = jax.eval_shape(lambda: made.init(jax.random.key(0), batch)["params"])
    plain = nn.unbox(boxed)
    layers = lora.linear_layers(made, plain)
    chosen = lora.choose_layers(layers, TARGETS.get(name, ("*attention",)))
    shapes, axes = lora.extend(
        plain, logical_axes(boxed), {path: layers[path] for path in chosen}, rank=5
    )
    flat, specs = (flax.traverse_util.flatten_dict(tree, sep="/") for tree in (shapes, axes))
    for path in chosen:
        kernel, a, b = (flat[f"{path}/{part}"].shape for part in ("kernel", "lora_a", "lora_b"))
        cut = a.index(5)
        assert (*a[:cut], *b[b.index(5) + 1 :]) == kernel
        assert len(specs[f"{path}/lora_a"]) == len(a)
    traced = jax.make_jaxpr(lambda params: made.apply({"params": params}, batch))(shapes).jaxpr
    used = {id(x) for equation in traced.eqns for x in equation.invars}
    paths = [
        jax.tree_util.keystr(keys, simple=True, separator="/")
        for keys, _ in jax.tree.leaves_with_path(shapes)
    ]
    is_used = {path: id(x) in used for path, x in zip(paths, traced.invars, strict=True)}
    assert any(is_used[f"{path}/kernel"] for path in chosen)
    for path in chosen:  # a teacher's kernels are not used here, nor are their matrices
        for part in ("lora_a", "lora_b"):
            assert is_used[f"{path}/{part}"] == is_used[f"{path}/kernel"]


@pytest.mark.parametrize(
    ("targets", "count"),
    [
        (("query", "value"), 2),
        (("self_attention/out",), 1),
        (("*",), 6),
        (("block", "wi"), 6),
        (("feed*",), 2),
    ],
)
def test_targets_are_names_in_paths(targets, count):
    block = "decoder/layers/block"
    layers = [f"{block}/self_attention/{name}" for name in ("query", "key", "value", "out")]
    layers += [f"{block}/feed_forward/{name}" for name in ("wi", "wo")]
    assert len(lora.choose_layers(layers, targets)) == count
    teacher = [f"teacher/{path}" for path in layers]
    assert lora.choose_layers([*layers, *teacher], targets, frozen=("teacher",)) == sorted(
        lora.choose_layers(layers, targets)
    )
