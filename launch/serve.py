"""Serve an exported model over HTTP: an example that needs only JAX and safetensors.

    python -m t5x_like.convert --from=FOLDER --to=exported --format=stablehlo
    python launch/serve.py exported 8000
    curl -d '{"tokens": [[15496, 11]], "new": 20}' localhost:8000

It decodes greedily after prompts of token ids. Copy it and the folder to any machine. Prompts are
padded to a multiple of 64 tokens if there are enough positions, so that few shapes are compiled. Of
the generation settings it applies only start, end and padding; at the start it lists the others
that the folder has. It listens on 127.0.0.1, and refuses requests of pages of other sites, which it
recognizes by the headers Host and Origin.
"""

import argparse
import json
import pathlib
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jax
import jax.export
import numpy as np
from safetensors.flax import load_file

# Values of generation settings with which greedy decoding is unaffected.
PLAIN = {
    **{"num_beams": 1, "do_sample": False, "num_return_sequences": 1},
    **{"min_length": 0, "min_new_tokens": None, "no_repeat_ngram_size": 0},
    **dict.fromkeys(("suppress_tokens", "forced_bos_token_id", "forced_eos_token_id")),
}


ADDRESS = "127.0.0.1"
MOST_BYTES = 1_000_000  # maximum size of a request
MOST_ROWS, MOST_NEW = 64, 1024
SECONDS = 10.0  # limit for the body of a request, and for each read


class RefusedError(Exception):
    """A request is refused, with an HTTP status and a reason in one line."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status


def not_applied(generation: dict[str, Any]) -> list[str]:
    """Return the settings that would change the tokens, but that this example does not apply."""
    return [f"{name}={generation[name]}" for name in PLAIN if generation[name] != PLAIN[name]]


class Model:
    """The exported programs of a folder and their parameters."""

    def __init__(self, folder: pathlib.Path):
        self.about = json.loads((folder / "program.json").read_text())
        self.params = load_file(folder / "model.safetensors")
        self.run = {}
        for name in ("prefill", "decode_step"):
            program = bytearray((folder / f"{name}.stablehlo").read_bytes())
            self.run[name] = jax.jit(jax.export.deserialize(program).call)

    def generate(self, prompts: list[list[int]], *, new: int) -> list[list[int]]:
        """Continue each prompt by at most `new` tokens, ending with the end token.

        Raises:
            ValueError: a prompt and its new tokens exceed the model's positions.
        """
        settings, encodes = self.about["generation"], self._encodes
        length = self._padded(max(map(len, prompts)), new=new)
        # Without a padding token any token is right: the mask leaves it out.
        ids = np.full((len(prompts), length), settings["pad_token_id"] or 0, np.int32)
        mask = np.zeros_like(ids)
        for row, prompt in enumerate(prompts):  # a decoder's prompts are padded on the left
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

    def _padded(self, longest: int, *, new: int) -> int:
        """Return the length of the rows, whose padding may not take up positions of tokens."""
        most = self.about["positions"] or sys.maxsize
        prompt = 1 if self._encodes else longest  # tokens of the decoder's prompt
        if max(longest, prompt + new) > most:
            raise ValueError(
                f"a prompt of {longest} tokens and {new} new tokens: the model has {most} positions"
            )
        return min(64 * -(-longest // 64), most if self._encodes else most - new)

    @property
    def _encodes(self) -> bool:
        return "decoder_input_ids" in self.about["functions"]["prefill"]["inputs"]

    def _until_end(self, tokens: list[int]) -> list[int]:
        given = self.about["generation"]["eos_token_id"]
        ends = [] if given is None else np.atleast_1d(given).tolist()
        place = next((n for n, token in enumerate(tokens) if token in ends), len(tokens))
        return tokens[: place + 1]


class Server(ThreadingHTTPServer):
    """Serves each connection in a thread; a client that disconnects prints no traceback."""

    def handle_error(self, *connection: Any) -> None:
        """Print an error unless the connection caused it."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(*connection)


class Handler(BaseHTTPRequestHandler):
    """Answers {"tokens": [[...], ...], "new": N} with {"tokens": [[...], ...]}."""

    model: Model
    lock = threading.Lock()  # requests are computed one at a time
    timeout = SECONDS  # for a connection that sends nothing

    def do_POST(self) -> None:
        """Generate, or answer with a one-line error message."""
        answer: dict[str, Any]
        try:
            self._check_sender()
            prompts, new = self._read(json.loads(self._body()))
            with self.lock:
                status, answer = 200, {"tokens": self.model.generate(prompts, new=new)}
        except RefusedError as error:
            status, answer = error.status, {"error": str(error)}
        except (ValueError, RecursionError) as error:
            status, answer = 400, {"error": f"{type(error).__name__}: {error}"}
        except OSError:  # the client has left
            self.close_connection = True
            return
        self._send(status, json.dumps(answer).encode())

    def _check_sender(self) -> None:
        port = self.server.server_port  # type: ignore[attr-defined]
        own = [f"{name}:{port}" for name in (ADDRESS, "localhost")]
        if self.headers.get("Host") not in own:
            raise RefusedError(403, f"this server is http://{own[0]}")
        origin = self.headers.get("Origin")
        if origin is not None and origin not in [f"http://{one}" for one in own]:
            raise RefusedError(403, f"this server answers no page of {origin}")

    def _body(self) -> bytes:
        size = self.headers.get("Content-Length", "")
        if not (size.isascii() and size.isdecimal()):
            raise RefusedError(411, "Content-Length must be a number of bytes")
        if len(size) > 9 or int(size) > MOST_BYTES:
            raise RefusedError(413, f"a request may have {MOST_BYTES} bytes")
        found, left, end = b"", int(size), time.monotonic() + SECONDS
        while left:
            if time.monotonic() > end:
                raise RefusedError(408, f"the request took more than {SECONDS:.0f} seconds")
            try:
                part = self.rfile.read1(left)
            except TimeoutError as error:
                raise RefusedError(408, f"no byte came for {SECONDS:.0f} seconds") from error
            if not part:
                raise RefusedError(400, f"the request ended {left} bytes early")
            found, left = found + part, left - len(part)
        return found

    def _read(self, asked: Any) -> tuple[list[list[int]], int]:
        """Return the prompts and the number of new tokens of a request."""
        asked = asked if isinstance(asked, dict) else {}
        prompts, new = asked.get("tokens"), asked.get("new", 20)
        if type(new) is not int or not 1 <= new <= MOST_NEW:
            raise ValueError(f"new must be a whole number from 1 to {MOST_NEW}")
        if not isinstance(prompts, list) or not 1 <= len(prompts) <= MOST_ROWS:
            raise ValueError(f"tokens must be 1 to {MOST_ROWS} lists of ids")
        size = self.model.about["vocab_size"]
        for prompt in prompts:
            ids = prompt if isinstance(prompt, list) and prompt else [None]
            if not all(type(one) is int and 0 <= one < size for one in ids):
                raise ValueError(f"tokens must be lists of ids below {size}")
        return prompts, new

    def _send(self, status: int, content: bytes) -> None:
        self.close_connection = status != 200  # a refused request's body may not have been read
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:  # the client has left
            self.close_connection = True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path, help="an exported model")
    parser.add_argument("port", type=int, help=f"of {ADDRESS}")
    given = parser.parse_args()
    Handler.model = Model(given.folder)
    if left := not_applied(Handler.model.about["generation"]):
        print(f"greedy decoding, without {', '.join(left)}", flush=True)
    Server((ADDRESS, given.port), Handler).serve_forever()
