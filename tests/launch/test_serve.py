"""The example server answers its own address, and bad requests in one line; no model is read."""

import http.client
import json
import socket
import struct
import threading

import pytest

from launch import serve


class Counting(serve.Model):
    """A decoder of 64 tokens and 80 positions that counts on."""

    def __init__(self, **about):
        inputs = {"input_ids": {}}
        self.about = {"vocab_size": 64, "positions": 80, "generation": {"eos_token_id": None}}
        self.about |= {"functions": {"prefill": {"inputs": inputs}}} | about

    def generate(self, prompts, *, new):
        self._padded(max(map(len, prompts)), new=new)
        return [[prompt[-1] + n + 1 for n in range(new)] for prompt in prompts]


@pytest.fixture
def port(monkeypatch):
    monkeypatch.setattr(serve.Handler, "model", Counting(), raising=False)
    monkeypatch.setattr(serve.Handler, "log_message", lambda *_: None)
    with serve.Server((serve.ADDRESS, 0), serve.Handler) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made.server_port
        made.shutdown()
        thread.join()


def ask(port, body, **headers):
    connection = http.client.HTTPConnection(serve.ADDRESS, port)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST", "/", body=body, headers=named)
    response = connection.getresponse()
    content = json.loads(response.read())
    connection.close()
    return response.status, content


def test_prompts_are_continued(port):
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        found = ask(port, '{"tokens": [[3, 4], [9]], "new": 2}', Host=host)
        assert found == (200, {"tokens": [[5, 6], [10, 11]]})


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ('{"tokens": [[1]]}', {"Host": "example.org"}, 403),  # DNS rebinding
        ('{"tokens": [[1]]}', {"Origin": "http://example.org"}, 403),
        ('{"tokens": [[1]]}', {"Origin": "null"}, 403),
        ("{}", {"Content_Length": "9" * 5000}, 413),
        ("{}", {"Content_Length": "-1"}, 411),
        ("{}", {"Content_Length": "1000001"}, 413),
        ("", {}, 400),
        ("[" * 100_000, {}, 400),
        ('{"tokens": [[1]], "new": Infinity}', {}, 400),
        ('{"tokens": [[1]], "new": NaN}', {}, 400),
        ('{"tokens": [[1]], "new": 0}', {}, 400),
        ('{"tokens": [[1]], "new": 9e99}', {}, 400),
        ('{"tokens": [[Infinity]]}', {}, 400),
        ('{"tokens": [[64]]}', {}, 400),
        ('{"tokens": [[true]]}', {}, 400),
        ('{"tokens": [[]]}', {}, 400),
        ('{"tokens": "1"}', {}, 400),
        ("[1]", {}, 400),
        (json.dumps({"tokens": [[1] * 70], "new": 11}), {}, 400),
    ],
)
def test_other_requests_are_refused_in_a_line(port, capfd, body, headers, status):
    found, content = ask(port, body, **headers)
    assert found == status
    assert content["error"]
    assert "\n" not in content["error"]
    assert capfd.readouterr().err == ""


def test_padding_takes_no_position_of_a_token(port):
    # Rows are padded to 64, and the cache has as many slots as rows and new tokens.
    assert ask(port, json.dumps({"tokens": [[1] * 3], "new": 77}))[0] == 200
    model = Counting()
    assert [model._padded(n, new=m) for n, m in ((3, 5), (3, 77), (70, 10))] == [64, 3, 70]
    assert Counting(positions=0)._padded(70, new=1000) == 128


def test_slow_and_leaving_clients(port, capfd, monkeypatch):
    monkeypatch.setattr(serve.Handler, "timeout", 0.1)
    head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 9\r\n\r\n{{"
    with socket.create_connection((serve.ADDRESS, port), timeout=60) as connection:
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.0 408 ")
    for sent in ("", "POST", head):
        with socket.create_connection((serve.ADDRESS, port)) as connection:
            connection.sendall(sent.encode())
            # SO_LINGER of no time: the kernel sends RST, and reading fails at the other end.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert ask(port, '{"tokens": [[1]], "new": 1}')[0] == 200
    assert capfd.readouterr().err == ""
