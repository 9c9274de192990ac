"""The server of the page: on 127.0.0.1, answering only requests of its page."""

import contextlib
import functools
import importlib.resources
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from t5x_like.experiment import command_line
from t5x_like.names import choose
from t5x_like.research.inspection import word_neighbours
from t5x_like.research.inspection.inspected import Inspected

ADDRESS = "127.0.0.1"
_MOST_BYTES = 200_000  # maximum size of a request
_SECONDS = 10.0  # limit for the body of a request, and for each read
_FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class RefusedError(Exception):
    """A request is refused.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status


def make_server(models: Sequence[Inspected], *, port: int) -> ThreadingHTTPServer:
    """Make a server of the page for these models; port 0 stands for any free port.

    Raises:
        ValueError: the port is in use or not allowed.
    """
    handler = functools.partial(Handler, models, threading.Lock())
    try:
        return _Server((ADDRESS, port), handler)
    except (OSError, OverflowError) as error:
        raise ValueError(f"--port={port} cannot be opened ({error}): choose another one") from error


def answer(models: Sequence[Inspected], path: str, request: Mapping[str, Any]) -> Any:
    """Answer a request of the page with JSON values.

    Args:
        models: the models of the page.
        path: the path of the request.
        request: `model`, an index in `models`, `text` or `tokens`, and the arguments of the view.

    Raises:
        ValueError: the request is invalid.
    """
    if path == "/api/about":
        return [model.about() for model in models]
    number = request.get("model", 0)
    if type(number) is not int or not 0 <= number < len(models):
        raise ValueError(f"model={number!r}: 0 to {len(models) - 1} allowed")
    model = models[number]
    if path == "/api/look" and "text" in request:
        return model.look(model.read(_of(request, "text", str)))
    if path == "/api/neighbours":
        return _neighbours(model, request)
    tokens, targets = _of(request, "tokens", list), request.get("targets")
    if targets is not None and not isinstance(targets, list):
        raise ValueError(f"targets={targets!r} must be a list")
    if path == "/api/look":
        return model.look(tokens, targets)
    if path == "/api/lens":
        return model.lens(tokens, targets)
    choose("the path", path, dict.fromkeys(["/api/layers", "/api/attention", "/api/experts"]))
    side = _of(request, "side", str)
    if path == "/api/layers":
        return model.layers(tokens, targets, side=side)
    location = {"side": side, "layer": _of(request, "layer", int)}
    if path == "/api/experts":
        return model.experts(tokens, targets, **location)
    return model.attention(tokens, targets, **location, head=_of(request, "head", int))


def _neighbours(model: Inspected, request: Mapping[str, Any]) -> Any:
    texts, layer = _of(request, "texts", list), request.get("layer")
    if any(type(text) is not str for text in texts) or type(layer) not in (int, type(None)):
        raise ValueError("texts must be a list of strings, layer an integer or null")
    return word_neighbours.of_page(
        model,
        word=_of(request, "word", str),
        text=_of(request, "text", str),
        texts=texts,
        layer=layer,
    )


def _of(request: Mapping[str, Any], name: str, kind: type) -> Any:
    value = request.get(name)
    if type(value) is not kind:
        raise ValueError(f"{name}={value!r} must be of type {kind.__name__}")
    return value


class _Server(ThreadingHTTPServer):
    """Serves each connection in a thread; a client that disconnects prints no traceback."""

    def handle_error(self, *connection: Any) -> None:
        """Print an error unless the connection caused it."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(*connection)


class Handler(BaseHTTPRequestHandler):
    """Answers the page's requests, one at a time."""

    timeout = _SECONDS  # for a connection that sends nothing

    def __init__(self, models: Sequence[Inspected], lock: threading.Lock, *arguments: Any):
        self.models, self.lock, self.port = models, lock, arguments[-1].server_port
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Send a file of the page."""
        self._respond(self._file)

    def do_POST(self) -> None:
        """Send the answer to a request as JSON."""
        self._respond(self._answered)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the library's name)
        """Print nothing, so that texts stay on the page."""

    def _file(self) -> tuple[str, bytes]:
        if self.path not in _FILES:
            raise RefusedError(404, "there is no such file")
        name, kind = _FILES[self.path]
        return kind, importlib.resources.files(__package__).joinpath("static", name).read_bytes()

    def _answered(self) -> tuple[str, bytes]:
        if self.headers.get_content_type() != "application/json":
            raise RefusedError(415, "a question must be application/json")
        size = self.headers.get("Content-Length", "")
        if not (size.isascii() and size.isdecimal()):
            raise RefusedError(411, "Content-Length must be a number of bytes")
        if len(size) > len(str(_MOST_BYTES)) or int(size) > _MOST_BYTES:
            raise RefusedError(413, f"a question may have {_MOST_BYTES} bytes")
        try:
            request = json.loads(self._body(int(size)))
            if not isinstance(request, dict):
                raise ValueError("a question must be a JSON object")
            with self.lock:
                reply = answer(self.models, self.path, request)
        except (ValueError, RecursionError) as error:
            raise RefusedError(400, " ".join(str(error).split())) from error
        return "application/json", command_line.as_standard_json(reply)

    def _body(self, size: int) -> bytes:
        content, end = b"", time.monotonic() + _SECONDS
        while len(content) < size:
            if time.monotonic() > end:
                raise RefusedError(408, f"the question took more than {_SECONDS:.0f} seconds")
            try:
                part = self.rfile.read1(size - len(content))
            except TimeoutError as error:
                raise RefusedError(408, f"no byte came for {_SECONDS:.0f} seconds") from error
            if not part:
                raise RefusedError(400, f"the question ended {size - len(content)} bytes early")
            content += part
        return content

    def _respond(self, make: Callable[[], tuple[str, bytes]]) -> None:
        try:
            self._check_origin()
            status, (kind, content) = 200, make()
        except RefusedError as error:
            status, kind = error.status, "application/json"
            content = command_line.as_json({"error": str(error)})
            self.close_connection = True
        except OSError:  # the client has disconnected
            self.close_connection = True
            return
        with contextlib.suppress(OSError):  # likewise
            self._send(status, kind, content)

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _check_origin(self) -> None:
        """Refuse the requests of other sites' pages, which a browser would let through."""
        port = self.port
        hosts = [f"{name}:{port}" for name in (ADDRESS, "localhost")]
        if self.headers.get("Host") not in hosts:
            raise RefusedError(403, f"this page is at http://{hosts[0]}")
        origin = self.headers.get("Origin")
        if origin is not None and origin not in [f"http://{host}" for host in hosts]:
            raise RefusedError(403, f"this page answers only its own requests, not {origin}")
