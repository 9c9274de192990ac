"""DeBERTa v3's pretraining: which loss moves which embeddings, and what is kept of it."""

import functools
import types

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy

from t5x_like import partitioning, systems
from t5x_like.nn.compute import GELU
from t5x_like.pretrained import from_pretrained, loading
from t5x_like.pretrained.model import Pretrained
from t5x_like.systems import deberta_v2, electra

TINY = deberta_v2.SIZES["v3_base"] | {
    "head": "pretraining",
    "vocab_size": 32,
    "positions": 12,
    "relative_span": 3,
    "relative_buckets": 2,
    "layers": 1,
    "generator_layers": 1,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "dropout": 0.0,
}
TOKENS = "embeddings/token/embedding"
GENERATORS, CHANGE = f"generator/{TOKENS}", "embeddings/change/embedding"


def flat(tree):
    return flax.traverse_util.flatten_dict(tree, sep="/")


@functools.cache
def make(sharing="gradient_disentangled"):
    """The two networks, with parameters so large that what one of them changes is seen."""
    module = systems.build("deberta_v2", TINY | {"sharing": sharing})
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch()))["params"]
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noise = [x + 0.2 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    return module, jax.tree.unflatten(structure, noise)


def batch(rows=2):
    random = np.random.default_rng(0)
    targets = random.integers(5, 32, (rows, 10))
    weights = np.zeros((rows, 10), np.float32)
    weights[:, [2, 5]] = 1
    segments = np.ones((rows, 10), np.int32)
    segments[1, 8:] = 0
    return {
        "encoder_input_tokens": jnp.asarray(np.where(weights > 0, 4, targets)),
        "encoder_target_tokens": jnp.asarray(targets),
        "encoder_loss_weights": jnp.asarray(weights),
        "encoder_segment_ids": jnp.asarray(segments),
    }


@functools.cache
def gradient_of(sharing):
    """A function of the weights of both losses."""
    module, params = make(sharing)

    def loss(params, **weights):
        return electra.loss(module, params, batch(), None, **weights)[0]

    return functools.partial(jax.jit(jax.grad(loss)), params)


def gradients(sharing, *, generator=1.0, discriminator=50.0):
    """The largest gradient of each parameter, from the generator's or the discriminator's loss."""
    found = gradient_of(sharing)(generator=generator, discriminator=discriminator)
    return {path: float(jnp.abs(x).max()) for path, x in flat(found).items()}


def test_embeddings_begin_as_the_generator_s():
    module = systems.build("deberta_v2", TINY)
    params = flat(nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch())))
    assert not params[f"params/{CHANGE}"].any()
    assert params[f"params/{GENERATORS}"].any()
    assert f"params/{TOKENS}" not in params


def test_the_discriminator_moves_the_change_alone_and_the_generator_what_both_share():
    of_discriminator = gradients("gradient_disentangled", generator=0.0)
    assert of_discriminator[CHANGE] > 0
    others = [x for path, x in of_discriminator.items() if path.startswith("generator/")]
    assert max(others) == 0
    of_generator = gradients("gradient_disentangled", discriminator=0.0)
    assert of_generator[GENERATORS] > 0
    others = [x for path, x in of_generator.items() if not path.startswith("generator/")]
    assert max(others) == 0


@pytest.mark.parametrize(
    ("sharing", "table"),
    [("embeddings", TOKENS), pytest.param("none", GENERATORS, marks=pytest.mark.slow)],
)
def test_shared_embeddings_have_both_gradients_and_separate_ones_their_own(sharing, table):
    of_discriminator = gradients(sharing, generator=0.0)
    assert (GENERATORS in of_discriminator) == (sharing == "none")
    assert of_discriminator[TOKENS] > 0
    assert (of_discriminator[table] > 0) == (sharing == "embeddings")


class Folder(types.SimpleNamespace):
    """A folder of the two networks."""

    system, config = "deberta_v2", TINY

    def available(self, wanted):
        params = flat(self.params)
        return {
            path for path, x in wanted.items() if path in params and params[path].shape == x.shape
        }

    def read(self, wanted, *, whole):
        del whole
        return {path: flat(self.params)[path] for path in wanted}


def test_the_discriminator_that_is_kept_has_the_sum_as_its_embeddings():
    pair, params = make()
    config = TINY | {"head": "discriminator"}
    module = systems.build("deberta_v2", config)
    found = loading.load(
        Folder(params=params),
        module,
        system="deberta_v2",
        config=config,
        dtype=jnp.dtype("float32"),
        mesh=None,
    )
    np.testing.assert_array_equal(
        flat(found)[TOKENS], flat(params)[GENERATORS] + flat(params)[CHANGE]
    )
    logits = [
        jax.jit(lambda params, module=module: module.apply({"params": params}, batch())["logits"])(
            params
        )
        for module, params in ((pair, params), (module, found))
    ]
    np.testing.assert_allclose(*logits, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_gradient_on_a_mesh_of_eight_is_that_of_one_device():
    module, params = make()

    def value_and_gradient(params, batch):
        loss = functools.partial(electra.loss, module, batch=batch, rng=None)
        return jax.value_and_grad(lambda params: loss(params=params)[0])(params)

    rows = batch(4)
    expected = jax.jit(value_and_gradient)(params, rows)
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 2, "model": 2})
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    axes = nn.get_partition_spec(boxed)["params"]
    with partitioning.layout(mesh):
        spread = jax.device_put(params, partitioning.shardings(mesh, axes))
        sharded = partitioning.shard_batch(jax.tree.map(np.asarray, rows), mesh)
        found = jax.jit(value_and_gradient)(spread, sharded)
    # Float32 sums in another order, and 50 times the discriminator's loss.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-3), found, expected
    )


def test_the_head_reads_each_token_beside_the_first():
    module, params = make()
    head = jax.tree.map(np.asarray, params["head"])
    hidden = np.asarray(module.apply({"params": params}, batch(), method="encode"), np.float64)
    x = hidden + hidden[:, :1]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-7)
    x = x * head["norm"]["scale"] + head["norm"]["bias"]
    x = np.asarray(GELU(x @ head["transform"]["kernel"] + head["transform"]["bias"]))
    expected = (x @ head["replaced"]["kernel"] + head["replaced"]["bias"])[..., 0]
    logits = module.apply({"params": params}, batch())["logits"]
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_the_published_discriminator_is_read_with_its_head(tmp_path):
    config = TINY | {"head": "features"}
    module = systems.build("deberta_v2", config)
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch()))["params"]
    Pretrained(module, params, system="deberta_v2", config=config).save_pretrained(tmp_path)
    shapes = {"dense": (16, 16), "LayerNorm": (16,), "classifier": (1, 16)}
    random, tensors = np.random.default_rng(0), {}
    for part, shape in shapes.items():
        tensors[f"mask_predictions.{part}.weight"] = random.normal(size=shape).astype(np.float32)
        tensors[f"mask_predictions.{part}.bias"] = random.normal(size=shape[:1]).astype(np.float32)
    file = tmp_path / "model.safetensors"
    numpy.save_file(numpy.load_file(file) | tensors, file)
    found = from_pretrained(tmp_path, head="discriminator").params["head"]
    for ours, theirs in {"transform": "dense", "replaced": "classifier"}.items():
        expected = tensors[f"mask_predictions.{theirs}.weight"].T
        np.testing.assert_array_equal(found[ours]["kernel"], expected)
    np.testing.assert_array_equal(
        found["norm"]["scale"], tensors["mask_predictions.LayerNorm.weight"]
    )


def test_two_networks_have_no_class_at_hugging_face(tmp_path):
    module, params = make()
    model = Pretrained(module, params, system="deberta_v2", config=TINY)
    with pytest.raises(ValueError, match=r"model\.head='pretraining'.*head='features'"):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sharing": "gdes"}, r"model\.sharing.*gradient_disentangled"),
        ({"generator_layers": 0}, r"model\.generator_layers=0 must be an integer, 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        systems.build("deberta_v2", TINY | settings)
