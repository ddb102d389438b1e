"""Addresses of one /64 have one key, and an IPv4 address has one key in each of its spellings."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starlingmq.core.limits.address_key import network_key, peer_host, peer_key


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::FFFF:c000:207", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2::", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::9]", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("2001:db8:1:2::/64", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
        ("", ""),
        ("unix", "unix"),
        ("proxy.example.org", "proxy.example.org"),
        ("no:address", "no:address"),
        ("1.2.3.4:5", "1.2.3.4:5"),
    ],
)
def test_the_key_of_an_address(address: str, key: str) -> None:
    assert network_key(address) == key
    assert network_key(key) == key


@pytest.mark.parametrize(
    ("peer", "host", "key"),
    [
        ("192.0.2.7:50123", "192.0.2.7", "192.0.2.7"),
        ("[2001:db8::1]:50123", "2001:db8::1", "2001:db8::/64"),
        ("unix", "", ""),
        ("", "", ""),
    ],
)
def test_the_address_of_a_peer(peer: str, host: str, key: str) -> None:
    assert (peer_host(peer), peer_key(peer)) == (host, key)


@given(st.ip_addresses(v=6), st.integers(0, 2**64 - 1))
def test_two_addresses_have_one_key_if_and_only_if_their_first_64_bits_are_the_same(
    address: IPv6Address, host: int
) -> None:
    neighbour = IPv6Address((int(address) >> 64 << 64) | host)
    if address.ipv4_mapped is None and neighbour.ipv4_mapped is None:
        assert network_key(str(address)) == network_key(str(neighbour))
        other = ip_address(int(address) ^ (1 << 64))
        assert network_key(str(other)) != network_key(str(address))
