"""Read the initial parameters of a run: an implementation of `systems.system.ReadPart`."""

import dataclasses

import flax.linen as nn
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from t5x_like import paths, vocabularies
from t5x_like.experiment.run import Run
from t5x_like.pretrained.loading import load, load_part
from t5x_like.pretrained.weight_source import Source, data_settings, open_source


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads the parameters of a run's network.

    Attributes:
        run: the run; its `source` is the folder to read.
        network: the network with the heads of all tasks.
        mesh: the mesh to place the parameters on.
    """

    run: Run
    network: nn.Module
    mesh: Mesh

    def __call__(self, part: str, *, system: str, folder: str = "") -> PyTree:
        """See `systems.system.ReadPart`."""
        source = open_source(paths.path(folder)) if folder else self._source
        if folder:
            _check_vocabulary(source, folder, part=part, own=self.run.settings.data.vocabulary)
        return load_part(
            source, self.network, part=part, system=system, dtype=np.float32, mesh=self.mesh
        )

    def others(self, *parts: str) -> PyTree:
        """See `systems.system.ReadPart`."""
        return load(
            self._source,
            self.network,
            system=self.run.settings.system,
            config=self.run.network,
            dtype=np.float32,
            mesh=self.mesh,
            seed=self.run.settings.train.seed,
            without=parts,
        )

    @property
    def _source(self) -> Source:
        assert self.run.source is not None, "a run that reads parameters has `initialize`"
        return self.run.source


def _check_vocabulary(source: Source, folder: str, *, part: str, own: str) -> None:
    """Check that a part from another folder was trained with this run's vocabulary.

    Raises:
        ValueError: the folder is a run with another vocabulary, even if of the same size.
    """
    stored = data_settings(source).get("vocabulary", "")
    if not own or not stored or own == stored:
        return
    try:
        other = vocabularies.load(stored)
    except ValueError:  # the file was moved, so that it cannot be compared
        return
    if other != vocabularies.load(own):
        raise ValueError(
            f"the {part} in {folder} was trained with data.vocabulary={stored!r}, which is another "
            f"vocabulary than this run's, {own!r}: both read the same tokens"
        )
