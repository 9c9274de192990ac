"""Freezes what Hugging Face's generate returns for lookup-table models: beam_search.npz.

python tests/golden/make_beam_search.py     (made with torch 2.13.0 and transformers 5.23.0)
"""

import itertools
import json
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.generation import logits_process
from transformers.modeling_outputs import CausalLMOutputWithPast

VOCABULARY, PAD, STARTS, LENGTH = 12, 9, (0, 10, 11), 8


class TableModel(transformers.PreTrainedModel, transformers.GenerationMixin):
    """Logits of the next token, looked up by the last two: table[V, V, V]."""

    config_class = transformers.PretrainedConfig

    def __init__(self, table: np.ndarray):
        super().__init__(transformers.PretrainedConfig(vocab_size=VOCABULARY))
        self.table = torch.nn.Parameter(torch.tensor(table), requires_grad=False)
        self.post_init()

    def forward(self, input_ids, **_):
        """The logits at every place; before the first token stands itself."""
        before = torch.cat([input_ids[:, :1], input_ids[:, :-1]], dim=1)
        return CausalLMOutputWithPast(logits=self.table[before, input_ids])


def draw_tables(random: np.random.Generator) -> np.ndarray:
    """Tables that end early, late, or not at all; none yields padding or a start token."""
    tables = random.normal(size=(5, VOCABULARY, VOCABULARY, VOCABULARY)).astype(np.float32)
    tables *= np.array([0.5, 1, 2, 3, 2], np.float32)[:, None, None, None]
    tables[..., 1] += np.array([1, 0, 1, 2, -6], np.float32)[:, None, None]
    tables[..., [PAD, *STARTS]] = -np.inf
    return tables


def beam_settings() -> list[dict]:
    """Every early stopping with every length penalty; in turn beams, end tokens and rules."""
    grid = itertools.product([False, True, "never"], [-1.0, 0.0, 0.6, 1.0, 2.0])
    settings = [
        {
            "num_beams": (2, 3, 4, 5)[i % 4],
            "early_stopping": early,
            "length_penalty": penalty,
            "eos_token_id": [[1], [1, 2]][i % 5 == 4],
        }
        for i, (early, penalty) in enumerate(grid)
    ]
    t5 = {"num_beams": 4, "early_stopping": True, "length_penalty": 2.0, "eos_token_id": [1]}
    return [
        *settings,
        {**t5, "min_new_tokens": 4},
        {**t5, "no_repeat_ngram_size": 2},
        {**t5, "early_stopping": False, "no_repeat_ngram_size": 1, "min_new_tokens": 3},
    ]


def greedy_settings() -> list[dict]:
    """Greedy decoding with one end token, two, and with rules."""
    return [
        {"eos_token_id": [1]},
        {"eos_token_id": [1, 2]},
        {"eos_token_id": [1], "min_new_tokens": 5},
        {"eos_token_id": [1], "no_repeat_ngram_size": 2},
    ]


def run(table: np.ndarray, settings: dict) -> dict[str, np.ndarray]:
    """The new tokens [B, n, N] and, of beams, their scores [B, n]."""
    returned = settings.get("num_beams", 1)
    out = TableModel(table).generate(
        torch.tensor(STARTS)[:, None],
        generation_config=transformers.GenerationConfig(
            max_new_tokens=LENGTH,
            pad_token_id=PAD,
            num_return_sequences=returned,
            do_sample=False,
            use_cache=False,
            return_dict_in_generate=True,
            output_scores=True,
            **settings,
        ),
    )
    tokens = np.full((len(STARTS), returned, LENGTH), PAD, np.int8)
    new = out.sequences[:, 1:].numpy()
    tokens[:, :, : new.shape[1]] = new.reshape(len(STARTS), returned, -1)
    if returned == 1:
        return {"tokens": tokens[:, 0]}
    return {"tokens": tokens, "scores": out.sequences_scores.numpy().reshape(tokens.shape[:2])}


def filter_arrays(random: np.random.Generator) -> dict[str, np.ndarray]:
    """Which of 50 logits Hugging Face's top-k and top-p keep."""
    logits = (3 * random.normal(size=(4, 50))).astype(np.float32)
    top_k, top_p = np.array([1, 2, 10, 49, 50, 60]), np.array([1e-6, 0.1, 0.5, 0.9, 0.99, 1.0])
    scores = torch.tensor(logits)

    def kept(warper: logits_process.LogitsProcessor) -> np.ndarray:
        return np.isfinite(warper(None, scores).numpy())

    return {
        "filters/logits": logits,
        "filters/top_k": top_k,
        "filters/top_p": top_p,
        "filters/kept_k": np.stack([kept(logits_process.TopKLogitsWarper(int(k))) for k in top_k]),
        "filters/kept_p": np.stack(
            [kept(logits_process.TopPLogitsWarper(float(p))) for p in top_p]
        ),
    }


def main() -> None:
    """Writes beam_search.npz beside this script."""
    random = np.random.default_rng(0)
    tables = draw_tables(random)
    arrays = {"tables": tables, "starts": np.array(STARTS), "pad_id": np.array(PAD)}
    for kind, every in [("beam", beam_settings()), ("greedy", greedy_settings())]:
        arrays[f"{kind}/settings"] = np.array([json.dumps(settings) for settings in every])
        for number, settings in enumerate(every):
            runs = [run(table, settings) for table in tables]
            for name in runs[0]:
                arrays[f"{kind}/{number}/{name}"] = np.stack([one[name] for one in runs])
    path = Path(__file__).with_name("beam_search.npz")
    np.savez_compressed(path, **arrays, **filter_arrays(random))


if __name__ == "__main__":
    main()
