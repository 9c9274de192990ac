"""Transformer-XL: published sizes, and rows that continue each other, as PyTorch computes them."""

import functools
import math
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import partitioning, systems
from t5x_like.systems import transformer_xl

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "transformer_xl.npz"
TINY = transformer_xl.SIZES["41m"] | {
    "vocab_size": 61,
    "layers": 3,
    "d_model": 24,
    "d_ff": 28,
    "heads": 3,
    "head_width": 10,
    "memory": 9,
    "dropout": 0.0,
}
# What the networks of make_transformer_xl.py are called here.
NETWORKS = {
    "shared": {},
    "untied": {"untied_biases": True, "same_length": True, "longest_distance": 7},
    "narrower": {"cutoffs": (20, 33), "cluster_division": 2},
    "as_wide": {"cutoffs": (20, 33)},
}
# Parameters of Hugging Face's TransfoXLLMHeadModel with the settings of the released scripts.
WORDS = {"151m": 151_107_538, "257m": 285_170_506}
# Float32 sums of two frameworks differ in their order, by 1e-6; a wrong distance moves logits by
# 1e-2 and more.
TOLERANCE = 1e-4


@functools.cache
def arrays():
    return dict(np.load(GOLDEN))


def build(**settings):
    return systems.build("transformer_xl", TINY | settings)


def batch(tokens, real=None):
    tokens = jnp.asarray(tokens)
    real = jnp.ones_like(tokens) if real is None else jnp.asarray(real)
    return {"decoder_input_tokens": tokens, "decoder_loss_weights": real}


@functools.cache
def init(**settings):
    module = build(**settings)
    make = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    params = make(jax.random.key(0))
    # u, v and the output layer's bias are small at first: make them matter.
    keys = iter(jax.random.split(jax.random.key(1), 99))
    return module, jax.tree.map(lambda x: x + 0.2 * jax.random.normal(next(keys), x.shape), params)


@functools.partial(jax.jit, static_argnums=0)
def predict(module, params, rows):
    product, memory = module.apply({"params": params}, rows, method="predict")
    return product.logits(), memory


@functools.partial(jax.jit, static_argnums=0)
def whole_text(module, params, tokens):
    return module.apply({"params": params}, batch(tokens))


def of_pytorch(name):
    """Return PyTorch's weights as parameters of a looped stack."""
    prefix = f"{name}/weights/"
    given = {k.removeprefix(prefix): v for k, v in arrays().items() if k.startswith(prefix)}
    decoder = {"layers": {f"layer_{n}": layer(given, f"transformer.layers.{n}") for n in range(3)}}
    if name != "untied":
        decoder["extra"] = biases(given, "transformer")
    if "cutoffs" in NETWORKS[name]:
        return {"decoder": decoder, **adaptive(given)}
    return {
        "token_embedder": {"embedding": given["transformer.word_emb.emb_layers.0.weight"]},
        "decoder": decoder,
        "lm_head": {"bias": given["crit.out_layers.0.bias"]},
    }


def adaptive(given):
    """Embeddings of three clusters; Hugging Face has one table if all are as wide."""
    tables = [x for key, x in sorted(given.items()) if "word_emb.emb_layers" in key]
    biases = [x for key, x in sorted(given.items()) if "crit.out_layers" in key]
    if len(tables) == 1:
        tables, biases = (np.split(x, (20, 33)) for [x] in (tables, biases))
    embedder = {f"clusters_{n}": {"embedding": table} for n, table in enumerate(tables)}
    head = {f"bias_{n}": bias for n, bias in enumerate(biases)}
    head |= {"cluster_kernel": given["crit.cluster_weight"]}
    head |= {"cluster_bias": given["crit.cluster_bias"]}
    projections = [x.T for key, x in sorted(given.items()) if "word_emb.emb_projs" in key]
    if projections:
        embedder |= {f"projection_{n}": x for n, x in enumerate(projections)}
        head |= {"projection": given["crit.out_projs.0"].T}
    return {"token_embedder": embedder, "lm_head": head}


def layer(given, at):
    attention = f"{at}.dec_attn"
    query, key, value = np.split(given[f"{attention}.qkv_net.weight"], 3)
    return {
        "self_attention": {
            "query": {"kernel": query.T.reshape(24, 3, 10)},
            "key": {"kernel": key.T.reshape(24, 3, 10)},
            "value": {"kernel": value.T.reshape(24, 3, 10)},
            "out": {"kernel": given[f"{attention}.o_net.weight"].T.reshape(3, 10, 24)},
            "distance_kernel": given[f"{attention}.r_net.weight"].T.reshape(24, 3, 10),
            **(biases(given, attention) if f"{attention}.r_w_bias" in given else {}),
        },
        "self_attention_norm": norm(given, f"{attention}.layer_norm"),
        "feed_forward": {
            name: {
                "kernel": given[f"{at}.pos_ff.CoreNet.{number}.weight"].T,
                "bias": given[f"{at}.pos_ff.CoreNet.{number}.bias"],
            }
            for name, number in (("wi", 0), ("wo", 3))
        },
        "feed_forward_norm": norm(given, f"{at}.pos_ff.layer_norm"),
    }


def norm(given, at):
    return {"scale": given[f"{at}.weight"], "bias": given[f"{at}.bias"]}


def biases(given, at):
    return {"content_bias": given[f"{at}.r_w_bias"], "distance_bias": given[f"{at}.r_r_bias"]}


@pytest.mark.parametrize("size", transformer_xl.SIZES)
def test_parameters_as_published(size):
    """Tables 1 and 2 have 151M, 257M, 41M and 277M; the settings of the second give 285M."""
    module = systems.build("transformer_xl", transformer_xl.SIZES[size])
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    leaves = jax.tree.leaves(nn.unbox(boxed)["params"])
    count = sum(math.prod(leaf.shape) for leaf in leaves)
    if size in WORDS:
        assert count == WORDS[size]
    if size != "257m":
        assert f"{count / 1e6:.0f}m" == size


@pytest.mark.parametrize("name", NETWORKS)
def test_three_batches_with_a_memory_are_pytorchs(name):
    module, params = build(**NETWORKS[name], loop="unroll"), of_pytorch(name)
    rows = batch(arrays()["tokens"][0])
    shapes = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    assert jax.tree.structure(nn.unbox(shapes)["params"]) == jax.tree.structure(params)
    memory = module.first_memory(rows)
    # Hugging Face's attends to the zeros of its first memory.
    memory["real"] = jnp.ones_like(memory["real"])
    for n, tokens in enumerate(arrays()["tokens"]):
        logits, memory = predict(module, params, batch(tokens) | {"memory": memory})
        np.testing.assert_allclose(
            jax.nn.log_softmax(logits), arrays()[f"{name}/{n}/log_probabilities"], atol=TOLERANCE
        )
        np.testing.assert_allclose(memory["hidden"], arrays()[f"{name}/{n}/memory"], atol=TOLERANCE)


def test_runs_from_before_the_setting_have_sines_that_alternate():
    """The same function of the distances, with the rows of W in another order."""
    assert systems.find("transformer_xl").older_defaults["sines"] == "alternating"
    params, rows = of_pytorch("shared"), batch(arrays()["tokens"][0])
    expected = build(loop="unroll").apply({"params": params}, rows)
    order = np.arange(24).reshape(2, 12).T.ravel()  # sine 0, cosine 0, sine 1, ...
    for own in params["decoder"]["layers"].values():
        own["self_attention"]["distance_kernel"] = own["self_attention"]["distance_kernel"][order]
    found = build(loop="unroll", sines="alternating").apply({"params": params}, rows)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    with pytest.raises(ValueError, match=r"model\.sines='mixed'.*then_cosines"):
        build(sines="mixed")


@pytest.mark.parametrize("name", ["narrower", "as_wide"])
def test_the_loss_of_an_adaptive_softmax_is_pytorch_s(name):
    module, params = build(**NETWORKS[name], loop="unroll"), of_pytorch(name)
    tokens = arrays()["tokens"][0]
    rows = batch(tokens, np.array([[1] * 6, [1] * 4 + [0] * 2, [1] * 6]))
    targets = np.roll(tokens, -1, axis=1)
    targets[1, 5] = 999  # padding
    memory = module.first_memory(rows)
    memory["real"] = jnp.ones_like(memory["real"])
    loss = jax.jit(functools.partial(transformer_xl.loss, module))
    rows |= {"decoder_target_tokens": targets}
    (total, weight, metrics), _ = loss(params, rows, None, carry=memory)
    log_probs = arrays()[f"{name}/0/log_probabilities"]
    known = np.where(targets == 999, 0, targets)[..., None]
    nats = -np.take_along_axis(log_probs, known, axis=-1)[..., 0]
    expected = np.sum(nats * np.asarray(rows["decoder_loss_weights"]))
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    assert weight == 16
    np.testing.assert_allclose(metrics["cross_entropy"][0], expected, rtol=1e-5)
    outside = rows | {"decoder_target_tokens": np.where(targets == targets[0, 0], 61, targets)}
    assert np.isnan(loss(params, outside, None, carry=memory)[0][0])
    with pytest.raises(ValueError, match=r"loss\.z_loss=0\.1 .* must be 0 with model\.cutoffs"):
        transformer_xl.loss(module, params, rows, None, carry=memory, z_loss=0.1)


def test_each_cluster_s_words_are_looked_up_and_the_softmax_sums_to_one():
    module, params = init(cutoffs=(20, 33), cluster_division=2)
    table = params["token_embedder"]
    tokens = np.array([[0, 19, 20, 32, 33, 60]])
    found = module.apply({"params": params}, tokens, method=lambda m, t: m.token_embedder(t))
    starts = (0, 0, 20, 20, 33, 33)
    for place, (token, start) in enumerate(zip(tokens[0], starts, strict=True)):
        n = (0, 20, 33).index(start)
        row = table[f"clusters_{n}"]["embedding"][token - start]
        np.testing.assert_allclose(found[0, place], row @ table[f"projection_{n}"], atol=1e-5)
    logits = whole_text(module, params, tokens)
    np.testing.assert_allclose(np.exp(logits).sum(axis=-1), 1, rtol=1e-5)


@pytest.mark.parametrize("loop", ["scan", "unroll"])
@pytest.mark.parametrize("memory", [12, 5])
def test_rows_that_continue_are_one_text_if_the_memory_holds_it(loop, memory):
    module, params = init(memory=memory, loop=loop)
    text = np.random.default_rng(1).integers(0, 61, (2, 18))
    whole = whole_text(module, params, text)
    state, found = module.first_memory(batch(text[:, :6])), []
    for row in np.split(text, 3, axis=1):
        logits, state = predict(module, params, batch(row) | {"memory": state})
        found.append(logits)
    error = np.abs(np.concatenate(found, axis=1) - whole).max(axis=(0, 2))
    assert error[:6].max() < TOLERANCE  # no text is before them
    if memory == 12:
        assert error.max() < TOLERANCE
    else:  # the last row cannot see the first tokens
        assert error[12:].min() > 10 * TOLERANCE


def test_tokens_that_do_not_exist_are_not_seen():
    """At the end of an epoch a row ends in padding, and the first memory is empty."""
    module, params = init()
    tokens = np.random.default_rng(2).integers(0, 61, (2, 6))
    real = np.array([[1] * 6, [1] * 4 + [0] * 2])
    first = module.first_memory(batch(tokens))
    filled = first | {"hidden": first["hidden"] + 3.0}
    expected, memory = predict(module, params, batch(tokens, real) | {"memory": first})
    found, _ = predict(module, params, batch(tokens, real) | {"memory": filled})
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    assert np.array_equal(memory["real"], np.concatenate([np.zeros((2, 3)), real], axis=1))
    changed = memory | {"hidden": memory["hidden"].at[1, :, -2:].add(3.0)}
    a, _ = predict(module, params, batch(tokens) | {"memory": memory})
    b, _ = predict(module, params, batch(tokens) | {"memory": changed})
    np.testing.assert_allclose(a, b, atol=TOLERANCE)


def test_the_memory_has_no_gradient():
    module, params = init()
    tokens = np.random.default_rng(3).integers(0, 61, (2, 6))
    rows = batch(tokens) | {"decoder_target_tokens": jnp.asarray(tokens)}

    def second(params, first_params):
        memory = module.first_memory(rows)
        _, memory = transformer_xl.loss(module, first_params, rows, None, carry=memory)
        (total, _, _), _ = transformer_xl.loss(module, params, rows, None, carry=memory)
        return total

    own, through = jax.jit(jax.grad(second, argnums=(0, 1)))(params, params)
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(through))
    assert any(np.any(leaf != 0) for leaf in jax.tree.leaves(own))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"same_length": True, "memory": 4},
        {"cutoffs": (20, 33), "cluster_division": 2},
    ],
)
def test_a_cache_gives_the_logits_of_the_whole_text(settings):
    module, params = init(**settings)
    text = np.random.default_rng(4).integers(0, 61, (2, 12))
    whole = whole_text(module, params, text)
    padded = np.concatenate([np.zeros((2, 2), int), text[:, :5]], axis=1)
    real = np.arange(7)[None] >= [[2], [2]]
    last, cache = module.apply(
        {"params": params}, padded, cache_length=14, decoder_mask=real, method="prefill"
    )
    np.testing.assert_allclose(last, whole[:, 4], atol=TOLERANCE)
    for step in (slice(5, 6), slice(6, 9), slice(9, 12)):
        logits, cache = module.apply({"params": params}, text[:, step], cache, method="extend")
        np.testing.assert_allclose(logits, whole[:, step], atol=TOLERANCE)


def test_the_same_length_is_the_memorys():
    """Each token depends on the M tokens up to itself, a layer further back in each layer."""
    module, params = init(same_length=True, memory=4, layers=1)
    text = np.random.default_rng(5).integers(1, 61, (1, 10))
    whole = whole_text(module, params, text)
    changed = whole_text(module, params, np.where(np.arange(10) == 2, 0, text))
    differs = np.abs(whole - changed).max(axis=(0, 2)) > TOLERANCE
    assert np.flatnonzero(differs).tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("settings", [{}, {"cutoffs": (16, 32), "cluster_division": 2}])
def test_a_gradient_on_a_mesh_of_eight_is_that_of_one_device(settings):
    module, params = init(heads=4, vocab_size=64, **settings)
    tokens = jnp.asarray(np.random.default_rng(6).integers(0, 61, (4, 6)))
    rows = batch(tokens) | {"decoder_target_tokens": tokens}
    _, memory = transformer_xl.loss(module, params, rows, None, carry=module.first_memory(rows))

    @jax.jit
    def value_and_gradient(params, rows, memory):
        def total(params):
            sums, after = transformer_xl.loss(module, params, rows, None, carry=memory)
            return sums[0], after

        return jax.value_and_grad(total, has_aux=True)(params)

    expected = value_and_gradient(params, rows, memory)
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 2, "model": 2})
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    axes = nn.get_partition_spec(boxed)["params"]
    with partitioning.layout(mesh):
        spread = jax.device_put(params, partitioning.shardings(mesh, axes))
        given = (partitioning.shard_batch(one, mesh) for one in (rows, memory))
        found = value_and_gradient(spread, *given)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=TOLERANCE, rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": -1}, r"model\.memory=-1 must be an integer, 0"),
        ({"longest_distance": -1}, r"model\.longest_distance=-1 must be an integer, 0"),
        ({"cutoffs": (33, 20)}, r"model\.cutoffs=\(33, 20\) must grow"),
        ({"cluster_division": 2}, r"model\.cluster_division=2 has no effect with model\.cutoffs"),
        ({"cutoffs": (20, 61)}, r"below model\.vocab_size=61"),
        (
            {"cutoffs": (20, 33), "cluster_division": 5},
            r"model\.cluster_division=5 .* model\.d_model=24 a multiple of its power of 2",
        ),
        ({"memory": 0, "same_length": True}, r"model\.same_length=True needs model\.memory"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        build(**settings)
