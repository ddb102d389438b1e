"""Every page of the built site in a real browser: light and dark, on a desk and on a phone.

``python -m tests.docs.look build/site build/shots [PAGE...]`` keeps pictures to be looked at.
"""

from __future__ import annotations

import asyncio
import functools
import http.server
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.api.browser import Page, browser

LOOKS: Final = {
    "desk": (1280, 900, False),
    "desk-dark": (1280, 900, True),
    "phone": (390, 844, False),
    "phone-dark": (390, 844, True),
}
FAULTS: Final = """(() => {
  const found = [];
  if (document.documentElement.scrollWidth > innerWidth) found.push('wider than the window');
  for (const image of document.images) if (!image.naturalWidth) found.push('no picture: ' + image.src);
  for (const entry of performance.getEntriesByType('resource'))
    if (!entry.name.startsWith(location.origin)) found.push('fetched: ' + entry.name);
  return found; })()"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The URL of the site, on a free port of this machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


async def looked_at(site: Path, names: list[str], profile: Path) -> AsyncIterator[tuple[str, str, Page]]:
    """Each page in each look, loaded; its name and that of the look."""
    with served(site) as url:
        async with browser(profile) as page:
            for look, (width, height, dark) in LOOKS.items():
                await page.look_like(width, height, dark)
                for name in names:
                    await page.go(f"{url}/{name}")
                    await page.run("new Promise((done) => document.readyState == 'complete' ? done() : onload = done)")
                    yield name, look, page


async def main(site: Path, out: Path, names: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        async for name, look, page in looked_at(site, names, Path(profile)):
            height = int(await page.run("document.documentElement.scrollHeight"))
            width, _, dark = LOOKS[look]
            await page.look_like(width, min(height, 6000), dark)
            await page.screenshot(out / f"{Path(name).stem}-{look}.png")
            print(name, look, await page.run(FAULTS), page.problems)
            await page.look_like(*LOOKS[look])


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    chosen = sys.argv[3:] or [str(path.relative_to(directory)) for path in sorted(directory.rglob("*.html"))]
    asyncio.run(main(directory, Path(sys.argv[2]), chosen))
