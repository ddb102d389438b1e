"""Bans and delays, by the clock that the test holds."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest

from starlingmq.auth.automatic_bans import DELAY_MAX, KNOWN_MAX, AutomaticBans, Ban
from starlingmq.auth.banned_networks import NetworkSet, banned_address
from starlingmq.config.auth_section import FailuresConfig, FlappingConfig


def bans(limit: int = 3, flapping: int = 0, exempt: tuple[str, ...] = ()) -> AutomaticBans:
    return AutomaticBans(
        FailuresConfig(delay=0.1, limit=limit, window=10.0, ban=60.0, exempt=exempt),
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


def test_old_failures_do_not_count() -> None:
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


def test_remembered_names_are_bounded() -> None:
    found = bans(flapping=5)
    for number in range(KNOWN_MAX + 10):
        found.failed(1.0, f"a{number}", f"u{number}")
        found.came(1.0, f"c{number}")
        found.ban("client", f"b{number}", 100.0, "")
    assert len(list(found.all(1.0))) == KNOWN_MAX
    assert max(len(counted) for counted in (found._failed_from, found._failed_as, found._came)) <= KNOWN_MAX


def test_addresses_of_one_ipv6_64_are_counted_and_banned_as_one() -> None:
    found = bans()
    made = [found.failed(1.0, f"[2001:db8:1:2::{number:x}]", "")[1] for number in range(3)]
    assert made[:2] == [None, None] and made[2] is not None and made[2].name == "2001:db8:1:2::/64"
    assert found.of(2.0, "2001:db8:1:2:ffff::1", "", "") == made[2]
    assert found.of(2.0, "2001:db8:1:3::1", "", "") is None
    assert found.lift("address", "2001:db8:1:2::99") and found.of(2.0, "2001:db8:1:2::1", "", "") is None


def test_a_ban_by_hand_of_an_ipv6_address_holds_for_its_64() -> None:
    found = bans()
    ban = found.ban("address", "2001:db8::1", 100.0, "by hand")
    assert ban.name == "2001:db8::1" and found.of(1.0, "[2001:db8::2]", "", "") == ban


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (" 10.0.0.1 ", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.0.0.1/32", "10.0.0.1"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("2001:DB8::1", "2001:db8::1"),
        ("2001:db8::/64", "2001:db8::/64"),
        ("2001:db8::/96", "2001:db8::/64"),
        ("2001:db8::/32", "2001:db8::/32"),
    ],
)
def test_an_address_and_a_network_have_one_name_each(said: str, name: str) -> None:
    assert banned_address(said) == name and banned_address(name) == name


def test_a_network_is_banned_until_its_ban_ends_or_is_lifted() -> None:
    found = bans()
    ban = found.ban("address", "10.0.0.0/8", 50.0, "by hand")
    assert found.of(1.0, "10.255.0.1", "", "") == found.of(1.0, "::ffff:10.1.2.3", "", "") == ban
    assert (
        found.of(1.0, "11.0.0.1", "", "") is found.of(1.0, "2001:db8::1", "", "") is found.of(1.0, "", "u", "") is None
    )
    longer = found.ban("address", "10.1.0.0/16", 90.0, "by hand")
    assert found.of(60.0, "10.1.2.3", "", "") == longer and found.of(60.0, "10.2.0.1", "", "") is None
    assert list(found.all(60.0)) == [longer]
    assert found.lift("address", "10.1.0.0/16") and found.of(60.0, "10.1.2.3", "", "") is None
    six = found.ban("address", "2001:db8::/32", 90.0, "by hand")
    assert found.of(1.0, "2001:db8:ffff::1", "", "") == six and found.of(1.0, "2001:db9::1", "", "") is None


def test_the_search_for_a_network_costs_one_look_up_for_each_prefix_length() -> None:
    networks = NetworkSet()
    for number in range(1, 1000):
        networks.add(IPv4Network((number << 16, 16)))
        networks.add(IPv4Network((number << 8, 24)))
    assert len(networks._starts) == 2
    assert [str(one) for one in networks.covering(IPv4Address("0.1.2.3"))] == ["0.1.0.0/16", "0.1.2.0/24"]


def test_exempt_networks_are_not_banned_for_wrong_logins_and_their_users_are_delayed() -> None:
    found = bans(exempt=("10.0.0.0/8", "2001:db8::/32"))
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::1"):
        assert all(found.failed(1.0, address, f"user {number}")[1] is None for number in range(50))
    assert [found.failed(1.0, "10.1.2.3", "ann")[0] for _ in range(3)] == [0.1, 0.2, 0.4], "delayed by user name"
    assert found.failed(1.0, "10.1.2.3", "bob")[0] == 0.1, "and others are not delayed for it"
    by_hand = found.ban("address", "10.1.2.3", 100.0, "by hand")
    assert found.of(1.0, "10.1.2.3", "", "") == by_hand, "an operator's ban holds all the same"


def test_a_ban_ends_when_its_network_becomes_exempt() -> None:
    found = bans()
    for _ in range(3):
        found.failed(1.0, "10.0.0.1", "")
    assert found.of(1.0, "10.0.0.1", "", "") is not None
    found.configure(FailuresConfig(exempt=("10.0.0.0/8",)), FlappingConfig())
    assert found.of(1.0, "10.0.0.1", "", "") is None


def test_a_client_with_a_key_passes_only_a_ban_for_wrong_logins() -> None:
    found = bans(flapping=1)
    for _ in range(3):
        found.failed(1.0, "10.0.0.1", "ann")
    assert found.of(1.0, "10.0.0.1", "ann", "c") is not None
    assert found.of(1.0, "10.0.0.1", "ann", "c", proved=True) is None
    flapping = [found.came(1.0, "c") for _ in range(2)][1]
    assert found.of(1.0, "10.0.0.1", "ann", "c", proved=True) == flapping
    by_hand = found.ban("address", "10.0.0.1", 100.0, "by hand")
    assert found.of(1.0, "10.0.0.1", "ann", "d", proved=True) == by_hand


def test_no_flood_of_strangers_pushes_out_a_ban_by_hand_or_the_count_of_an_address() -> None:
    found = bans()
    by_hand = found.ban("address", "10.0.0.1", 100.0, "by hand")
    for _ in range(2):
        found.failed(1.0, "10.0.0.2", "ann")
    for number in range(KNOWN_MAX + 10):
        found.failed(1.0, "", f"u{number}")
        found._remember(found._automatic, Ban("address", f"a{number}", 100.0, "", True))
    assert found.of(1.0, "10.0.0.1", "", "") == by_hand
    assert found.failed(1.0, "10.0.0.2", "ann")[1] is not None, "its third one"


def test_long_names_are_told_apart_and_cost_no_more_memory_than_short_ones() -> None:
    found = bans(flapping=1)
    name = "n" * 60_000
    found.ban("user", name, 100.0, "")
    assert found.of(1.0, "", name, "") is not None and found.of(1.0, "", name + "m", "") is None
    found.failed(1.0, "10.0.0.1", name)
    found.came(1.0, name)
    for counted in (found._failed_as, found._came):
        assert all(len(known) <= 128 for known in counted._times)


def test_a_log_in_takes_turns_by_address_or_by_user_where_addresses_say_nothing() -> None:
    found = bans(exempt=("10.0.0.0/8",))
    assert found.queue_key("[2001:db8::1]:1", "ann") == found.queue_key("[2001:db8::2]:2", "bob")
    assert found.queue_key("192.0.2.1:1", "ann") == found.queue_key("192.0.2.1:2", "bob")
    assert found.queue_key("10.0.0.1:1", "ann") != found.queue_key("10.0.0.1:1", "bob")
    assert found.queue_key("unix", "ann") != found.queue_key("unix", "bob")
