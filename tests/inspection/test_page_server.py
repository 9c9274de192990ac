"""The server of the page answers its own page alone."""

import http.client
import json
import socket
import struct
import threading

import pytest

from t5x_like.research.inspection import server


@pytest.fixture(scope="module")
def port():
    with server.make_server([], port=0) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made.server_port
        made.shutdown()
        thread.join()


def ask(port, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body=body, headers=named)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response, content


def test_the_page_and_its_parts_are_served_with_a_policy(port):
    for path, kind in [("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/java")]:
        response, content = ask(port, "GET", path)
        assert response.status == 200
        assert response.headers["Content-Type"].startswith(kind)
        assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert b"innerHTML" not in content
        assert b"http://" not in content
        assert b"https://" not in content


def test_a_question_is_answered(port):
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        json_type = "application/json; charset=utf-8"
        response, content = ask(port, "POST", "/api/about", "{}", Host=host, Content_Type=json_type)
        assert (response.status, json.loads(content)) == (200, [])


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/", None, {"Host": "example.org"}, 403),
        ("GET", "/", None, {"Host": "127.0.0.1"}, 403),
        ("GET", "/../page.py", None, {}, 404),
        ("POST", "/api/about", "{}", {"Host": "example.org"}, 403),
        ("POST", "/api/about", "{}", {"Origin": "http://example.org"}, 403),
        ("POST", "/api/about", "{}", {"Origin": "null"}, 403),
        ("POST", "/api/about", "{}", {"Content_Type": "text/plain"}, 415),
        ("POST", "/api/about", "{}", {"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ("POST", "/api/about", "[]", {}, 400),
        ("POST", "/api/about", "{", {}, 400),
        ("POST", "/api/about", "[" * 100_000, {}, 400),
        ("POST", "/api/look", "{}", {}, 400),
        ("POST", "/api/about", "{}", {"Content_Length": "200001"}, 413),
        ("POST", "/api/about", "{}", {"Content_Length": "-1"}, 411),
        # Python's int refuses more than 4,300 digits (sys.set_int_max_str_digits).
        ("POST", "/api/about", "{}", {"Content_Length": "9" * 5000}, 413),
        ("POST", "/api/look", '{"model": Infinity}', {}, 400),
    ],
)
def test_other_requests_are_refused(port, method, path, body, headers, status):
    json_type = {"Content_Type": "application/json"} if method == "POST" else {}
    response, content = ask(port, method, path, body, **json_type | headers)
    assert response.status == status
    assert json.loads(content)["error"]


def test_a_port_in_use_is_one_line(port):
    with pytest.raises(ValueError, match=f"--port={port} cannot be opened .*in use"):
        server.make_server([], port=port)
    with pytest.raises(ValueError, match="--port=99999 cannot be opened"):
        server.make_server([], port=99_999)


def test_clients_that_leave_print_nothing(port, capfd):
    head = (
        f"POST /api/about HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    )
    for sent in ("", "POST", head, head + "Content-Length: 9\r\n\r\n{", head + "\r\n"):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(sent.encode())
            # SO_LINGER of no time: the kernel sends RST, and reading fails at the other end.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert ask(port, "GET", "/")[0].status == 200
    assert capfd.readouterr().err == ""


def test_a_slow_question_ends(port, monkeypatch):
    monkeypatch.setattr(server.Handler, "timeout", 0.1)
    head = (
        f"POST /api/about HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: 9\r\n\r\n{{".encode())
        assert connection.recv(100).startswith(b"HTTP/1.0 408 ")
