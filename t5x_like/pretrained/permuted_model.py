"""A pretrained XLNet, whose arguments have Hugging Face's names."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from t5x_like.pretrained.encoder_model import PretrainedEncoder
from t5x_like.pretrained.model import ModelOutput

_MAPPED = ("language_modeling", "features")  # heads that read the queries of target_mapping


class PretrainedPermuted(PretrainedEncoder):
    """A pretrained XLNet with its head and its parameters."""

    def __call__(  # type: ignore[override]
        self,
        input_ids: ArrayLike,
        attention_mask: ArrayLike | None = None,
        token_type_ids: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        *,
        perm_mask: ArrayLike | None = None,
        target_mapping: ArrayLike | None = None,
        mems: Sequence[ArrayLike] | None = None,
        use_mems: bool = True,
        reuse_len: int = 0,
        output_hidden_states: bool = False,
        **unknown: Any,
    ) -> ModelOutput:
        """Run the network and its head, as Hugging Face's XLNet models do.

        Args:
            input_ids, attention_mask, token_type_ids, output_hidden_states: see
                `PretrainedEncoder`.
            labels: see `PretrainedEncoder`; with `target_mapping` a token for each query [B, P].
            perm_mask: [B, L, L], 1 where the token at i may not attend to the token at j; None for
                all zeros. The stream that knows the token at i always attends to it.
            target_mapping: [B, P, L], a single 1 in each row: the position of each of P queries,
                which do not know their own tokens unless `perm_mask` permits it. The head then
                reads the queries, and the logits are [B, P, V].
            mems: `mems` of the preceding batch, N arrays [M, B, D]: all tokens attend to them.
            use_mems: whether to return `mems`: the inputs of each layer, after the given ones, as
                many as `model.memory` (config.json's mem_len), or all if it is 0.
            reuse_len: the number of tokens at the beginning of the rows after which the next batch
                continues, so that later tokens are not in `mems`; 0 for all.

        Raises:
            ValueError: an argument does not exist, or does not fit the others or the model.
        """
        self._refuse(unknown)
        batch = self._batch(input_ids, attention_mask, token_type_ids)
        arguments = {"perm_mask": perm_mask, "target_mapping": target_mapping, "mems": mems}
        for name, value in arguments.items():
            if value is not None and self._has_choices:
                raise ValueError(f"{name}: not with multiple choice, whose rows are alone")
        batch |= self._order(perm_mask, target_mapping, *batch["encoder_input_tokens"].shape[-2:])
        if mems is not None:
            batch["memory"] = self._memory(mems, rows=len(batch["encoder_input_tokens"]))
        returns_memory = use_mems and not self._has_choices
        outputs = self._run(batch, all_layers=output_hidden_states or returns_memory)
        layers = outputs.pop("hidden_states", None)
        fields = {"loss": self._label_loss(outputs, labels), **outputs}
        if output_hidden_states:
            fields["hidden_states"] = layers
        if returns_memory:
            fields["mems"] = self._next_memory(mems, layers[:-1], reuse_len)
        return ModelOutput(**fields)

    def _order(
        self, perm_mask: ArrayLike | None, target_mapping: ArrayLike | None, rows: int, length: int
    ) -> dict[str, Any]:
        """Return the fields of the batch for what each token sees, and for the queries."""
        fields: dict[str, Any] = {}
        if perm_mask is not None:
            hidden = _ones("perm_mask", perm_mask, (rows, length, length))
            fields["encoder_visible"] = ~hidden
        if target_mapping is None:
            return fields
        if self.config["head"] not in _MAPPED:
            raise ValueError(
                f"target_mapping: the head {self.config['head']!r} reads all tokens; allowed with "
                f"{', '.join(_MAPPED)}"
            )
        mapping = _ones("target_mapping", target_mapping, (rows, None, length))
        if np.any(mapping.sum(-1) != 1):
            raise ValueError("target_mapping: each query must have a single 1, its position")
        positions: Int[np.ndarray, "B P"] = np.argmax(mapping, axis=-1).astype(np.int32)
        visible = np.ones((rows, length, length), bool)
        return {"encoder_visible": visible} | fields | {"predicted_positions": positions}

    def _memory(self, mems: Sequence[ArrayLike], *, rows: int) -> dict[str, Array]:
        """Return the memory of the network."""
        arrays = [jnp.asarray(array) for array in mems]
        layers, width = self.config["layers"], self.config["d_model"]
        shapes = {array.shape for array in arrays}
        if len(arrays) != layers or len(shapes) != 1 or arrays[0].shape[1:] != (rows, width):
            raise ValueError(
                f"mems: {len(arrays)} arrays of shapes {sorted(map(list, shapes))}; this model "
                f"needs {layers} of shape [M, {rows}, {width}], as it returns them"
            )
        hidden = jnp.transpose(jnp.stack(arrays), (2, 0, 1, 3))
        return {"hidden": hidden, "real": jnp.ones((rows, hidden.shape[2]), bool)}

    def _next_memory(
        self, mems: Sequence[ArrayLike] | None, inputs: Float[Array, "N B L D"], reuse_len: int
    ) -> tuple[Float[Array, "M B D"], ...]:
        """Return the memory and the inputs of each layer, at most the last `model.memory`."""
        if not 0 <= reuse_len <= inputs.shape[2]:
            raise ValueError(f"reuse_len={reuse_len}: 0 to {inputs.shape[2]} allowed")
        inputs = jnp.swapaxes(inputs[:, :, : reuse_len or None], 1, 2)
        before = [None] * len(inputs) if mems is None else [jnp.asarray(memory) for memory in mems]
        sequences = [
            layer_inputs if memory is None else jnp.concatenate([memory, layer_inputs])
            for memory, layer_inputs in zip(before, inputs, strict=True)
        ]
        size = self.config["memory"]
        return tuple(sequence[-size:] if size else sequence for sequence in sequences)


def _ones(
    name: str, values: ArrayLike, shape: tuple[int | None, ...]
) -> Bool[np.ndarray, "B rows L"]:
    """Return where an array of zeros and ones is 1; None in `shape` for any size."""
    array = np.asarray(values)
    fits = array.ndim == len(shape) and all(
        size in (None, length) for length, size in zip(array.shape, shape, strict=True)
    )
    if not fits:
        sizes = ["queries" if size is None else str(size) for size in shape]
        raise ValueError(
            f"{name} must have shape [{', '.join(sizes)}], and has shape {list(array.shape)}"
        )
    others = array[~np.isin(array, (0, 1))]
    if others.size:
        raise ValueError(f"{name} has the value {others[0]}; allowed: 0, 1")
    return array == 1
