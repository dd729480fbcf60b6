"""A headless Chromium driven through its DevTools pipe: pages as a reader's browser sees them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find() -> str | None:
    """Path of a Chromium or Chrome, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab. DevTools answers over two inherited pipes, messages end in a zero byte."""

    def __init__(self, path: str, profile: Path) -> None:
        read_end, to_browser = os.pipe()
        from_browser, write_end = os.pipe()
        self.to_browser, self.from_browser = os.fdopen(to_browser, "wb"), os.fdopen(from_browser, "rb")
        flags = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run".split()
        flags += ["--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        # Chromium reads from 3 and writes to 4; the shell puts the pipes there whatever their numbers are here.
        script = f'exec "$@" 3<&{read_end} 4>&{write_end}'
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", script, "bash", path, *flags, "about:blank"],
            pass_fds=(read_end, write_end),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_end)
        os.close(write_end)
        self.events: list[dict[str, Any]] = []
        self.count, self.session, self.rest = 0, "", b""
        pages = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        self.session = self.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.to_browser.close()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.from_browser.close()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One DevTools command and its result; events that arrive meanwhile are kept."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.to_browser.write(json.dumps(message).encode() + b"\0")
        self.to_browser.flush()
        while (answer := self._next()).get("id") != self.count:
            self.events.append(answer)
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            part = os.read(self.from_browser.fileno(), 1 << 16)
            assert part, "the browser has gone"
            self.rest += part
        line, _, self.rest = self.rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, path: Path, *, width: int, dark: bool = False) -> None:
        """Shows a file in a window of that many CSS pixels; what happened before is forgotten."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, promises awaited."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def requests(self) -> list[str]:
        """Addresses the page asked for since it was opened, data inside it left out."""
        urls = [one["params"]["request"]["url"] for one in self._named("Network.requestWillBeSent")]
        return [url for url in urls if not url.startswith("data:")]

    def complaints(self) -> list[str]:
        """Errors and warnings on the console, exceptions, and what the page's own policy refused."""
        console = [one["params"] for one in self._named("Runtime.consoleAPICalled")]
        logged = [one["params"]["entry"] for one in self._named("Log.entryAdded")]
        thrown = [one["params"]["exceptionDetails"]["text"] for one in self._named("Runtime.exceptionThrown")]
        return [*(str(one) for one in console), *(one["text"] for one in logged), *thrown]

    def _named(self, method: str) -> list[dict[str, Any]]:
        self.call("Runtime.evaluate", expression="0")
        return [event for event in self.events if event["method"] == method]
