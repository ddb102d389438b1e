"""Guesses of one name behind a balancer that does not say who connects: over all connections together they are as slow
as over one, and keep out neither other names nor clients that have logged in by that name before. A client that repeats
a wrong password delays no other client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import islice

import pytest

from starlingmq.auth import chain, name_turns
from starlingmq.auth.automatic_bans import AutomaticBans
from starlingmq.auth.chain import Chain
from starlingmq.auth.delays import Delays
from starlingmq.auth.name_turns import FREE, GUESSES_FREE, OWN_FAILURES, WRONG_MAX, NameTurn, NameTurns
from starlingmq.config.auth_section import AuthConfig, FailuresConfig, FlappingConfig, JwtConfig
from starlingmq.hooks import AuthRequest
from starlingmq.wire.reasons import Reason
from tests.auth.conftest import Passwd, Serve
from tests.auth.logins import knock, scram, token
from tests.patience import slowness

WRONG = Reason.BAD_USER_NAME_OR_PASSWORD


def here() -> bool:
    return False


async def entered(turns: NameTurns, client: str, name: str = "ann", gone: Callable[[], bool] = here) -> NameTurn:
    turn = await turns.enter(name, client, gone)
    assert turn is not None
    return turn


async def guess(turns: NameTurns, times: int, name: str = "ann", delay: float = 3600.0) -> None:
    """Different passwords, ``GUESSES_FREE + 1`` of which begin the line. The last one has this delay."""
    for number in range(times):
        turn = await entered(turns, "guesser", name)
        turn.end(delay=delay if number == times - 1 else 0.001, window=60.0, password=b"guess %d" % number)


async def waits(turns: NameTurns, name: str = "ann") -> bool:
    """Whether a login by a stranger has to wait."""
    waiting = asyncio.ensure_future(turns.enter(name, "stranger", here))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if waiting.done() and (turn := waiting.result()) is not None:
        turn.end()
        return False
    waiting.cancel()
    await asyncio.wait([waiting])
    return True


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
    await guess(turns, GUESSES_FREE)
    first = await entered(turns, "c")
    began = loop.time()
    first.end(delay=0.1, window=60.0, password=b"one more")
    waiting = [asyncio.ensure_future(entered(turns, f"c{number}")) for number in range(3)]
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert loop.time() - began >= 0.1 and done == {waiting[0]}, "in the order in which they came"
    await asyncio.sleep(0)
    assert not waiting[1].done(), "one at a time"
    waiting[0].result().end(right=True)
    (await waiting[1]).end(right=True)
    (await waiting[2]).end(right=True)
    assert loop.time() - began < 5.0, "a right login delays nobody"


async def test_a_client_that_was_right_before_does_not_wait_until_it_has_been_wrong_too_often() -> None:
    turns = NameTurns()
    (await entered(turns, "known")).end(right=True)
    await guess(turns, GUESSES_FREE + 1)
    stranger = asyncio.ensure_future(turns.enter("ann", "stranger", here))
    for number in range(2 * OWN_FAILURES):
        (await entered(turns, "known")).end(delay=5.0, window=60.0, password=b"guess %d" % (number % GUESSES_FREE))
    for _ in range(OWN_FAILURES):
        (await entered(turns, "known")).end(delay=5.0, window=60.0)
    known = asyncio.ensure_future(turns.enter("ann", "known", here))
    await asyncio.sleep(0)
    assert not known.done() and not stranger.done()
    for waiting in (stranger, known):
        waiting.cancel()


async def test_a_known_client_id_has_one_turn_of_its_own_at_a_time() -> None:
    """Its guesser would have as many as it has connections."""
    turns = NameTurns()
    (await entered(turns, "known")).end(right=True)
    await guess(turns, GUESSES_FREE + 1)
    own = await entered(turns, "known")
    second = asyncio.ensure_future(turns.enter("ann", "known", here))
    await asyncio.sleep(0)
    assert not second.done()
    second.cancel()
    own.end(right=True)


async def test_a_wrong_password_that_is_repeated_begins_no_line_and_prolongs_none() -> None:
    now = [0.0]
    turns = NameTurns(lambda: now[0])
    for _ in range(100):
        for device in range(GUESSES_FREE):
            (await entered(turns, "c")).end(delay=5.0, window=60.0, password=b"old %d" % device)
        assert not await waits(turns)
        now[0] += 3.0  # for longer than the window in all
    now[0] += 100.0
    await guess(turns, GUESSES_FREE, delay=5.0)
    (await entered(turns, "c")).end(delay=5.0, window=60.0, password=b"old")
    assert await waits(turns)
    now[0] += 5.0
    (await entered(turns, "c")).end(delay=5.0, window=60.0, password=b"old")
    assert not await waits(turns)
    (await entered(turns, "c")).end(delay=5.0, window=60.0, password=b"a guess")
    assert await waits(turns), "another one prolongs the line"
    now[0] += 66.0
    assert not await waits(turns), "the line ends"
    (await entered(turns, "c")).end(delay=5.0, window=60.0, password=b"old")
    assert not await waits(turns), "the first guess of this window"


async def test_a_login_whose_password_is_not_seen_is_a_guess_each_time() -> None:
    """An exchange of SCRAM has another proof each time."""
    turns = NameTurns()
    for _ in range(GUESSES_FREE + 1):
        assert not await waits(turns)
        (await entered(turns, "c")).end(delay=5.0, window=60.0)
    assert await waits(turns)


async def test_wrong_passwords_are_remembered_as_a_few_digests_for_a_while() -> None:
    now = [0.0]
    turns = NameTurns(lambda: now[0])
    for number in range(2 * WRONG_MAX):
        (await entered(turns, "c")).end(delay=0.001, window=60.0, password=b"secret %d" % number)
        now[0] += 0.001
    wrong = turns._names["ann"].wrong
    assert len(wrong) == WRONG_MAX
    other = NameTurns(lambda: now[0])
    (await entered(other, "c")).end(delay=0.001, window=60.0, password=b"secret %d" % (2 * WRONG_MAX - 1))
    assert not wrong.keys() & other._names["ann"].wrong.keys(), "the key is that of one object"
    now[0] += 100.0
    (await entered(turns, "c", "bob")).end(delay=0.001, window=60.0, password=b"secret")
    assert list(turns._names) == ["bob"]


def asked(client: str, password: bytes, method: str = "") -> AuthRequest:
    return AuthRequest(client, "fleet", password, 5, "10.0.0.1:1", "mqtt", "", method, b"x" if method else None, {})


@pytest.fixture
def undelayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals are sent at once."""

    async def wait(self: Delays, seconds: float) -> None:
        """The turns have a clock of their own."""

    monkeypatch.setattr(Delays, "wait", wait)
    monkeypatch.setattr(name_turns, "PATIENCE", 0.2)


def bans_of(now: list[float]) -> AutomaticBans:
    return AutomaticBans(FailuresConfig(exempt=("10.0.0.0/8",)), FlappingConfig(), NameTurns(lambda: now[0]))


async def is_right(request: AuthRequest) -> bool:
    await asyncio.sleep(0)
    return request.password == b"right"


async def test_a_fleet_of_one_name_logs_in_while_one_device_repeats_a_wrong_password(undelayed: None) -> None:
    """After a restart no client id is known. The time of the turns stands still between the attempts of that device."""
    now = [0.0]
    logins = Chain(AuthConfig(), bans_of(now), is_right)
    for first in range(0, 300, 10):
        requests = [asked(f"device {number}", b"right") for number in range(first, first + 10)]
        results = await asyncio.gather(
            *(logins.authenticate(request) for request in [asked("misconfigured", b"old"), *requests])
        )
        assert [result.reason for result in results] == [Reason.NOT_AUTHORIZED] + [Reason.SUCCESS] * 10
        now[0] += 3.0


async def test_guesses_by_enhanced_authentication_count_even_with_the_same_password(undelayed: None) -> None:
    logins = Chain(AuthConfig(), bans_of([0.0]), is_right)
    reasons = [(await logins.authenticate(asked("c", b"old", "SCRAM"))).reason for _ in range(GUESSES_FREE + 2)]
    assert reasons == [Reason.NOT_AUTHORIZED] * (GUESSES_FREE + 1) + [Reason.SERVER_BUSY]


async def test_refused_tokens_are_no_guesses_but_passwords_beside_them_are(undelayed: None, secret_file: str) -> None:
    """The tokens of devices that share a name may all have expired."""
    config = AuthConfig(methods=("jwt",), jwt=JwtConfig(secret_file=secret_file))
    logins = Chain(config, bans_of([0.0]))
    for number in range(4 * WRONG_MAX):
        expired = token(sub=f"d{number}", exp=1)
        assert (await logins.authenticate(asked(f"d{number}", expired))).reason == Reason.BAD_USER_NAME_OR_PASSWORD
    assert (await logins.authenticate(asked("d", token()))).reason == Reason.SUCCESS
    for number in range(GUESSES_FREE + 1):
        assert (await logins.authenticate(asked("g", b"%d" % number))).reason == Reason.BAD_USER_NAME_OR_PASSWORD
    assert (await logins.authenticate(asked("g", b"right"))).reason == Reason.SERVER_BUSY


async def test_what_waits_is_bounded_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_turns, "PATIENCE", 0.05)
    monkeypatch.setattr(name_turns, "OF_ONE_MAX", 2)
    monkeypatch.setattr(name_turns, "WAITING_MAX", 3)
    monkeypatch.setattr(name_turns, "KNOWN_MAX", 5)
    turns = NameTurns()
    for name in ("ann", "bob"):
        await guess(turns, GUESSES_FREE + 1, name)
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
    await guess(turns, GUESSES_FREE + 1, delay=0.05)
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
            asyncio.ensure_future(knock(broker.address(), "ann", b"%d" % number, client=f"g{number}"))
            for number in range(40)
        ]
        for outcome in islice(asyncio.as_completed(guesses), GUESSES_FREE + 1):
            await outcome
        began = loop.time()
        assert await knock(broker.address(), "bob", b"other") == 0
        assert await knock(broker.address(), "ann", b"right", client="hers") == 0
        assert loop.time() - began < 1.0 * slowness()
        outcomes = await asyncio.gather(*guesses)
    assert outcomes.count(WRONG) <= GUESSES_FREE + FREE, "the next one would be checked 4 s after these"
    assert outcomes.count(Reason.SERVER_BUSY) == len(outcomes) - outcomes.count(WRONG), "the others are not checked"
    assert "failed logins by this name delay others" in caplog.text


async def test_scram_has_turns_by_the_name_of_the_exchange(serve: Serve, passwd: Passwd, short: None) -> None:
    failures = {"delay": "500ms", "exempt": ["127.0.0.0/8"]}
    broker = await serve(auth={"password": {"file": passwd(ann="right", bob="other")}, "failures": failures})
    outcomes = await asyncio.gather(*(scram(broker.address(), "ann", "wrong") for _ in range(40)))
    assert outcomes.count(WRONG) <= GUESSES_FREE + FREE, "the next one would be checked 4 s after these"
    assert await scram(broker.address(), "bob", "other") == 0
