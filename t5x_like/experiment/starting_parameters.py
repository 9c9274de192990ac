"""Read the parameters that a run starts from: a `systems.system.ReadPart`."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import ml_collections
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from t5x_like import paths, vocabularies
from t5x_like.pretrained.loading import load, load_part
from t5x_like.pretrained.weight_source import Source, data_settings, open_source


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads the parameters of a run's network.

    Attributes:
        network, settings: with the heads of all tasks.
        config: of the run; `initialize` is the folder that it starts from.
        mesh: where the parameters go.
    """

    network: nn.Module
    config: ml_collections.ConfigDict
    settings: Mapping[str, Any]
    mesh: Mesh

    def __call__(self, part: str, *, system: str, folder: str = "") -> PyTree:
        """See `systems.system.ReadPart`."""
        source = _open(folder) if folder else self._source
        if folder:
            _check_vocabulary(source, folder, part=part, own=self.config.data.vocabulary)
        return load_part(
            source, self.network, part=part, system=system, dtype=np.float32, mesh=self.mesh
        )

    def others(self, *parts: str) -> PyTree:
        """See `systems.system.ReadPart`."""
        return load(
            self._source,
            self.network,
            system=self.config.system,
            config=self.settings,
            dtype=np.float32,
            mesh=self.mesh,
            seed=self.config.train.seed,
            without=parts,
        )

    @functools.cached_property
    def _source(self) -> Source:
        return _open(self.config.initialize)


def _check_vocabulary(source: Source, folder: str, *, part: str, own: str) -> None:
    """Check that a part from another folder reads the tokens of this run.

    Raises:
        ValueError: the folder is a run with another vocabulary, which may have as many tokens.
    """
    stored = data_settings(source).get("vocabulary", "")
    if not own or not stored or own == stored:
        return
    try:
        other = vocabularies.load(stored)
    except ValueError:  # it was moved, and cannot be compared
        return
    if other != vocabularies.load(own):
        raise ValueError(
            f"the {part} in {folder} was trained with data.vocabulary={stored!r}, which is another "
            f"vocabulary than this run's, {own!r}: both read the same tokens"
        )


def _open(folder: str) -> Source:
    return open_source(paths.path(folder))
