"""Freezes what PyTorch computes after a change of any one setting of a config.json: mutations.npz.

python tests/golden/make_mutations.py [name ...]  (made with torch 2.13.0, transformers 5.23.0)

For each kind of folder, every key of its config.json and every other one that its class reads is
given other values, and left out; the tensors stay the same. The file has, for each change, the
number of the output that it leads to, "error" where Transformers does not run, or "random" where
it draws parameters anew, so that the folder has no one output.
"""

import inspect
import json
import logging
import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import drawn_weights
import numpy as np
import torch
import transformers
from mutated_folders import FOLDERS
from safetensors import safe_open
from safetensors.numpy import save_file

OUTPUTS = {  # ours by Hugging Face's
    "logits": "logits",
    "prediction_logits": "logits",
    "seq_relationship_logits": "row_logits",
    "sop_logits": "row_logits",
    "start_logits": "start_logits",
    "end_logits": "end_logits",
    "last_hidden_state": "hidden",
    "pooler_output": "summary",
}
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python", "quick_gelu")
ACTIVATIONS += ("relu", "relu2", "silu", "swish", "tanh", "sigmoid", "linear", "mish", "gelu_10")
ROPES: tuple[Any, ...] = (
    {},
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "default"},
    {"rope_theta": 500.0},
    {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
    {"type": "linear", "factor": 4.0},
    {"rope_type": "linear", "rope_theta": 500.0},
    {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 500.0},
    {"rope_type": "yarn", "factor": 2.0, "rope_theta": 500.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 500.0,
    },
    {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
    {"rope_type": "default", "rope_theta": 500.0, "attention_factor": 2.0},
    {"rope_type": "proportional", "rope_theta": 500.0},
)
# Values of settings that are not numbers or flags, or that a folder may lack.
VALUES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("hidden_act", "activation", "activation_function", "afn", "dense_act_fn"), ACTIVATIONS
    ),
    "feed_forward_proj": (
        "relu",
        "gelu",
        "gelu_new",
        "silu",
        "gated-gelu",
        "gated-gelu_new",
        "gated-relu",
        "gated-silu",
        "gated",
    ),
    **dict.fromkeys(("rope_parameters", "rope_scaling"), ROPES),
    "rope_theta": (10.0, 500.0, 10_000.0, 1_000_000),
    "partial_rotary_factor": (0.5,),
    "position_embedding_type": ("absolute", "relative_key", "relative_key_query"),
    "problem_type": (
        "regression",
        "single_label_classification",
        "multi_label_classification",
        "ranking",
    ),
    "id2label": ({}, {"0": "A"}, {"0": "A", "1": "B"}, {str(n): f"L{n}" for n in range(5)}),
    "label2id": ({}, {"A": 0}, {"A": 0, "B": 1, "C": 2}),
    "num_labels": (1, 2, 3, 5),
    "pruned_heads": ({}, {"0": [1]}),
    "sliding_window": (None, 1, 3, 4, 100),
    "layer_types": (["full_attention"] * 2, ["sliding_attention"] * 2),
    "router_dtype": ("float32", "bfloat16", "float16"),
    "head_dim": (4, 6, 12),
    "n_inner": (None, 28, 96, 0),
    "n_ctx": (8, 16),
    "torch_dtype": ("float32", "float16"),
    "summary_type": ("cls_index", "last", "first", "mean", "attn", "x"),
    "_attn_implementation": ("eager", "sdpa"),
    "attn_implementation": ("eager", "sdpa"),
    "layerdrop": (0.5,),
    "max_length": (5,),
    "vocab_size": (30, 40, 42),
    "relative_attention_max_distance": (1, 0, 4, 6, 11, 13, 24, 12.0),
    "max_relative_positions": (-1, 0, 1, 5, 6, 7, 11, 18, 30),
    "position_buckets": (-1, 0, 1, 2, 3, 4, 6, 8),
    "pos_att_type": ([], ["c2p"], ["p2c"], ["p2c", "c2p"], "c2p|p2c", "p2c", "x", ["x"]),
    "norm_rel_ebd": ("none", "layer_norm", "none|layer_norm", "x"),
    "conv_act": ACTIVATIONS,
    "pooler_hidden_act": ACTIVATIONS,
    "ff_activation": ACTIVATIONS,
    "attention_type": ("block_sparse", "original_full", "x"),
    "attn_type": ("bi", "uni", "x"),
    "summary_activation": ("tanh", "relu", "x"),
}
# Settings that old classes, other classes or generation read, and those that a class may add.
FURTHER = """
    tie_encoder_decoder tie_word_embeddings cross_attention_hidden_size torch_dtype n_ctx
    position_embedding_type rope_scaling rope_theta partial_rotary_factor pruned_heads
    output_attentions output_scores torchscript use_bfloat16 finetuning_task prefix layer_types
    normalize_before normalize_embedding add_final_layer_norm static_position_embeddings
    add_bias_logits scale_embedding attention_bias mlp_bias bias head_dim is_gated_act
    layer_norm_eps layer_norm_epsilon net_structure_type down_scale_factor gap_size
    num_memory_blocks attn_scale is_decoder add_cross_attention is_encoder_decoder
    sliding_window use_sliding_window max_window_layers logit_scale embedding_multiplier
    residual_multiplier attention_multiplier logits_scaling final_logit_softcapping
    attn_logit_softcapping query_pre_attn_scalar num_sparse_encoder_layers
    num_sparse_decoder_layers scale_attn_weights no_scale qk_norm num_labels num_choices
    max_length rms_norm_eps scale_decoder_outputs
"""
NOT_CHANGED = {"model_type", "dtype", "torch_dtype", "transformers_version", "architectures"}
MISSING = "(missing)"


def values_of(key: str, old: Any) -> list[Any]:
    """Other values of a setting."""
    if key in VALUES:
        found = list(VALUES[key])
    elif isinstance(old, bool) or old is None:
        found = [True, False, 1]
    elif isinstance(old, int):
        found = [old + 1, old - 1, 2 * old, 1, 0, 4, 6, float(old)]
    elif isinstance(old, float):
        found = [old + 0.25, 0.1, 1e-3, 1e-6, 0.0, 1, 2.0]
    else:
        found = ["x", 1]
    return [value for value in [*found, None] if value != old or type(value) is not type(old)]


def keys_of(config: dict[str, Any], model: Any) -> dict[str, Any]:
    """The keys to change, with the values of those that they stand for."""
    source = inspect.getsource(sys.modules[type(model).__module__])
    read = set(re.findall(r"config\.([a-z]\w+)", source)) | set(FURTHER.split())
    read |= set(re.findall(r'getattr\(config, "(\w+)"', source))
    found = {**model.config.to_dict(), **dict.fromkeys(sorted(read - config.keys())), **config}
    for other, own in model.config.attribute_map.items():
        found.setdefault(other, found.get(own))
        found[other] = found.get(own) if found[other] is None else found[other]
    return {k: v for k, v in found.items() if k not in NOT_CHANGED and not callable(v)}


def class_of(config: dict[str, Any], fallback: str) -> Any:
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else fallback
    if config["model_type"] == getattr(transformers, name).config_class.model_type:
        return getattr(transformers, name)
    for ending in ("MaskedLM", "SequenceClassification", "CausalLM"):
        if name.endswith(ending):
            return getattr(transformers, f"AutoModelFor{ending}")
    generates = name.endswith("ForConditionalGeneration")
    return transformers.AutoModelForSeq2SeqLM if generates else transformers.AutoModel


@torch.no_grad()
def outcome(folder: Path, config: dict[str, Any], base: dict[str, Any], sides: str) -> Any:
    """What Transformers computes in the folder, "error" or "random"."""
    (folder / "config.json").write_text(json.dumps(config))
    batch = drawn_weights.inputs(config, sides=sides, base=base)
    found = []
    try:
        make = class_of(config, base["architectures"][0])
        for seed in (0, 1):
            torch.manual_seed(seed)
            model, info = make.from_pretrained(
                folder, dtype=torch.float32, output_loading_info=True
            )
            tensors = {name: torch.tensor(array).long() for name, array in batch.items()}
            if "MultipleChoice" in type(model).__name__:
                tensors = {name: tensor[None] for name, tensor in tensors.items()}
            out = model.eval()(**tensors, return_dict=True)
            outputs = {OUTPUTS[k]: v.numpy() for k, v in out.items() if k in OUTPUTS}
            if "encoder_last_hidden_state" in out and "hidden" in outputs:
                return "error"  # without the head; its outputs are the decoder's
            found.append(drawn_weights.sample(outputs, model_type=base["model_type"]))
            if not info["missing_keys"]:
                break
    except Exception as error:  # whatever Transformers raises
        return "error", f"{type(error).__name__}: {str(error)[:80]}"
    if len(found) == 2 and not np.array_equal(*found, equal_nan=True):
        return "random"
    return found[0]


def shapes_of(path: Path, model: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of a file's tensors, without those that Transformers computes."""
    computed = {name for name, one in model.named_parameters() if not one.requires_grad}
    with safe_open(path, "np") as file:
        names = [name for name in list(file.keys()) if name not in computed]
        return {name: tuple(file.get_slice(name).get_shape()) for name in names}


def freeze(name: str) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The folder and its mutations, and the different outputs, that of the folder itself first."""
    class_name, settings, sides = FOLDERS[name]
    make = getattr(transformers, class_name)
    model = make(make.config_class(**settings))
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        shapes = shapes_of(folder / "model.safetensors", model)
        save_file(
            {key: drawn_weights.draw(key, shape) for key, shape in shapes.items()},
            folder / "model.safetensors",
            metadata={"format": "pt"},
        )
        base = json.loads((folder / "config.json").read_text())
        outputs = [outcome(folder, base, base, sides)]
        assert isinstance(outputs[0], np.ndarray), outputs
        changes = [
            (key, value)
            for key, old in keys_of(base, model).items()
            for value in values_of(key, old)
            if key not in base or value != base[key] or type(value) is not type(base[key])
        ]
        changes += [(key, MISSING) for key in base if key != "model_type"]
        if not class_name.endswith("MultipleChoice"):  # which `class_of` has no class for
            changes += [("model_type", value) for value in OTHER_TYPES.get(base["model_type"], ())]
        found = []
        for key, value in changes:
            config = {k: v for k, v in {**base, key: value}.items() if v is not MISSING}
            result = outcome(folder, config, base, sides)
            if isinstance(result, np.ndarray):
                same = [n for n, one in enumerate(outputs) if np.array_equal(one, result)]
                outputs += [] if same else [result]
                result = same[0] if same else len(outputs) - 1
            elif isinstance(result, tuple):
                sys.stdout.write(f"  {name}: {key}={value!r}: {result[1]}\n")
                result = result[0]
            found.append([key, value, result])
    return {"config": base, "sides": sides, "tensors": shapes, "changes": found}, outputs


OTHER_TYPES = {
    "bert": ("roberta", "albert", "electra"),
    "roberta": ("xlm-roberta", "bert"),
    "xlm-roberta": ("roberta",),
    "t5": ("mt5", "switch_transformers"),
    "mt5": ("t5",),
    "umt5": ("mt5", "t5"),
    "gpt2": ("openai-gpt",),
    "llama": ("mistral",),
    "mistral": ("llama",),
}


def main() -> None:
    """Writes the file."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    path = Path(__file__).with_name("mutations.npz")
    arrays = dict(np.load(path)) if path.exists() and sys.argv[1:] else {}
    for name in sys.argv[1:] or FOLDERS:
        arrays = {key: array for key, array in arrays.items() if key.partition("/")[0] != name}
        stored, outputs = freeze(name)
        arrays[f"{name}/folder.json"] = np.array(json.dumps(stored))
        arrays |= {f"{name}/{number}": output for number, output in enumerate(outputs)}
        counts = [len(stored["changes"]), len(outputs)]
        kinds = [sum(one[2] == kind for one in stored["changes"]) for kind in ("error", "random")]
        sys.stdout.write(f"{name} {counts} {kinds}\n")
        sys.stdout.flush()
    np.savez_compressed(path, **arrays)


main()
