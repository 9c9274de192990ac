"""Types of the inputs and outputs of networks."""

from collections.abc import Callable, Mapping

from jaxtyping import Array

Batch = Mapping[str, Array]
Outputs = dict[str, Array]
Activation = Callable[[Array], Array]
