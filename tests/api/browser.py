"""A real browser that is told what to do: headless Chromium by its DevTools protocol, over a pair of pipes."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

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


class Chromium:
    """The processes of a browser, which pages of several tests share."""

    def __init__(self, directory: Path) -> None:
        from_us, self._into = os.pipe()
        self._out_of, from_it = os.pipe()
        os.set_blocking(self._out_of, False)
        with (directory / "stderr").open("w") as stderr:
            self._process = subprocess.Popen(
                [BROWSER or "", *FLAGS, f"--user-data-dir={directory / 'profile'}"],
                preexec_fn=lambda: (os.dup2(from_us, 3), os.dup2(from_it, 4)),  # where it reads, and writes
                pass_fds=(3, 4),
                stdout=stderr,
                stderr=stderr,
                start_new_session=True,  # it is a family of processes, and all of it has to go
            )
        os.close(from_us)
        os.close(from_it)
        self._received = bytearray()
        self._numbers = count(1)

    def tell(self, method: str, session: str, parameters: dict[str, Any]) -> int:
        """The number that the answer will have."""
        number = next(self._numbers)
        told: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session:
            told["sessionId"] = session
        os.write(self._into, json.dumps(told).encode() + b"\0")
        return number

    async def said(self) -> dict[str, Any]:
        """The next message of the browser."""
        searched = 0
        while (end := self._received.find(0, searched)) < 0:
            searched = len(self._received)
            await self._more()
        message: dict[str, Any] = json.loads(self._received[:end])
        del self._received[: end + 1]
        return message

    async def _more(self) -> None:
        loop = asyncio.get_running_loop()  # that of this test
        readable = asyncio.Event()
        loop.add_reader(self._out_of, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._out_of)
        piece = os.read(self._out_of, 1 << 20)
        assert piece, "the browser has ended"
        self._received += piece

    @asynccontextmanager
    async def page(self) -> AsyncIterator[Page]:
        """A tab. What earlier pages have stored is gone; each broker has a port of its own, so it is not cached."""
        page = Page(self)
        await page.begin()
        try:
            yield page
        finally:
            await page.end()

    def end(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._into)
        os.close(self._out_of)


@contextmanager
def started(directory: Path) -> Iterator[Chromium]:
    chromium = Chromium(directory)
    try:
        yield chromium
    finally:
        chromium.end()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One for all tests of this process: to start it takes longer than most of them."""
    with started(tmp_path_factory.mktemp("chromium")) as browser_of_session:
        yield browser_of_session


class Page:
    """One tab. ``problems`` are errors in its scripts and what its policy forbade."""

    def __init__(self, chromium: Chromium) -> None:
        self._chromium = chromium
        self._target = ""
        self._session = ""
        self.problems: list[str] = []
        self.bytes = 0  # that came over the network

    async def begin(self) -> None:
        self._target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        attached = await self.call("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

    async def end(self) -> None:
        await self.call("Storage.clearDataForOrigin", origin="*", storageTypes="all")
        self._session = ""
        await self.call("Target.closeTarget", targetId=self._target)

    async def call(self, method: str, **parameters: Any) -> Any:
        number = self._chromium.tell(method, self._session, parameters)
        async with within(PATIENCE):
            while True:
                said = await self._chromium.said()
                if said.get("id") == number:
                    assert "error" not in said, said
                    return said["result"]
                if self._session and said.get("sessionId") == self._session:
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
    """A page in a browser of its own."""
    with started(directory) as chromium:
        async with chromium.page() as page:
            yield page
