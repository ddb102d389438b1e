"""Bans and delays, by the clock that the test holds."""

from __future__ import annotations

from starlingmq.auth.bans import DELAY_MAX, KNOWN_MAX, Bans
from starlingmq.config_auth import FailuresConfig, FlappingConfig


def bans(limit: int = 3, flapping: int = 0) -> Bans:
    return Bans(
        FailuresConfig(delay=0.1, limit=limit, window=10.0, ban=60.0),
        FlappingConfig(limit=flapping, window=10.0, ban=30.0),
    )


def test_wrong_logins_wait_longer_each_time_and_lead_to_a_ban_that_ends() -> None:
    found = bans()
    assert [found.failed(float(second), "10.0.0.1", "ann") for second in (0, 1)] == [(0.1, None), (0.2, None)]
    delay, ban = found.failed(2.0, "10.0.0.1", "ann")
    assert delay == 0.4 and ban is not None and (ban.kind, ban.name, ban.until) == ("address", "10.0.0.1", 62.0)
    assert found.of(61.9, "10.0.0.1", "bob", "c") == ban
    assert found.of(61.9, "10.0.0.2", "ann", "c") is None, "nobody is kept out for what others did under their name"
    assert found.of(62.0, "10.0.0.1", "bob", "c") is None
    assert found.failed(63.0, "10.0.0.1", "bob") == (0.1, None), "it begins anew"


def test_wrong_logins_under_one_name_from_everywhere_are_slow() -> None:
    found = bans(limit=1000)
    delays = [found.failed(1.0, f"10.0.0.{number}", "ann")[0] for number in range(12)]
    assert delays == sorted(delays) and delays[0] == 0.1 and delays[-1] == DELAY_MAX


def test_what_was_long_ago_does_not_count() -> None:
    found = bans()
    assert all(found.failed(11.0 * number, "10.0.0.1", "")[1] is None for number in range(20))


def test_no_limit_no_ban() -> None:
    found = bans(limit=0)
    assert all(found.failed(1.0, "10.0.0.1", "")[1] is None for _ in range(100))


def test_a_client_that_comes_and_goes() -> None:
    found = bans(flapping=5)
    assert [found.came(float(number), "c") for number in range(5)] == [None] * 5
    ban = found.came(5.0, "c")
    assert ban is not None and found.of(34.9, "", "", "c") == ban and found.of(35.0, "", "", "c") is None
    assert all(found.came(100.0 + 3 * number, "d") is None for number in range(50))


def test_a_ban_by_hand_is_listed_and_can_be_lifted() -> None:
    found = bans()
    ban = found.ban("user", "ann", 50.0, "she left")
    assert list(found.all(1.0)) == [ban] and found.of(1.0, "a", "ann", "c") == ban
    assert found.lift("user", "ann") and not found.lift("user", "ann")
    assert not list(found.all(1.0))


def test_what_is_known_is_bounded() -> None:
    found = bans(flapping=5)
    for number in range(KNOWN_MAX + 10):
        found.failed(1.0, f"a{number}", f"u{number}")
        found.came(1.0, f"c{number}")
        found.ban("client", f"b{number}", 100.0, "")
    assert len(list(found.all(1.0))) == KNOWN_MAX
    assert max(len(counted._times) for counted in (found._failed, found._came)) <= KNOWN_MAX
