"""Attention through fused kernels, and the choice of a core by name or by device.

The kernels are cuDNN's for NVIDIA GPUs and splash attention for TPUs, which is part of JAX.
"""

import dataclasses
import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from t5x_like import partitioning
from t5x_like.names import choose
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.cores import (
    CONTEXT,
    Core,
    blockwise_core,
    dense_core,
    drop_keys,
    for_window,
)
from t5x_like.nn.attention.positions import AttentionMask
from t5x_like.nn.attention.relative_flash import relative_flash_core

_WIDEST = 128  # the head width that the kernel supports from Ampere on, forward and backward
_WIDEST_ON_HOPPER = 256  # from compute capability 9.0 on
_HOPPER = 9.0
_BITS = 12  # of a segment number: a row has fewer than 4,096 segments
_FEATURES = 2 * _BITS


def _cudnn(
    query: Float[Array, "B T H K"],
    keys_values: KeyValues,
    *,
    bias: Float[Array, "B H T S"] | None,
    mask: AttentionMask,
    scale: float,
    dropout: float = 0.0,
    dropout_rng: Array | None = None,
    dropout_broadcast: bool = False,
) -> Float[Array, "B T H K"]:
    """Compute attention with cuDNN's fused kernel: an NVIDIA GPU, 16-bit types, no score matrix.

    The kernel gets the mask in the cheapest form that it supports, so that a bias [1, H, T, S] and
    its gradient are not expanded to every row:

    - causality and a causal window are settings of the kernel;
    - padding at the end of rows (`AttentionMask.padding`) is a length for each row;
    - packed rows, and padding elsewhere, are segments: `_attend_within_segments`;
    - everything else is a matrix [B, 1, T, S] that is added to the scores, or [B, H, T, S] with a
      bias: prefixes, subclasses of `AttentionMask` (ranges, branches, computed masks), a cache's
      slots and offsets, and segments if heads are wider than 104, or 232 from Hopper on.

    Dropout with one mask for all queries of a head, as in T5, is computed as dropout of the values,
    with the random numbers of `dense_core`. Dropout of single weights is rejected: the seed of
    JAX's binding is a compile-time constant, the same in each step and layer, and cuDNN's random
    numbers depend on how often the kernel ran before, so that a resumed run, or a layer recomputed
    under remat, would have different numbers.

    Raises:
        ValueError: the dtype is float32, which the kernel does not support; or there is dropout of
            single weights, or any dropout with grouped heads.
    """
    drops = dropout_rng is not None and dropout > 0.0
    if problem := _cudnn_problem(
        query, keys_values, drops=drops, dropout_broadcast=dropout_broadcast
    ):
        raise ValueError(f"model.attention='cudnn' {problem}")
    length = query.shape[1]
    if drops:
        assert dropout_rng is not None
        keys_values = drop_keys(keys_values, heads=query.shape[2], rate=dropout, rng=dropout_rng)
    rows = (query, *keys_values.by_position())
    bias = None if bias is None else bias.astype(query.dtype)
    if not _is_plain(mask):
        allowed = mask.dense(queries=length, keys=keys_values.length)
        return _kernel(*rows, bias=bias, mask=allowed, scale=scale)
    settings: dict[str, Any] = {"scale": scale, "is_causal": mask.visibility == "causal"}
    if mask.window is not None:  # cuDNN does not count the query's own slot
        settings["local_window_size"] = (mask.window - 1, 0)
    if mask.key_segments is None:
        return _kernel(*rows, bias=bias, **settings)
    if mask.query_segments is None and mask.padding == "at_end":
        query_lengths, key_lengths = _lengths(mask.key_segments, queries=length)
        settings |= {"query_seq_lengths": query_lengths, "key_value_seq_lengths": key_lengths}
        return _kernel(*rows, bias=bias, **settings)
    if query.shape[-1] + _FEATURES <= _widest():
        segments = mask.segments(batch=len(query), queries=length, keys=keys_values.length)
        return _within_segments(*rows, *segments, bias, **settings)
    allowed = mask.dense(queries=length, keys=keys_values.length)
    return _kernel(*rows, bias=bias, mask=allowed, scale=scale)


def _cudnn_leaves_to_dense(*, queries: int, keys: int, bias: Any, mask: AttentionMask) -> bool:
    """Return whether to use dense attention.

    It is used for one query, as in decoding, and with a bias for odd lengths, for which the kernel
    has no backward pass.
    """
    del mask
    return queries == 1 or (bias is not None and (queries % 2 == 1 or keys % 2 == 1))


cudnn_core = Core(_cudnn, knows_windows=True, leaves_to_dense=_cudnn_leaves_to_dense)


def cudnn_fits(
    query: Float[Array, "B T H K"],
    keys_values: KeyValues,
    *,
    dropout: float,
    dropout_broadcast: bool,
) -> bool:
    """Return whether `auto` uses the kernel: on an NVIDIA GPU, if it supports this attention.

    Args:
        dropout: the rate; 0 in evaluation.
    """
    drops = {"drops": dropout > 0.0, "dropout_broadcast": dropout_broadcast}
    return partitioning.device_kind().startswith("NVIDIA") and not _cudnn_problem(
        query, keys_values, **drops
    )


def _cudnn_problem(
    query: Array, keys_values: KeyValues, *, drops: bool, dropout_broadcast: bool
) -> str | None:
    """Return what the kernel does not support about this attention, or None."""
    if query.dtype not in (jnp.bfloat16, jnp.float16):
        return (
            f"needs model.dtype='bfloat16', not {query.dtype}; "
            "use model.attention='dense' for float32"
        )
    if drops and not (dropout_broadcast and query.shape[2] == keys_values.key.shape[1]):
        return (
            "has dropout of the attention weights only where "
            "model.dropout_broadcast=True and heads are not grouped: set model.dropout=0.0 or "
            "model.attention='dense'"
        )
    return None


def _widest() -> int:
    """Return the widest heads that JAX's binding accepts on the GPU of this process."""
    capability = float(getattr(jax.local_devices()[0], "compute_capability", 0.0))
    return _WIDEST_ON_HOPPER if capability >= _HOPPER else _WIDEST


def _is_plain(mask: AttentionMask) -> bool:
    """Return whether the mask has only segments, causality from slot 0 on and a causal window."""
    return (
        type(mask) is AttentionMask
        and mask.prefix is mask.key_slots is None
        and (mask.visibility == "causal" or (mask.visibility == "full" and mask.window is None))
        and (mask.visibility == "full" or mask.offset is None)
    )


def _lengths(
    segments: Int[Array, "B S"], *, queries: int
) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
    """Return each row's number of queries, including padding, and of real keys, at least 1."""
    real = jnp.maximum(jnp.sum(segments > 0, axis=1, dtype=jnp.int32), 1)
    # Sharded like the rows: the kernel of a device reads the lengths of its rows.
    return tuple(
        partitioning.constrain(lengths, ("activation_batch",))
        for lengths in (jnp.full_like(real, queries), real)
    )


def _attend_within_segments(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G K"],
    query_segments: Int[Array, "B T"],
    key_segments: Int[Array, "B S"],
    bias: Float[Array, "B H T S"] | None,
    *,
    scale: float,
    **settings: Any,
) -> Float[Array, "B T H K"]:
    """Compute attention within segments, without a mask array.

    Queries and keys get extra features that encode their segment's number: for each bit a pair of
    features whose products sum to 0 if the bits agree, and to a number far below every score if
    they do not. So the scores within a segment are exact, and the weights of other segments are 0.

    JAX's binding also supports segment offsets. But they need the number of segments at compile
    time and a Hopper GPU, use the strides of the query heads also for grouped keys (JAX 0.10.2),
    and are not tested with a bias.
    """
    width = query.shape[-1]
    shifts = jnp.arange(_BITS)
    query_bits, key_bits = (
        (segments[..., None] >> shifts) & 1 for segments in (query_segments, key_segments)
    )
    # The product of both factors is 2^20, and each factor fits into float16.
    of_queries = jnp.concatenate([query_bits, 1 - query_bits], axis=-1) * (2.0**10 / scale)
    of_keys = jnp.concatenate([1 - key_bits, key_bits], axis=-1) * -(2.0**10)

    def beside(x: Array, features: Array) -> Array:
        shape = (*x.shape[:3], _FEATURES)
        features = jnp.broadcast_to(features[:, :, None].astype(x.dtype), shape)
        return jnp.concatenate([x, features], axis=-1)

    # Except on Hopper the kernel needs values as wide as keys, so pad them with zeros.
    wide = jnp.pad(value, [(0, 0)] * 3 + [(0, _FEATURES)])
    return _kernel(
        beside(query, of_queries), beside(key, of_keys), wide, bias=bias, scale=scale, **settings
    )[..., :width]


# `training.flops` finds the jitted function by name, and does not count the extra features.
_attend_within_segments.__name__ = f"attention_beside_{_FEATURES}_features"
_within_segments = jax.jit(
    _attend_within_segments, static_argnames=("scale", "is_causal", "local_window_size")
)


def _kernel(query: Array, key: Array, value: Array, **settings: Any) -> Float[Array, "B T H K"]:
    return jax.nn.dot_product_attention(query, key, value, implementation="cudnn", **settings)


_LANES = 128  # block sizes are multiples of this
_WITHOUT = ("TPU v2", "TPU v3")  # kernels there lack the needed products of 16-bit operands
_PADDING = -1  # the segment of the padding that this module adds
_WITH_SETTINGS = "splash@"
_SPLASH_SETTINGS = re.compile(r"(\d+)(?:x(\d+))?(?:,fused)?|fused")


@dataclasses.dataclass(frozen=True)
class _Splash:
    """The settings of splash attention, which follow its name: `splash@1024x512,fused`.

    Attributes:
        queries, keys: the sizes of a block of scores; on a row whose length they do not divide,
            the greatest common divisors.
        fused: whether one kernel computes all gradients. It computes the scores of a block once
            rather than twice, but writes a part of the queries' gradient for each block of keys.
    """

    queries: int = 512
    keys: int = 512
    fused: bool = False

    @classmethod
    def parse(cls, text: str) -> "_Splash":
        """Parse sizes, `fused` or both.

        Raises:
            ValueError: the text is something else, or a size is not a multiple of 128.
        """
        match = _SPLASH_SETTINGS.fullmatch(text)
        if match is None:
            raise ValueError(
                f"model.attention='splash@{text}' must be splash@QUERIES, splash@QUERIESxKEYS or "
                "splash@fused, or sizes and fused: splash@1024x512,fused"
            )
        queries = int(match[1] or cls.queries)
        keys = int(match[2] or queries)
        if min(queries, keys) == 0 or queries % _LANES or keys % _LANES:
            raise ValueError(
                f"model.attention='splash@{text}' must have blocks of a multiple of {_LANES}"
            )
        return cls(queries, keys, fused=text.endswith("fused"))

    def blocks(self, length: int) -> splash_attention.BlockSizes:
        """Return the kernels' block sizes for rows of this length, a multiple of 128."""
        queries, keys = math.gcd(length, self.queries), math.gcd(length, self.keys)
        return splash_attention.BlockSizes(
            block_q=queries,
            block_kv=keys,
            block_q_dkv=queries,
            block_kv_dkv=keys,
            block_q_dq=None if self.fused else queries,
            block_kv_dq=None if self.fused else keys,
            use_fused_bwd_kernel=self.fused,
        )


def _splash(
    query: Float[Array, "B T H K"],
    keys_values: KeyValues,
    *,
    bias: Float[Array, "B H T S"] | None,
    mask: AttentionMask,
    scale: float,
    dropout: float = 0.0,
    dropout_rng: Array | None = None,
    dropout_broadcast: bool = False,
    settings: _Splash,
) -> Float[Array, "B T H K"]:
    """Compute attention on a TPU by blocks of scores, forward and backward.

    Causality and a window are static masks of the kernel, whose fully masked blocks are skipped;
    segments are two arrays of numbers. On other devices the kernel is interpreted, which is slow
    and meant for tests.

    Raises:
        ValueError: there is a bias or dropout of the attention weights, or a mask or sharding that
            the kernel does not support.
    """
    queries, keys = query.shape[1], keys_values.length
    drops = dropout if dropout_rng is not None else 0.0
    if problem := _splash_problem(keys_values, bias=bias, mask=mask, dropout=drops):
        raise ValueError(f"model.attention='splash' {problem}: set model.attention='dense'")
    query_segments, key_segments = mask.segments(batch=query.shape[0], queries=queries, keys=keys)
    # Padding queries attend to padding keys, since the kernel needs a key for each query.
    padding = -queries % _LANES
    rows = (query * scale, *keys_values.by_position())
    out = _on_shards(
        *(jnp.pad(x, [(0, 0), (0, padding), (0, 0), (0, 0)]) for x in rows),
        *(
            jnp.pad(x, [(0, 0), (0, padding)], constant_values=_PADDING)
            for x in (query_segments, key_segments)
        ),
        causal=mask.visibility == "causal",
        window=mask.window,
        settings=settings,
    )
    return out[:, :queries]


def _splash_leaves_to_dense(*, queries: int, keys: int, bias: object, mask: object) -> bool:
    """Return whether to use dense attention: for unequal numbers of queries and keys (caches)."""
    return queries != keys


@functools.cache  # the same settings are the same core, for functions jitted with it
def _splash_core(settings: _Splash) -> Core:
    return Core(
        functools.partial(_splash, settings=settings),
        names_output=True,
        knows_windows=True,
        leaves_to_dense=_splash_leaves_to_dense,
    )


splash_core = _splash_core(_Splash())


def splash_fits(query: Float[Array, "B T H K"], keys_values: KeyValues, **terms: Any) -> bool:
    """Return whether `auto` uses the kernel on a TPU: for 512 or more queries, if it is supported.

    Shorter rows have few scores, and starting a step of a kernel's grid takes about as long as a
    TPU takes to multiply 512 queries by 512 keys: an estimate, not a measurement.

    Args:
        terms: `bias`, `mask` and `dropout` (0 in evaluation).
    """
    return (
        query.shape[1] == keys_values.length >= _Splash.queries
        and partitioning.device_kind() not in _WITHOUT
        and not _splash_problem(keys_values, **terms)
    )


def _splash_problem(
    keys_values: KeyValues, *, bias: object, mask: AttentionMask, dropout: float
) -> str | None:
    """Return what the kernel does not support about this attention, or None."""
    sizes = dict(zip(("batch", "kv_heads"), keys_values.key.shape[:2], strict=True))
    if bias is not None:
        return "adds no bias to the scores, which this network has"
    if dropout > 0.0:
        return f"has no dropout of the attention weights, which is {dropout}"
    if type(mask) is not AttentionMask or mask.prefix is not None or mask.key_slots is not None:
        return "knows causal and full masks, windows and segments, and this mask is another"
    for name, size in sizes.items():
        if size % (parts := partitioning.parts(f"activation_{name}")):
            return f"cuts {name} into {parts} equal parts, which do not divide {size}"
    return None


def _on_shards(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B T G K"],
    value: Float[Array, "B T G K"],
    query_segments: Int[Array, "B T"],
    key_segments: Int[Array, "B T"],
    **shape: Any,
) -> Float[Array, "B T H K"]:
    """Run the kernel on each device's rows and heads, since XLA cannot partition a kernel."""
    run: Any = functools.partial(_attend, **shape, interpret=partitioning.platform() != "tpu")
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return run(query, key, value, query_segments, key_segments)
    batch, heads, groups = (
        partitioning.mesh_axes(f"activation_{name}") for name in ("batch", "heads", "kv_heads")
    )
    queries, keys = (PartitionSpec(batch, None, over, None) for over in (heads, groups))
    rows = PartitionSpec(batch, None)
    return jax.shard_map(
        run, in_specs=(queries, keys, keys, rows, rows), out_specs=queries, check_vma=False
    )(query, key, value, query_segments, key_segments)


def _attend(
    query: Array,
    key: Array,
    value: Array,
    query_segments: Array,
    key_segments: Array,
    *,
    causal: bool,
    window: int | None,
    settings: _Splash,
    interpret: bool,
) -> Float[Array, "B T H K"]:
    length, heads = query.shape[1:3]
    seen: Any = splash_attention.FullMask((length, length))
    if window is not None:
        seen = splash_attention.LocalMask(
            (length, length), (window - 1, 0 if causal else None), offset=0
        )
    elif causal:
        seen = splash_attention.CausalMask((length, length))
    kernel = splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([seen] * heads),
        block_sizes=settings.blocks(length),
        head_shards=1,
        q_seq_shards=1,
        residual_checkpoint_name=CONTEXT,
        interpret=interpret,
    )

    def attend_row(
        query: Array, key: Array, value: Array, query_segments: Array, key_segments: Array
    ) -> Array:
        heads_first = (jnp.swapaxes(x, 0, 1) for x in (query, key, value))
        segments = splash_attention.SegmentIds(query_segments, key_segments)
        return jnp.swapaxes(kernel(*heads_first, segment_ids=segments), 0, 1)

    return jax.vmap(attend_row)(query, key, value, query_segments, key_segments).astype(query.dtype)


def _by_device(
    query: Float[Array, "B T H K"], keys_values: KeyValues, **settings: Any
) -> Float[Array, "B T H K"]:
    """Compute attention with the core that is fastest on the devices of this program."""
    core = _fastest(query, keys_values, **settings)
    run = for_window(core, bias=settings["bias"], mask=settings["mask"])
    out = run(query, keys_values, **settings)
    return out if core.names_output else checkpoint_name(out, CONTEXT)


def _fastest(
    query: Array,
    keys_values: KeyValues,
    *,
    bias: Any,
    mask: AttentionMask,
    dropout: float,
    dropout_rng: Array | None,
    dropout_broadcast: bool,
    **_: Any,
) -> Core:
    platform, rate = partitioning.platform(), 0.0 if dropout_rng is None else dropout
    if platform == "cpu" and query.dtype == jnp.float32:
        return blockwise_core
    if platform == "gpu" and cudnn_fits(
        query, keys_values, dropout=rate, dropout_broadcast=dropout_broadcast
    ):
        return cudnn_core
    if platform == "tpu" and mask.window is None:
        terms: dict[str, Any] = {"bias": bias, "mask": mask, "dropout": rate}
        return splash_core if splash_fits(query, keys_values, **terms) else dense_core
    return dense_core


by_device_core = Core(_by_device, names_output=True, has_scores=True, knows_windows=True)

_CORES: dict[str, Core] = {
    "dense": dense_core,
    "blockwise": blockwise_core,
    "cudnn": cudnn_core,
    "splash": splash_core,
    "relative_flash": relative_flash_core,
}


def select_core(name: str) -> Core:
    """Return the core with this name in `_CORES`; `auto` chooses it by device for each program.

    `auto` is `cudnn` on an NVIDIA GPU for 16-bit types, without dropout or with one dropout mask
    for all queries of a head (`cudnn_fits`); `blockwise` on a CPU for float32; `splash` on a TPU
    for 512 queries or more, without a window, if the kernel supports the attention (`splash_fits`);
    and otherwise `dense`. `splash@1024x512,fused` sets block sizes and the fused backward kernel
    (`_Splash`).

    Raises:
        ValueError: the name is unknown, or its settings are.
    """
    if isinstance(name, str) and name.startswith(_WITH_SETTINGS):
        return _splash_core(_Splash.parse(name.removeprefix(_WITH_SETTINGS)))
    return choose("model.attention", name, {"auto": by_device_core, **_CORES})
