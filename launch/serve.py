"""Serve an exported model over HTTP: an example that needs JAX and safetensors alone.

    python -m t5x_like.convert --from=FOLDER --to=exported --format=stablehlo
    python launch/serve.py exported 8000
    curl -d '{"tokens": [[15496, 11]], "new": 20}' localhost:8000

It decodes greedily after prompts of token ids; copy it and the folder to any machine. Prompts are
padded to a multiple of 64 tokens, so that few shapes compile. Of the generation settings it applies
start, end and padding; when it starts it lists the others that the folder has.
"""

import json
import pathlib
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import jax
import jax.export
import numpy as np
from safetensors.flax import load_file

# What the generation settings are where greedy decoding changes nothing.
PLAIN = {
    **{"num_beams": 1, "do_sample": False, "num_return_sequences": 1},
    **{"min_length": 0, "min_new_tokens": None, "no_repeat_ngram_size": 0},
    **dict.fromkeys(("suppress_tokens", "forced_bos_token_id", "forced_eos_token_id")),
}


def not_applied(generation: dict[str, Any]) -> list[str]:
    """The settings that would change the tokens, and that this example does not apply."""
    return [f"{name}={generation[name]}" for name in PLAIN if generation[name] != PLAIN[name]]


class Model:
    """The programs of a folder and their parameters."""

    def __init__(self, folder: pathlib.Path):
        self.about = json.loads((folder / "program.json").read_text())
        self.params = load_file(folder / "model.safetensors")
        self.run = {}
        for name in ("prefill", "decode_step"):
            program = bytearray((folder / f"{name}.stablehlo").read_bytes())
            self.run[name] = jax.jit(jax.export.deserialize(program).call)

    def generate(self, prompts: list[list[int]], *, new: int) -> list[list[int]]:
        """Continue each prompt by at most `new` tokens; the end token is the last one."""
        settings, encodes = self.about["generation"], self._encodes
        length = 64 * -(-max(map(len, prompts)) // 64)
        ids = np.full((len(prompts), length), settings["pad_token_id"], np.int32)
        mask = np.zeros_like(ids)
        for row, prompt in enumerate(prompts):  # the last token of a decoder's prompt comes last
            place = slice(len(prompt)) if encodes else slice(length - len(prompt), length)
            ids[row, place], mask[row, place] = prompt, 1
        given: dict[str, np.ndarray] = {"input_ids": ids, "attention_mask": mask}
        if encodes:
            start = settings["decoder_start_token_id"]
            given["decoder_input_ids"] = np.full((len(prompts), 1), start, np.int32)
        given["slots"] = np.zeros(new + (1 if encodes else length), np.int32)
        out = self.run["prefill"](self.params, given)
        tokens = [np.argmax(out["logits"], axis=-1)]
        for _ in range(new - 1):
            step = {"input_ids": tokens[-1][:, None].astype(np.int32), "cache": out["cache"]}
            out = self.run["decode_step"](self.params, step)
            tokens.append(np.argmax(out["logits"], axis=-1))
        return [self._until_end(row) for row in np.stack(tokens, axis=1).tolist()]

    @property
    def _encodes(self) -> bool:
        return "decoder_input_ids" in self.about["functions"]["prefill"]["inputs"]

    def _until_end(self, tokens: list[int]) -> list[int]:
        given = self.about["generation"]["eos_token_id"]
        ends = [] if given is None else np.atleast_1d(given).tolist()
        place = next((n for n, token in enumerate(tokens) if token in ends), len(tokens))
        return tokens[: place + 1]


class Handler(BaseHTTPRequestHandler):
    """Answers {"tokens": [[...], ...], "new": N} with {"tokens": [[...], ...]}."""

    model: Model

    def do_POST(self) -> None:
        """Generate, or explain in one line what is wrong with the request."""
        answer: dict[str, Any]
        try:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompts, new = asked["tokens"], min(int(asked.get("new", 20)), 1024)
            vocabulary = range(self.model.about["vocab_size"])
            if not prompts or not all(p and all(t in vocabulary for t in p) for p in prompts):
                raise ValueError(f"tokens must be lists of ids below {len(vocabulary)}")
            status, answer = 200, {"tokens": self.model.generate(prompts, new=max(new, 1))}
        except (KeyError, TypeError, ValueError) as error:
            status, answer = 400, {"error": f"{type(error).__name__}: {error}"}
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


if __name__ == "__main__":
    Handler.model = Model(pathlib.Path(sys.argv[1]))
    if left := not_applied(Handler.model.about["generation"]):
        print(f"greedy decoding, without {', '.join(left)}", flush=True)
    HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
