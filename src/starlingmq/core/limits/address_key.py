"""The key of an address: limits, bans and counts of failed logins treat all addresses with the same key as one."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import Final

PREFIX: Final = 64
"""Bits of the IPv6 network that one customer or interface has for itself (RFC 4291, 2.5.1; RFC 6177)."""

_SUFFIX: Final = f"/{PREFIX}"
_HOST_BITS: Final = (1 << (128 - PREFIX)) - 1


def network_key(address: str) -> str:
    """The key of an address: IPv4 as it is, IPv4-mapped IPv6 as IPv4, other IPv6 as its /64 (``2001:db8::/64``).

    Brackets and a zone (``%eth0``) are left out. A key is its own key. Text that is no address is returned as it is.
    """
    if ":" not in address:
        return address
    text = address.removesuffix(_SUFFIX).strip("[]").partition("%")[0]
    try:
        found = ip_address(text)
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    mapped = found.ipv4_mapped
    if mapped is not None:
        return str(mapped)
    return f"{IPv6Address(int(found) & ~_HOST_BITS)}{_SUFFIX}"


def peer_host(peer: str) -> str:
    """The address in ``host:port`` or ``[host]:port``; "" for a peer without one, such as ``unix``."""
    return peer.rpartition(":")[0].strip("[]")


def peer_key(peer: str) -> str:
    """The key of the address in ``host:port`` or ``[host]:port``; "" for a peer without one, such as ``unix``."""
    return network_key(peer_host(peer))
