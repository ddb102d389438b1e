"""A real browser that is told what to do: headless Chromium by its DevTools protocol, over a pair of pipes."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.patience import within

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 30.0
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--no-default-browser-check", "--disable-background-networking", "--disable-component-update",
    "--disable-default-apps", "--disable-extensions", "--disable-sync", "--remote-debugging-pipe",
]  # fmt: skip


NAVIGATED: Final = "target navigated"
"""Part of the error that ends a script when its page is left."""


class Page:
    """One tab. ``problems`` are errors in its scripts and what its policy forbade."""

    def __init__(self, reader: asyncio.StreamReader, into: int) -> None:
        self._reader = reader
        self._into = into
        self._number = 0
        self._session = ""
        self.problems: list[str] = []
        self.bytes = 0  # that came over the network

    async def begin(self) -> None:
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

    async def call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        told: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            told["sessionId"] = self._session
        os.write(self._into, json.dumps(told).encode() + b"\0")
        async with within(PATIENCE):
            while True:
                said = json.loads((await self._reader.readuntil(b"\0"))[:-1])
                if said.get("id") == self._number:
                    assert "error" not in said, said
                    return said["result"]
                self._note(said)

    def _note(self, said: dict[str, Any]) -> None:
        method, given = said.get("method"), said.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(given["exceptionDetails"].get("exception", given))[:500])
        elif method == "Log.entryAdded" and given["entry"]["source"] in ("security", "javascript"):
            self.problems.append(given["entry"]["text"])
        elif method == "Network.loadingFinished":
            self.bytes += int(given["encodedDataLength"])

    async def go(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        said = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait for an expression to become true: looked at whenever the page changes, and in the page after it."""
        script = (
            "new Promise((met) => { const look = () => { if (" + condition + ") { seen.disconnect(); met(true); } };"
            "const seen = new MutationObserver(look);"
            "seen.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});"
            "look(); })"
        )
        while True:
            try:
                await self.run(script)
            except AssertionError as error:
                if NAVIGATED not in str(error):
                    raise
            else:
                return

    async def look_like(self, width: int, height: int, dark: bool) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def type(self, text: str) -> None:
        """Press and release a key for each character: scripts that listen to keys notice it."""
        for character in text:
            await self.call("Input.dispatchKeyEvent", type="keyDown", text=character)
            await self.call("Input.dispatchKeyEvent", type="keyUp")

    async def screenshot(self, path: Path) -> None:
        shot = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))


@asynccontextmanager
async def browser(directory: Path) -> AsyncIterator[Page]:
    """A browser that knows nothing yet, and a page in it."""
    from_us, into = os.pipe()
    out_of, from_it = os.pipe()
    command = [BROWSER or "", *FLAGS, f"--user-data-dir={directory / 'profile'}"]
    with (directory / "stderr").open("w") as stderr:
        process = await asyncio.create_subprocess_exec(
            *command,
            preexec_fn=lambda: (os.dup2(from_us, 3), os.dup2(from_it, 4)),  # where it reads, and writes
            pass_fds=(3, 4),
            stdout=stderr,
            stderr=stderr,
            start_new_session=True,  # it is a family of processes, and all of it has to go
        )
    os.close(from_us)
    os.close(from_it)
    reader = asyncio.StreamReader(limit=64 << 20)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(out_of, "rb", 0)
    )
    try:
        page = Page(reader, into)
        await page.begin()
        yield page
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        transport.close()
        os.close(into)
