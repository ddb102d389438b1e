"""Pages of sessions that are in any order, and of which some come and go meanwhile."""

from __future__ import annotations

import random

import pytest

from starlingmq.admin import paging
from starlingmq.admin.paging import number_after, page_of
from starlingmq.core.session.session import Session


async def pages(sessions: dict[str, Session], limit: int) -> list[list[int]]:
    found, cursor = [], "0"
    while True:
        page, following = await page_of(
            sessions, lambda one: not one.client_id.endswith("7"), number_after(cursor), limit
        )
        found.append([one.number for one in page])
        if following is None:
            return found
        cursor = following


@pytest.mark.parametrize("seed", range(5))
async def test_every_session_that_is_wanted_comes_once_and_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "PIECE", 7)
    chance = random.Random(seed)
    numbers = chance.sample(range(1, 1000), 150)
    if seed == 0:
        numbers.sort()
    sessions = {f"c{number}": Session(f"c{number}", number) for number in numbers}
    wanted = sorted(number for number in numbers if number % 10 != 7)
    for limit in (1, 10, 50, 1000):
        found = await pages(sessions, limit)
        assert [number for page in found for number in page] == wanted
        assert all(len(page) == limit for page in found[:-1])


async def test_none_there_is_one_empty_page() -> None:
    assert await page_of({}, lambda one: True, 0, 10) == ([], None)
