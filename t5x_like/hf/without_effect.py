"""Find the settings of a Hugging Face folder that have no effect here, and warn once.

A setting of config.json has an effect if the system's format reads it. All others are named in the
warning, misspelt names too, except settings that only describe a folder and do not change what the
network computes.
"""

import fnmatch
import functools
import pathlib
import reprlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from absl import logging

from t5x_like.hf import folder as files
from t5x_like.hf.config_settings import Noted
from t5x_like.names import nearest

# Settings that describe a folder, determine how transformers runs it, or were only for training.
_DESCRIPTION = (
    *("_name_or_path", "name_or_path", "model_type", "architectures", "auto_map", "dtype"),
    *("transformers_version", "torch_dtype", "tokenizer_class", "vocab_size", "_commit_hash"),
    *("_attn_implementation*", "attn_implementation", "use_flash_attention*", "use_cache"),
    *(
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "output_logits",
        "return_dict*",
    ),
    *("output_past", "output_router_logits", "use_bfloat16", "torchscript", "xla_device"),
    *(
        "gradient_checkpointing",
        "chunk_size_feed_forward",
        "initializer_*",
        "init_std",
        "init_method*",
    ),
    *("*_token_id", "*_token_index", "*_token_ids", "finetuning_task", "task_specific_params"),
    *("id2label", "label2id", "num_labels", "_num_labels", "problem_type", "language"),
    *("is_encoder_decoder", "n_ctx", "n_special", "predict_special_tokens", "directionality"),
    *("pooler_*", "summary_*", "start_n_top", "end_n_top", "net_structure_type", "gap_size"),
    *("num_memory_blocks", "inner_group_num", "down_scale_factor", "encoder_sparse_step"),
    *("decoder_sparse_step", "dense_act_fn", "is_gated_act", "max_window_layers"),
    *("force_bos_token_to_be_generated", "prefix", "padding_idx", "num_hidden_layers"),
    "n_positions",
    # Of Transformer-XL: how weights were initialized, and what follows from `cutoffs`.
    *("init", "init_range", "proj_init_std", "adaptive"),
    # Settings in the first folders of BART, Marian and Pegasus, whose values their classes now fix.
    *("normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits"),
    *("static_position_embeddings", "extra_pos_embeddings", "adjust_logits_during_generation"),
)
# Setting -> the values at which it changes nothing.
_IDLE: dict[str, tuple[Any, ...]] = {
    "*dropout*": (0, 0.0, False),
    "*layerdrop": (0, 0.0),
    "dropatt": (0, 0.0),
    "pruned_heads": ({},),
    "is_decoder": (False,),
    "proj_share_all_but_first": (True,),
    "add_cross_attention": (False,),
    "tie_encoder_decoder": (False,),
    "pretraining_tp": (1,),
    "reorder_and_upcast_attn": (False,),
    "add_router_probs": (False,),
    "relative_attention": (False,),
    "scale_decoder_outputs": (True,),
    "sample_softmax": (-1,),
}
# Settings of how transformers runs generation that do not affect the tokens.
_RUNNING = (
    *("transformers_version", "_from_model_config", "_original_object_hash", "_commit_hash"),
    *("use_cache", "output_*", "return_dict_in_generate", "return_timestamps", "bos_token_id"),
    *("cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile"),
    *("prefill_chunk_size", "low_memory", "continuous_batching_config", "is_assistant"),
    *("assistant_*", "num_assistant_tokens*", "prompt_lookup_num_tokens", "speculation_type"),
    *("max_matching_ngram_size", "target_lookbehind", "use_mtp", "trust_remote_code"),
)
_LAYERS = "full_attention"  # the value in `layer_types` that changes nothing
_LIKE = 0.85  # the similarity from which a name counts as a misspelt known name


def in_config(noted: Noted) -> dict[str, Any]:
    """Return the settings of a config.json that have no effect, after a format has read it."""
    unseen = {name: value for name, value in noted.items() if name not in noted.seen}
    return {name: value for name, value in unseen.items() if not _changes_nothing(name, value)}


def in_generation(
    settings: Mapping[str, Any], *, known: Collection[str], idle: Mapping[str, tuple[Any, ...]]
) -> dict[str, Any]:
    """Return the settings of a generation_config.json that have no effect.

    Args:
        known: the names of settings that have an effect.
        idle: {setting that is not supported: the values at which it changes nothing}.
    """
    return {
        name: value
        for name, value in settings.items()
        if value is not None
        and name not in known
        and not _matches(name, _RUNNING)
        and value not in idle.get(name, ())
        and not (name not in idle and value in (False, [], {}))
    }


def _changes_nothing(name: str, value: Any) -> bool:
    if value is None or _matches(name, _DESCRIPTION):
        return True
    if name == "layer_types" and isinstance(value, list):
        return set(map(str, value)) <= {_LAYERS}
    return any(
        value in idle for pattern, idle in _IDLE.items() if fnmatch.fnmatchcase(name, pattern)
    )


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def warn(
    folder: pathlib.Path,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    *,
    known: Collection[str],
) -> None:
    """Log one warning with a folder's settings that have no effect, once in a process.

    Args:
        config, generation: the settings without an effect in the two files.
        known: the names of settings that have an effect, to suggest corrections of misspelt names.
    """
    parts = []
    for file, settings in ((files.CONFIG, config), (files.GENERATION, generation)):
        descriptions = [_described(name, value, known) for name, value in sorted(settings.items())]
        parts += [f"{file}: {', '.join(descriptions)}"] if descriptions else []
    if parts:
        _once(str(folder), "; ".join(parts))


def _described(name: str, value: Any, known: Collection[str]) -> str:
    near = "" if name in known else nearest(name, known, cutoff=_LIKE)
    return f"{name}={reprlib.repr(value)}" + (f" (did you mean {near!r}?)" if near else "")


@functools.cache
def _once(folder: str, text: str) -> None:
    logging.warning("%s has settings without an effect here: %s", folder, text)
