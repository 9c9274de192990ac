"""A headless Chromium, driven over WebDriver (W3C) by chromedriver with the standard library."""

import base64
import json
import pathlib
import subprocess
import time
import urllib.error
import urllib.request
from types import TracebackType
from typing import Any, Self

from tests.programs import processes

_OPTIONS = {
    "goog:chromeOptions": {
        "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1500"]
    },
    "goog:loggingPrefs": {"browser": "ALL"},
}
ENTER, TAB, CONTROL, LEFT, RIGHT = "\ue007", "\ue004", "\ue009", "\ue012", "\ue014"


class Browser:
    """A window; commands that `chromedriver` and `chromium` on PATH answer."""

    def __enter__(self) -> Self:
        port = processes.free_port()
        self._driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.PIPE)
        self._url = f"http://127.0.0.1:{port}/session"
        asked = {"capabilities": {"alwaysMatch": _OPTIONS}}
        for _ in range(100):
            try:
                self._url += "/" + self._ask("POST", "", asked)["sessionId"]
                return self
            except urllib.error.URLError as error:
                if not isinstance(error.reason, ConnectionRefusedError):
                    raise
                time.sleep(0.1)
        raise TimeoutError("chromedriver does not answer")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ask("DELETE", "")
        self._driver.terminate()
        self._driver.communicate()

    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str) -> Any:
        """The value that a function body in JavaScript returns."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": []})

    def until(self, script: str, *, seconds: float = 120) -> Any:
        """The value of a function body once it is true."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            if time.monotonic() > end:
                raise TimeoutError(f"{script}: {self.run('return document.body.innerText')}")
            time.sleep(0.1)
        return value

    def press(self, *keys: str, holding: str = "") -> None:
        """Presses keys one after the other, with another one held down."""
        actions = [{"type": "keyDown", "value": holding}] if holding else []
        for key in keys:
            actions += [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        actions += [{"type": "keyUp", "value": holding}] if holding else []
        keyboard = {"type": "key", "id": "keyboard", "actions": actions}
        self._ask("POST", "/actions", {"actions": [keyboard]})

    def errors(self) -> list[str]:
        """What the page wrote to its console as errors, and requests that failed."""
        found = self._ask("POST", "/se/log", {"type": "browser"})
        return [one["message"] for one in found if one["level"] == "SEVERE"]

    def emulate(self, command: str, **parameters: Any) -> None:
        """Runs a command of the DevTools protocol, such as Emulation.setEmulatedMedia."""
        self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def screenshot(self, path: pathlib.Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data=data, method=method)
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)["value"]
