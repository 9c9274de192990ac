"""DistilBERT in Hugging Face's folders."""

from t5x_like.hf.config_settings import COUNT, FLAG, LAYERS, RATE, Setting
from t5x_like.hf.record import HuggingFaceFormat
from t5x_like.hf.weight_map import attention, dense, norm
from t5x_like.systems.distilbert import SIZES

_LAYER, _OURS = "distilbert.transformer.layer.{layer}", "encoder/layers/{layer}"


FORMAT = HuggingFaceFormat(
    system="distilbert",
    model_types={"distilbert": "DistilBert"},
    defaults=SIZES["base"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "max_position_embeddings": Setting("positions", COUNT),
        "n_layers": Setting("layers", LAYERS),
        "dim": Setting("d_model", COUNT),
        "hidden_dim": Setting("d_ff", COUNT),
        "n_heads": Setting("heads", COUNT),
        "dropout": Setting("dropout", RATE, default=0.1),
        # Only affects the initialization: the folder has a position table in either case.
        "sinusoidal_pos_embds": Setting("", FLAG, default=False),
        "attention_dropout": Setting("dropout", RATE, default=0.1),
    },
    other_names={
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    },
    fixed={"activation": "gelu", "tie_word_embeddings": True},
    multiples={"dim": "n_heads"},
    weights={
        "embeddings/token/embedding": "distilbert.embeddings.word_embeddings.weight",
        "embeddings/position/embedding": "distilbert.embeddings.position_embeddings.weight",
        **norm("embeddings/norm", "distilbert.embeddings.LayerNorm"),
        **attention(
            f"{_OURS}/self_attention",
            *(f"{_LAYER}.attention.{name}_lin" for name in ("q", "k", "v", "out")),
        ),
        **norm(f"{_OURS}/self_attention_norm", f"{_LAYER}.sa_layer_norm"),
        **dense(f"{_OURS}/feed_forward/wi", f"{_LAYER}.ffn.lin1"),
        **dense(f"{_OURS}/feed_forward/wo", f"{_LAYER}.ffn.lin2"),
        **norm(f"{_OURS}/feed_forward_norm", f"{_LAYER}.output_layer_norm"),
        **dense("head/masked_lm/transform", "vocab_transform"),
        **norm("head/masked_lm/norm", "vocab_layer_norm"),
        "head/masked_lm/output/bias": "vocab_projector.bias",
        **dense("head/summary/dense", "pre_classifier"),
        **dense("head/classifier", "classifier"),
        **dense("head/tagger", "classifier"),
        **dense("head/choice", "classifier"),
        **dense("head/answer", "qa_outputs"),
    },
    aliases={
        "embeddings.*": "distilbert.embeddings.*",  # a model without a head
        "transformer.*": "distilbert.transformer.*",
        "vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight",  # a copy
    },
    unused=("distilbert.embeddings.position_ids", "embeddings.position_ids"),
    exported_as={"pretraining": "masked_lm"},
    not_exported=("teacher",),
)
