"""Every page in headless Chromium, light and dark, on a desk and on a phone: nothing sticks out or is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.browser import BROWSER
from tests.docs.look import FAULTS, looked_at

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium")


@pytest.mark.long(alone="looks four times at each page in a browser")
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_every_page_looks_right(site: Path, tmp_path: Path) -> None:
    names = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    seen = 0
    async for name, look, page in looked_at(site, names, tmp_path):
        assert (await page.run(FAULTS), page.problems) == ([], []), (name, look)
        seen += 1
    assert seen == 4 * len(names)
