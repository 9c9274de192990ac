"""XLNet in Hugging Face's folders."""

from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import COUNT, FLAG, LAYERS, RATE, Setting, or_null
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import WeightMap, dense, norm
from t5x_like.systems.xlnet import SIZES

_LAYER, _BLOCK = "transformer.layer.{layer}", "encoder/layers/{layer}"
_THEIRS, _OURS = f"{_LAYER}.rel_attn", f"{_BLOCK}/self_attention"


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del names
    width = settings["d_model"] // settings["heads"]
    if config.get("d_head") not in (width, None):
        raise ValueError(
            f"config.json has d_head={config['d_head']!r}; allowed: d_model / n_head = {width}"
        )
    return {"memory": config.get("mem_len") or 0}


def _derive_config(settings: Settings) -> dict[str, Any]:
    if settings["head"] == "question_answering":
        raise ValueError(
            "model.head='question_answering': Hugging Face's XLNetForQuestionAnswering is another "
            "head, which searches with beams: the encoder without a head is written by "
            "from_pretrained(folder, head='features').save_pretrained(NEW_FOLDER)"
        )
    return {
        "d_head": settings["d_model"] // settings["heads"],
        "mem_len": settings["memory"] or None,
    }


def _attention() -> WeightMap:
    return {
        **{f"{_OURS}/{name}/kernel": f"{_THEIRS}.{name[0]}" for name in ("query", "key", "value")},
        f"{_OURS}/out/kernel": (f"{_THEIRS}.o", "D H K -> H K D"),
        f"{_OURS}/distance_kernel": f"{_THEIRS}.r",
        f"{_OURS}/segments": f"{_THEIRS}.seg_embed",
        f"{_OURS}/content_bias": f"{_THEIRS}.r_w_bias",
        f"{_OURS}/distance_bias": f"{_THEIRS}.r_r_bias",
        f"{_OURS}/segment_bias": f"{_THEIRS}.r_s_bias",
        **norm(f"{_OURS}_norm", f"{_THEIRS}.layer_norm"),
    }


FORMAT = HuggingFaceFormat(
    system="xlnet",
    model_types={"xlnet": "XLNet"},
    defaults=SIZES["base"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "n_layer": Setting("layers", LAYERS),
        "d_model": Setting("d_model", COUNT),
        "d_inner": Setting("d_ff", COUNT),
        "n_head": Setting("heads", COUNT),
        "dropout": Setting("dropout", RATE, default=0.1),
        "summary_last_dropout": Setting("dropout", RATE, default=0.1),
        "mem_len": Setting("", or_null(COUNT), default=None),
        # How Hugging Face's class runs by default; they do not affect the network.
        "reuse_len": Setting("", or_null(COUNT), default=None),
        "use_mems_eval": Setting("", FLAG, default=True),
        "use_mems_train": Setting("", FLAG, default=False),
    },
    other_names={
        "n_token": "vocab_size",
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
    },
    fixed={
        "ff_activation": "gelu",
        "layer_norm_eps": 1e-12,
        "attn_type": "bi",
        "untie_r": True,
        "bi_data": False,  # True: half of the rows of a batch are reversed
        "same_length": False,
        "clamp_len": -1,
        "summary_type": "last",
        "summary_use_proj": True,
        "summary_activation": "tanh",
        "tie_word_embeddings": True,
    },
    multiples={"d_model": "n_head"},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights={
        "embeddings/embedding": "transformer.word_embedding.weight",
        "first_query": ("transformer.mask_emb", "0/1 0/1 D -> D"),
        **_attention(),
        **dense(f"{_BLOCK}/feed_forward/wi", f"{_LAYER}.ff.layer_1"),
        **dense(f"{_BLOCK}/feed_forward/wo", f"{_LAYER}.ff.layer_2"),
        **norm(f"{_BLOCK}/feed_forward_norm", f"{_LAYER}.ff.layer_norm"),
        "head/output/bias": "lm_loss.bias",
        # The dense layer on the last token's state, whichever head has it.
        **dense("head/first/dense", "sequence_summary.summary"),
        **dense("head/summary/dense", "sequence_summary.summary"),
        **dense("head/classifier", "logits_proj"),
        **dense("head/choice", "logits_proj"),
        **dense("head/tagger", "classifier"),
        **dense("head/answer", "qa_outputs"),
    },
    aliases={
        "lm_loss.weight": "transformer.word_embedding.weight",  # a copy
        "word_embedding.*": "transformer.word_embedding.*",  # a model without a head
        "mask_emb": "transformer.mask_emb",
        "layer.*": "transformer.layer.*",
    },
)
