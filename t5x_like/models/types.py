"""Types of what goes into a network and what comes out of it."""

from collections.abc import Callable, Mapping

from jaxtyping import Array

Batch = Mapping[str, Array]
Outputs = dict[str, Array]
Activation = Callable[[Array], Array]
