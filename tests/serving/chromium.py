"""A headless Chromium, driven over a pipe by its DevTools protocol."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--remote-debugging-pipe",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Tab:
    """A page of the browser."""

    def __init__(self, commands: int, answers: int):
        self._commands, self._answers, self._count, self._session = commands, answers, 0, ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

    def call(self, method: str, **params: Any) -> Any:
        """The result of a command."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            pass
        return answer["result"]

    def _next(self) -> Any:
        text = b""
        while not text.endswith(b"\0"):
            part = os.read(self._answers, 1)
            assert part, "the browser has ended"
            text += part
        return json.loads(text[:-1])

    def show(self, url: str, width: int, scheme: str = "light") -> None:
        """Loads a page at a width, in a light or dark colour scheme."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.call("Page.navigate", url=url)
        self.until("document.readyState == 'complete' && location.href != 'about:blank'")

    def value(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return found["result"].get("value")

    def until(self, script: str) -> None:
        """Waits for an expression to be true."""
        deadline = time.monotonic() + 60
        while not self.value(script):
            assert time.monotonic() < deadline, script
            time.sleep(0.05)


@contextmanager
def tab(profile: Path) -> Iterator[Tab]:
    """A browser with its profile in a new directory."""
    reads, commands = os.pipe()
    answers, writes = os.pipe()
    line = f'exec "$0" "$@" 3<&{reads} 4>&{writes}'
    process = subprocess.Popen(
        ["bash", "-c", line, str(BROWSER), *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(reads, writes),
        stderr=subprocess.DEVNULL,
    )
    os.close(reads)
    os.close(writes)
    try:
        yield Tab(commands, answers)
    finally:
        process.kill()
        process.wait()
        os.close(commands)
        os.close(answers)
