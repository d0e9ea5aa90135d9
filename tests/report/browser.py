"""Chromium without a window, driven by its DevTools protocol: opens a page, looks, clicks."""

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
PATIENCE = 60.0
"""Seconds that a slow machine gets for anything."""


class Browser:
    """A page in a browser, and what its console said."""

    def __init__(self, line: ClientConnection) -> None:
        self._line, self._number = line, 0
        self.console: list[str] = []
        for each in ("Page", "Log", "Runtime"):
            self.call(f"{each}.enable")

    def call(self, method: str, **given: Any) -> Any:
        """Ask the browser for something; what its console says meanwhile is noted."""
        self._number += 1
        self._line.send(json.dumps({"id": self._number, "method": method, "params": given}))
        while True:
            told = json.loads(self._line.recv(timeout=PATIENCE))
            if told.get("method") in ("Log.entryAdded", "Runtime.consoleAPICalled"):
                self.console.append(str(told["params"].get("entry") or told["params"]["args"]))
            elif told.get("method") == "Runtime.exceptionThrown":
                self.console.append(str(told["params"]["exceptionDetails"]))
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]

    def open(self, address: str, width: int = 1400, scheme: str = "light") -> None:
        """Open a page in a window of so many pixels, and wait until its figures are drawn."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        wanted = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[wanted])
        self.call("Page.navigate", url=address)
        self.wait("document.documentElement?.dataset.drawn !== undefined")

    def ask(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        given = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        found = self.call("Runtime.evaluate", **given)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until an expression is true."""
        wait_until(lambda: bool(self.ask(expression)), expression)

    def point(self, element: str) -> None:
        """Move the pointer to the middle of an element, given by an expression."""
        self.ask(f"({element}).scrollIntoView({{ block: 'center' }})")
        middle = "({ x, y, width, height }) => ({ x: x + width / 2, y: y + height / 2 })"
        found = self.ask(f"({middle})(({element}).getBoundingClientRect())")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **found)


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    ends = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < ends, f"never came: {what}"
        time.sleep(0.05)


@contextmanager
def opened(folder: Path) -> Iterator[Browser]:
    """Start a browser whose own files lie in a folder."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={folder}"]
    process = subprocess.Popen([*command, "about:blank"], stderr=subprocess.DEVNULL)
    try:
        told = folder / "DevToolsActivePort"
        wait_until(lambda: told.is_file() and "\n" in told.read_text(), "the browser")
        port = told.read_text().splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=PATIENCE) as answer:
            pages = [each for each in json.load(answer) if each["type"] == "page"]
        with connect(pages[0]["webSocketDebuggerUrl"], max_size=None) as line:
            yield Browser(line)
    finally:
        # By itself it ends its own processes too.
        process.terminate()
        process.wait()
