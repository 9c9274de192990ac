"""The rows of benchmarks/beside_pytorch.py: shapes of networks, batches and prompts."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

MASKED = 0.15  # share of BERT's tokens

# Settings of Hugging Face's configs: the published shapes (llama_1b is LLaMA 3.2 1B), except LLaMA
# with GPT-2's depth and width, and Switch Transformer with the depth and width of T5 v1.0 small.
_T5 = {"vocab_size": 32128, "dropout_rate": 0.0, "decoder_start_token_id": 0}
NETWORKS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "t5": ("T5Config", "T5ForConditionalGeneration", _T5),
    "t5_v1_1": (
        "T5Config",
        "T5ForConditionalGeneration",
        _T5
        | {"d_ff": 1024, "num_heads": 6, "num_layers": 8, "num_decoder_layers": 8}
        | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "t5_v1_1_narrow": (
        "T5Config",
        "T5ForConditionalGeneration",
        _T5
        | {"d_model": 256, "d_ff": 512, "num_heads": 4, "num_layers": 4, "num_decoder_layers": 4}
        | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "bert": (
        "BertConfig",
        "BertForMaskedLM",
        {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    ),
    "llama": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {"vocab_size": 32000, "hidden_size": 768, "intermediate_size": 2048}
        | {"num_hidden_layers": 12, "num_attention_heads": 12, "tie_word_embeddings": False},
    ),
    "t5_v1_1_large": (
        "T5Config",
        "T5ForConditionalGeneration",
        _T5
        | {"d_model": 1024, "d_ff": 2816, "num_heads": 16, "num_layers": 24}
        | {"num_decoder_layers": 24, "feed_forward_proj": "gated-gelu"}
        | {"tie_word_embeddings": False},
    ),
    "llama_1b": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {"vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192}
        | {"num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8}
        | {"head_dim": 64, "tie_word_embeddings": True},
    ),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    ),
    "switch": (
        "SwitchTransformersConfig",
        "SwitchTransformersForConditionalGeneration",
        _T5
        | {"d_model": 512, "d_ff": 2048, "num_heads": 8, "num_experts": 8}
        | {"num_layers": 6, "num_decoder_layers": 6, "router_jitter_noise": 0.0}
        | {"num_sparse_encoder_layers": 3, "num_sparse_decoder_layers": 3},
    ),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A workload that all sides compute.

    Attributes:
        what: train, generate or product.
        network: a name in NETWORKS.
        rows, inputs, targets: the shape of a batch; for generation `targets` is the number of new
            tokens, and `inputs` is 0 for training a decoder.
        beams: number of beams; 1 is greedy.
        optimizer: adamw or adafactor.
        settings: settings of our network that differ from the folder's.
        ours: our sides: values of `model.loop`.
        compiled: whether to measure compiled PyTorch too, in generation with a static cache.
        gpu: whether the row is measured on a GPU, in bfloat16.
    """

    name: str
    title: str
    what: str
    network: str = ""
    rows: int = 1
    inputs: int = 0
    targets: int = 0
    beams: int = 1
    optimizer: str = "adamw"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ours: tuple[str, ...] = ("scan", "auto")
    compiled: bool = True
    gpu: bool = False

    @property
    def dtype(self) -> str:
        """The dtype of parameters and computation."""
        return "bfloat16" if self.gpu else "float32"

    @property
    def work(self) -> float:
        """Tokens of a call (in training inputs and targets), or GFLOP of a product."""
        if self.what == "product":
            return 2 * self.rows**3 / 1e9
        return self.rows * (self.targets + (self.inputs if self.what == "train" else 0))

    @property
    def unit(self) -> str:
        """The unit of `work` per second."""
        return "GFLOP/s" if self.what == "product" else "tokens/s"

    def tokens(self, name: str) -> np.ndarray:
        """Return random tokens [rows, inputs] or [rows, targets + 1], the same on all sides."""
        length = {"inputs": self.inputs, "targets": self.targets + 1}[name]
        draw = np.random.default_rng(["inputs", "targets"].index(name))
        return draw.integers(2, 30000, (self.rows, length))

    def masked(self) -> np.ndarray:
        """Return which tokens [rows, inputs] BERT predicts, equally many in each row."""
        order = np.argsort(np.random.default_rng(2).random((self.rows, self.inputs)), axis=1)
        return order < round(MASKED * self.inputs)


def _training(name: str, title: str, network: str, rows: int, **more: Any) -> Row:
    more = {"settings": _NO_DROPOUT} | more
    return Row(f"train_{name}", f"train {title}", "train", network, rows, **more)


def _generation(name: str, title: str, network: str, **more: Any) -> Row:
    more = {"targets": 64, "compiled": False} | more
    return Row(name, title, "generate", network, ours=("auto",), **more)


_NO_DROPOUT: dict[str, Any] = {"dropout": 0.0}
_LONG: dict[str, Any] = {"inputs": 512, "targets": 114}
_GPU: dict[str, Any] = {"targets": 128, "gpu": True}
_GPU_T5, _GPU_LLAMA = "T5 1.1 large, 512 in, 128 out", "LLaMA 1B, 128 in, 128 out"
_ALL = (
    _training("t5", "T5 1.1 small, 4 x (512 + 114)", "t5_v1_1", 4, **_LONG),
    _training("bert", "BERT base, 4 x 128, masked places only", "bert", 4, inputs=128),
    _training("llama", "LLaMA 134M, 2 x 512", "llama", 2, targets=512, settings={}),
    _training("gpt2", "GPT-2 124M, 4 x 128", "gpt2", 4, targets=128),
    _training("switch", "Switch, 6 + 6 layers, 8 experts, 4 x (512 + 114)", "switch", 4, **_LONG),
    _training(
        "dropless",
        "the same, dropless here",
        "switch",
        4,
        **_LONG,
        settings=_NO_DROPOUT | {"dispatch": "dropless"},
        compiled=False,
    ),
    _training(
        "narrow",
        "T5 1.1, width 256, 4 + 4 layers, 8 x (256 + 64), Adafactor",
        "t5_v1_1_narrow",
        8,
        inputs=256,
        targets=64,
        optimizer="adafactor",
    ),
    _generation("t5_greedy", "T5 small, 8 rows, 256 in, 64 out", "t5", rows=8, inputs=256),
    _generation("t5_beams", "the same, 4 beams", "t5", rows=8, inputs=256, beams=4),
    _generation("gpt2_1", "GPT-2, 32 in, 64 out, 1 row", "gpt2", rows=1, inputs=32),
    _generation("gpt2_8", "the same, 8 rows", "gpt2", rows=8, inputs=32),
    _generation(
        "gpu_t5_greedy", f"{_GPU_T5}, 32 rows", "t5_v1_1_large", rows=32, inputs=512, **_GPU
    ),
    _generation(
        "gpu_t5_beams",
        f"{_GPU_T5}, 8 rows, 4 beams",
        "t5_v1_1_large",
        rows=8,
        inputs=512,
        beams=4,
        **_GPU,
    ),
    _generation("gpu_llama_1", f"{_GPU_LLAMA}, 1 row", "llama_1b", inputs=128, **_GPU),
    _generation("gpu_llama_32", f"{_GPU_LLAMA}, 32 rows", "llama_1b", rows=32, inputs=128, **_GPU),
    Row("product", "2048^3", "product", rows=2048, ours=("auto",), compiled=False),
)
ROWS = {row.name: row for row in _ALL}
