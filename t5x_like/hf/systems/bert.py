"""BERT in Hugging Face's folders."""

from t5x_like.hf.config_settings import COUNT, LAYERS, RATE, Setting
from t5x_like.hf.record import HuggingFaceFormat
from t5x_like.hf.weight_map import bert_encoder, dense, norm
from t5x_like.systems.bert import SIZES

FORMAT = HuggingFaceFormat(
    system="bert",
    model_types={"bert": "Bert"},
    defaults=SIZES["base"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "max_position_embeddings": Setting("positions", COUNT),
        "type_vocab_size": Setting("token_types", COUNT),
        "num_hidden_layers": Setting("layers", LAYERS),
        "hidden_size": Setting("d_model", COUNT),
        "intermediate_size": Setting("d_ff", COUNT),
        "num_attention_heads": Setting("heads", COUNT),
        "hidden_dropout_prob": Setting("dropout", RATE, default=0.1),
        "attention_probs_dropout_prob": Setting("dropout", RATE, default=0.1),
    },
    fixed={
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    multiples={"hidden_size": "num_attention_heads"},
    exported_only={"layer_features": "last"},
    weights={
        **bert_encoder("bert"),
        **dense("head/summary/dense", "bert.pooler.dense"),
        **dense("head/masked_lm/transform", "cls.predictions.transform.dense"),
        **norm("head/masked_lm/norm", "cls.predictions.transform.LayerNorm"),
        "head/masked_lm/output/bias": "cls.predictions.bias",
        **dense("head/row", "cls.seq_relationship"),
        **dense("head/classifier", "classifier"),
        **dense("head/tagger", "classifier"),
        **dense("head/choice", "classifier"),
        **dense("head/answer", "qa_outputs"),
    },
    aliases={
        "*.gamma": "*.weight",  # the names of norms in the oldest files
        "*.beta": "*.bias",
        "embeddings.*": "bert.embeddings.*",  # a model without a head
        "encoder.*": "bert.encoder.*",
        "pooler.*": "bert.pooler.*",
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",  # copies
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    unused=(
        "bert.embeddings.position_ids",
        "embeddings.position_ids",
        # The published folders contain all of pretraining, whichever class their config.json names.
        *(f"bert.pooler.dense.{name}" for name in ("weight", "bias")),
        *(f"cls.seq_relationship.{name}" for name in ("weight", "bias")),
        # TinyBERT's projection to the width of its teacher.
        *(f"fit_dense.{name}" for name in ("weight", "bias")),
    ),
)
