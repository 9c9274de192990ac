"""Freezes an encoder-decoder that Hugging Face makes of one BigBird: bigbird_roberta.npz.

python tests/golden/make_bigbird_roberta.py     (made with torch 2.13.0 and transformers 5.23.0)

No dimension equals another, and every weight is drawn. In an `EncoderDecoderModel` both sides have
the weights of a BigBird's folder; the file has the files of this folder, the weights of
cross-attention, which the folder lacks, and logits and generated tokens for sources of 16 blocks,
the last of which is not full, and for sources so short that attention is dense. The decoder is of
BERT's class, whose layers are the same: the self-attention of BigBird's class attends to the
encoder's output instead of the text in this version.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import (
    BertConfig,
    BertLMHeadModel,
    BigBirdConfig,
    BigBirdForMaskedLM,
    BigBirdModel,
    EncoderDecoderModel,
)

PAD, END, VOCABULARY, TARGET, NEW_TOKENS = 0, 1, 74, 13, 9
LENGTHS = {"sparse": 31, "dense": 15}
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 28,
    "max_position_embeddings": 40,
    "block_size": 2,
    "num_random_blocks": 2,
}


def draw(weights: list[tuple[str, torch.nn.Parameter]], *, seed: int) -> None:
    """Draws weights as far from their initial values as trained ones are."""
    random = torch.Generator().manual_seed(seed)
    for name, weight in weights:
        noise = torch.randn(weight.shape, generator=random)
        if "LayerNorm" in name and name.endswith("weight"):
            weight.data = 1 + 0.3 * noise
        elif weight.ndim == 1 or "embeddings" in name:
            weight.data = 0.5 * noise
        else:
            weight.data = 1.5 * noise * weight.shape[-1] ** -0.5


def batch(length: int) -> dict[str, torch.Tensor]:
    """Sources, the second of which is padded, and targets."""
    random = np.random.default_rng(3)
    source = random.integers(2, VOCABULARY, (3, length))
    target = random.integers(2, VOCABULARY, (3, TARGET))
    target[:, 0] = END
    mask = np.ones_like(source)
    mask[1, length - 6 :] = 0
    arrays = {
        "input_ids": np.where(mask == 1, source, PAD),
        "attention_mask": mask,
        "decoder_input_ids": target,
    }
    return {name: torch.tensor(array) for name, array in arrays.items()}


def decoder_of(bigbird: BigBirdForMaskedLM) -> BertLMHeadModel:
    """A decoder with the weights of a BigBird, and cross-attention."""
    names = [name for name in SIZES if name not in ("block_size", "num_random_blocks")]
    config = BertConfig(
        **{name: SIZES[name] for name in names},
        hidden_act="gelu_new",
        is_decoder=True,
        add_cross_attention=True,
    )
    decoder = BertLMHeadModel(config)
    found = decoder.load_state_dict(bigbird.state_dict(), strict=False)
    assert all("crossattention" in name for name in found.missing_keys), found
    return decoder


@torch.no_grad()
def main() -> None:
    """Writes the file."""
    bigbird = BigBirdForMaskedLM(BigBirdConfig(**SIZES)).eval()
    draw(list(bigbird.named_parameters()), seed=11)
    arrays: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        bigbird.save_pretrained(folder)
        weights = load_file(Path(folder, "model.safetensors"))
        arrays |= {f"weights/{key}": weight for key, weight in weights.items()}
        arrays["config.json"] = np.array(Path(folder, "config.json").read_text())
        encoder = BigBirdModel.from_pretrained(folder)
    model = EncoderDecoderModel(encoder=encoder, decoder=decoder_of(bigbird)).eval()
    cross = [(name, one) for name, one in model.named_parameters() if "crossattention" in name]
    draw(cross, seed=12)
    arrays |= {f"cross/{name.removeprefix('decoder.')}": one.numpy() for name, one in cross}
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = END
    model.config.pad_token_id = model.generation_config.pad_token_id = PAD
    for kind, length in LENGTHS.items():
        inputs = batch(length)
        arrays |= {f"{kind}/{name}": array.numpy() for name, array in inputs.items()}
        arrays[f"{kind}/logits"] = model(**inputs).logits.numpy()
        del inputs["decoder_input_ids"]
        settings = {"max_new_tokens": NEW_TOKENS, "no_repeat_ngram_size": 1, "num_beams": 2}
        found = model.generate(**inputs, eos_token_id=None, **settings)
        arrays[f"{kind}/generated"] = found.numpy()
        sys.stdout.write(f"{kind}\n{arrays[f'{kind}/generated']}\n")
    np.savez_compressed(Path(__file__).with_name("bigbird_roberta.npz"), **arrays)


main()
