"""Presets of the compiler's options: for which devices they are, and that the names exist."""

import jax
import jax.numpy as jnp
import pytest

from configs import t5
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.research.planning import chips
from t5x_like.training import compiler


def test_the_default_changes_nothing():
    assert compiler.options("default", "cpu") == compiler.options("default", "tpu") == {}


@pytest.mark.parametrize(
    ("preset", "platform", "message"),
    [
        ("overlop", "tpu", r"train.compiler='overlop' does not exist. Did you mean 'overlap'\?"),
        ("overlap", "cpu", "train.compiler='overlap' is for tpu and gpu, and the devices are cpu"),
        ("large_vmem", "gpu", "train.compiler='large_vmem' is for tpu, and the devices are gpu"),
    ],
)
def test_what_is_not_there_is_refused_in_a_line(preset, platform, message):
    with pytest.raises(ValueError, match=message):
        compiler.options(preset, platform)


def test_options_of_gpus_exist():
    # Every jaxlib knows the names of all of XLA's own options, whatever it compiles for.
    lowered = jax.jit(lambda x: x + 1).lower(jnp.zeros(3))
    lowered.compile(compiler_options=compiler.options("overlap", "gpu"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        lowered.compile(compiler_options={"xla_gpu_overlap": True})


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["overlap", "large_vmem", "gathered_kernels"])
def test_libtpu_takes_the_options(preset):
    device = chips.topology("v5e:2x2").devices()[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    rows = jax.ShapeDtypeStruct((128, 128), jnp.float32, sharding=sharding)
    options = compiler.options(preset, device.platform)
    assert options
    jax.jit(jnp.matmul, compiler_options=options).lower(rows, rows).compile()
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        jax.jit(jnp.matmul, compiler_options={"xla_tpu_x": 1}).lower(rows, rows).compile()


def test_a_run_on_other_devices_ends_and_evaluation_of_it_does_not():
    settings = t5.get_config("demo")
    settings.train.compiler = "overlap"
    model = model_side.build(of_config(settings), devices=jax.devices()[:1])
    assert model.eval_step is not None
    with pytest.raises(ValueError, match=r"train.compiler='overlap' is for tpu"):
        model.train_step  # noqa: B018
