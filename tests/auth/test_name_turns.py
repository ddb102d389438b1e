"""Guesses of one name behind a balancer that does not say who connects: over all connections together they are as slow
as over one, and keep out neither other names nor clients that have logged in by that name before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from starlingmq.auth import chain, name_turns
from starlingmq.auth.name_turns import FREE, OWN_FAILURES, NameTurn, NameTurns
from starlingmq.wire.reasons import Reason
from tests.auth.conftest import Passwd, Serve
from tests.auth.logins import knock, scram
from tests.patience import slowness

WRONG = Reason.BAD_USER_NAME_OR_PASSWORD


def here() -> bool:
    return False


async def entered(turns: NameTurns, client: str, name: str = "ann", gone: Callable[[], bool] = here) -> NameTurn:
    turn = await turns.enter(name, client, gone)
    assert turn is not None
    return turn


async def test_without_failures_a_few_logins_by_a_name_are_checked_at_a_time() -> None:
    turns = NameTurns()
    under_way = [await entered(turns, f"c{number}") for number in range(FREE)]
    waiting = asyncio.ensure_future(entered(turns, "c"))
    await asyncio.sleep(0)
    assert not waiting.done()
    (await entered(turns, "c", "bob")).end()
    under_way.pop().end(right=True)
    (await waiting).end()
    for turn in under_way:
        turn.end()


async def test_after_a_failure_the_next_login_by_the_name_waits_for_its_delay_alone() -> None:
    turns, loop = NameTurns(), asyncio.get_running_loop()
    first = await entered(turns, "c")
    began = loop.time()
    first.end(delay=0.1, window=60.0)
    waiting = [asyncio.ensure_future(entered(turns, f"c{number}")) for number in range(3)]
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert loop.time() - began >= 0.1 and done == {waiting[0]}, "in the order in which they came"
    await asyncio.sleep(0.15)
    assert not waiting[1].done(), "one at a time"
    waiting[0].result().end(right=True)
    (await waiting[1]).end(right=True)
    (await waiting[2]).end(right=True)
    assert loop.time() - began < 5.0, "a right login delays nobody"


async def test_a_client_that_was_right_before_does_not_wait_until_it_has_been_wrong_too_often() -> None:
    turns = NameTurns()
    (await entered(turns, "known")).end(right=True)
    (await entered(turns, "stranger")).end(delay=3600.0, window=3600.0)
    stranger = asyncio.ensure_future(turns.enter("ann", "stranger", here))
    for _ in range(OWN_FAILURES):
        (await entered(turns, "known")).end(delay=5.0, window=60.0)
    known = asyncio.ensure_future(turns.enter("ann", "known", here))
    await asyncio.sleep(0.05)
    assert not known.done() and not stranger.done()
    for waiting in (stranger, known):
        waiting.cancel()


async def test_a_known_client_id_has_one_turn_of_its_own_at_a_time() -> None:
    """Its guesser would have as many as it has connections."""
    turns = NameTurns()
    (await entered(turns, "known")).end(right=True)
    (await entered(turns, "stranger")).end(delay=3600.0, window=3600.0)
    own = await entered(turns, "known")
    second = asyncio.ensure_future(turns.enter("ann", "known", here))
    await asyncio.sleep(0)
    assert not second.done()
    second.cancel()
    own.end(right=True)


async def test_what_waits_is_bounded_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_turns, "PATIENCE", 0.05)
    monkeypatch.setattr(name_turns, "OF_ONE_MAX", 2)
    monkeypatch.setattr(name_turns, "WAITING_MAX", 3)
    monkeypatch.setattr(name_turns, "KNOWN_MAX", 5)
    turns = NameTurns()
    for name in ("ann", "bob"):
        (await entered(turns, "c", name)).end(delay=3600.0, window=3600.0)
    waiting = [asyncio.ensure_future(turns.enter("ann", "c", here)) for _ in range(2)]
    await asyncio.sleep(0)
    assert await turns.enter("ann", "c", here) is None
    waiting.append(asyncio.ensure_future(turns.enter("bob", "c", here)))
    await asyncio.sleep(0)
    assert await turns.enter("bob", "c", here) is None
    assert await asyncio.gather(*waiting) == [None, None, None], "not in time"
    assert turns._waiting == 0
    for number in range(20):
        (await entered(turns, "c", f"n{number}")).end(delay=1.0, window=60.0)
        (await entered(turns, "c", f"r{number}")).end(right=True)
    assert len(turns._names) <= 5 and len(turns._known) <= 5


async def test_a_closed_connection_and_a_cancelled_login_use_no_turn() -> None:
    turns = NameTurns()
    (await entered(turns, "c")).end(delay=0.05, window=60.0)
    gone = asyncio.ensure_future(turns.enter("ann", "c", lambda: True))
    cancelled = asyncio.ensure_future(turns.enter("ann", "c", here))
    await asyncio.sleep(0)
    cancelled.cancel()
    last = await entered(turns, "c")
    assert await gone is None
    granted = asyncio.ensure_future(turns.enter("ann", "c", here))
    await asyncio.sleep(0)
    last.end(right=True)
    granted.cancel()  # at the moment in which it is its turn
    await asyncio.wait([granted])
    (await entered(turns, "c")).end()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login without a turn is answered after a second."""
    for module in (name_turns, chain):
        monkeypatch.setattr(module, "PATIENCE", 1.0)


async def test_guesses_of_one_name_over_many_connections_are_as_slow_as_over_one(
    serve: Serve, passwd: Passwd, caplog: pytest.LogCaptureFixture, short: None
) -> None:
    """All are refused in the time of one line. Another name, and a client that ann has used before, come in at once."""
    failures = {"delay": "500ms", "exempt": ["127.0.0.0/8"]}
    broker = await serve(auth={"password": {"file": passwd(ann="right", bob="other")}, "failures": failures})
    loop = asyncio.get_running_loop()
    assert await knock(broker.address(), "ann", b"right", client="hers") == 0
    with caplog.at_level(logging.INFO, "starlingmq.clients"):
        guesses = [
            asyncio.ensure_future(knock(broker.address(), "ann", b"wrong", client=f"g{number}")) for number in range(40)
        ]
        await asyncio.sleep(0.5)
        began = loop.time()
        assert await knock(broker.address(), "bob", b"other") == 0
        assert await knock(broker.address(), "ann", b"right", client="hers") == 0
        assert loop.time() - began < 1.0 * slowness()
        outcomes = await asyncio.gather(*guesses)
    assert outcomes.count(WRONG) <= FREE, "the next one would be checked 4 s after these"
    assert outcomes.count(Reason.SERVER_BUSY) == len(outcomes) - outcomes.count(WRONG), "the others are not checked"
    assert "failed logins by this name delay others" in caplog.text


async def test_scram_has_turns_by_the_name_of_the_exchange(serve: Serve, passwd: Passwd, short: None) -> None:
    failures = {"delay": "500ms", "exempt": ["127.0.0.0/8"]}
    broker = await serve(auth={"password": {"file": passwd(ann="right", bob="other")}, "failures": failures})
    outcomes = await asyncio.gather(*(scram(broker.address(), "ann", "wrong") for _ in range(20)))
    assert outcomes.count(WRONG) <= 2, "at once, and after half a second; the next one would wait for one second more"
    assert await scram(broker.address(), "bob", "other") == 0
