"""The equations of a traced training step, for tests of the types of their operands."""

import dataclasses
import functools
import importlib

import jax

from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.research.planning import batches, report

PRODUCTS = ("dot_general", "ragged_dot_general", "conv_general_dilated")


def products_of(jaxpr):
    """Every product of a program and of the programs inside it."""
    return (one for one in equations_of(jaxpr) if one.primitive.name in PRODUCTS)


def equations_of(jaxpr):
    """Every equation of a program and of the programs inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
            if _is_program(inner):
                yield from equations_of(getattr(inner, "jaxpr", inner))


def _is_program(x):
    return hasattr(x, "eqns") or hasattr(getattr(x, "jaxpr", None), "eqns")


@functools.cache
def training_step(name, **model):
    """The program of the training step of a system's demo in bfloat16, with settings of `model`."""
    settings = importlib.import_module(f"configs.{name}").get_config("demo")
    settings.model.update({"dtype": "bfloat16", **model})
    settings.mesh = dataclasses.asdict(report.ONE_DEVICE)
    run = of_config(settings)
    step = batches.largest(run)
    model = model_side.build_tasks(run, devices=jax.devices()[:1])[step.part.name]
    return jax.make_jaxpr(model.train_step)(model.abstract_state_on(step.batch), step.batch).jaxpr
