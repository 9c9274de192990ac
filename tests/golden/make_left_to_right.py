"""Freezes a left-to-right BERT and two LSTMs of PyTorch with random weights.

python tests/golden/make_left_to_right.py   (made with torch 2.4.1, transformers 4.36.2)

Every dimension has another size, and every weight is random. The BERT is Hugging Face's
BertLMHeadModel as a decoder: left_to_right_bert.npz. The LSTMs, lstm.npz, are torch.nn.LSTM of two
layers: `both` reads rows of different lengths in both directions, `one` from left to right.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

HERE = Path(__file__).parent
LENGTHS = (9, 6)


def draw(module: torch.nn.Module) -> torch.nn.Module:
    """Give every weight another random value."""
    random = torch.Generator().manual_seed(0)
    for name, weight in module.named_parameters():
        noise = torch.randn(weight.shape, generator=random)
        if "LayerNorm.weight" in name:
            weight.data = 1 + 0.3 * noise
        elif weight.ndim == 1 or "embeddings" in name:
            weight.data = 0.5 * noise
        else:
            weight.data = noise * weight.shape[1] ** -0.5
    return module.eval()


@torch.no_grad()
def bert() -> dict[str, np.ndarray]:
    """Logits, and the mean cross-entropy of the tokens that are not padding."""
    config = transformers.BertConfig(
        vocab_size=41,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        max_position_embeddings=14,
        is_decoder=True,
    )
    model = draw(transformers.BertLMHeadModel(config))
    model.tie_weights()
    tokens = torch.tensor(np.random.default_rng(0).integers(5, 41, (2, LENGTHS[0])))
    mask = torch.tensor([[1] * size + [0] * (LENGTHS[0] - size) for size in LENGTHS])
    labels = torch.where(mask > 0, tokens, -100)
    out = model(input_ids=tokens, attention_mask=mask, labels=labels)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        weights = load_file(Path(folder) / "model.safetensors")
    return {
        "tokens": tokens.numpy().astype(np.int32),
        "mask": mask.numpy().astype(np.int32),
        "logits": out.logits.numpy(),
        "loss": out.loss.numpy(),
        **{f"weights/{name}": weight for name, weight in weights.items()},
    }


@torch.no_grad()
def lstms() -> dict[str, np.ndarray]:
    """Inputs, weights and outputs of both LSTMs."""
    arrays = {"lengths": np.array(LENGTHS)}
    for name, both in (("both", True), ("one", False)):
        lstm = draw(torch.nn.LSTM(5, 7, num_layers=2, bidirectional=both, batch_first=True))
        x = torch.randn((2, LENGTHS[0], 5), generator=torch.Generator().manual_seed(1))
        rows = torch.nn.utils.rnn.pack_padded_sequence(x, LENGTHS, batch_first=True)
        out, _ = torch.nn.utils.rnn.pad_packed_sequence(lstm(rows)[0], batch_first=True)
        arrays |= {f"{name}/x": x.numpy(), f"{name}/out": out.numpy()}
        arrays |= {f"{name}/{key}": value.numpy() for key, value in lstm.state_dict().items()}
    return arrays


np.savez_compressed(HERE / "left_to_right_bert.npz", **bert())
np.savez_compressed(HERE / "lstm.npz", **lstms())
