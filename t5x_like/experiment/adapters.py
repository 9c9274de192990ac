"""Write what a run with LoRA has trained as an adapter of PEFT."""

import pathlib
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
from absl import logging

from t5x_like import checkpoints, hub, paths, systems
from t5x_like.config.run_settings import MeshSettings
from t5x_like.experiment import model_side
from t5x_like.experiment.run import Run
from t5x_like.pretrained import peft


def write(run: Run, folder: paths.Path, target: pathlib.Path) -> None:
    """Write the LoRA matrices of a run, and its other trained parameters, to a folder.

    Args:
        folder: the run's checkpoints, or one of them.

    Raises:
        ValueError: the run has no LoRA matrices, or PEFT's files cannot hold them.
    """
    settings = run.settings
    if not settings.lora.rank:
        raise ValueError(f"--format=peft: {folder} has a run without LoRA (lora.rank=0)")
    model = model_side.build(run.replace(mesh=MeshSettings()))
    mask, shapes = _flat(model.trained), _flat(model.abstract_state.params)
    wanted = {path: leaf for path, leaf in shapes.items() if mask[path]}
    tree = flax.traverse_util.unflatten_dict(wanted, sep="/")
    params, _ = checkpoints.restore_params(folder, tree, whole=False)
    network, config, before = settings.system, dict(run.network), ""
    if part := run.system.result:
        network, config = systems.policy_of(network, config)
        before = f"{part}/"
    record = systems.hugging_face_format(network).of(config)

    def of_network(tree: Mapping[str, Any]) -> dict[str, Any]:
        inside = {p.removeprefix(before): x for p, x in tree.items() if p.startswith(before)}
        return {p: x for p, x in inside.items() if p.split("/")[0] not in record.not_exported}

    peft.write(
        target,
        of_network(jax.device_get(_flat(params))),
        {path: leaf.shape for path, leaf in of_network(shapes).items()},
        weights=record.weights,
        rank=settings.lora.rank,
        alpha=settings.lora.alpha,
        base=_base(settings.initialize),
        task=peft.task_of(
            str(config.get("head", "")), sides=model.module.sides, generates=model.module.generates
        ),
    )


def _flat(tree: Any) -> dict[str, Any]:
    return flax.traverse_util.flatten_dict(tree, sep="/")


def _base(initialize: str) -> str:
    """Return the folder of the base model, and warn if it is not in Hugging Face's format."""
    path = pathlib.Path(initialize).expanduser().absolute()
    if not path.is_dir() and hub.names(initialize):
        return initialize
    if (path / peft.CONFIG).is_file():
        return str(peft.read(path).config.get("base_model_name_or_path"))
    if not (path / "config.json").is_file() or not any(path.glob("*.safetensors")):
        logging.warning(
            "%s, the base model, is not in Hugging Face's format: convert it, and write the new "
            "folder as base_model_name_or_path into %s",
            path,
            peft.CONFIG,
        )
    return str(path)
