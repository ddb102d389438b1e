"""Networks in bans of addresses: how a ban names them, and how the network of an address is found.

A network that is one key of addresses (``core.limits.address_key``: one IPv4 address; an IPv6 /64, or a part of it) is
banned as such an address is. All others are in a ``NetworkSet``: one look-up for each prefix length in
use, of which there are at most 32 and 63, however many networks are banned.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

from starlingmq.config.networks import Address, Network, parse_address, parse_network
from starlingmq.core.limits.address_key import PREFIX, network_key

EXAMPLES: Final = "an address such as 10.0.0.1, or a network such as 10.0.0.0/8 or 2001:db8::/32"


def banned_address(text: str) -> str:
    """The name under which an address or a network is banned. Raises ValueError with one line."""
    text = text.strip()
    address = parse_address(text)
    if address is not None:
        return str(address)
    if "/" not in text:
        raise ValueError(f"{text!r} is not {EXAMPLES}")
    try:
        network = parse_network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not {EXAMPLES}: {error}") from None
    if network.prefixlen == 0:
        raise ValueError(f"{text} would ban all addresses; name a smaller network")
    return network_key(str(network.network_address)) if _is_one_key(network) else str(network)


def banned_network(name: str) -> Network | None:
    """The network that the name of a ban stands for; None if it is banned as one address."""
    if "/" not in name:
        return None
    try:
        network = parse_network(name)
    except ValueError:
        return None
    return None if network.prefixlen == 0 or _is_one_key(network) else network


def _is_one_key(network: Network) -> bool:
    return network.prefixlen >= (PREFIX if isinstance(network, IPv6Network) else network.max_prefixlen)


class NetworkSet:
    """``covering`` finds networks in the order in which their prefix lengths came into use."""

    def __init__(self) -> None:
        self._starts: dict[tuple[int, int], set[int]] = {}  # IP version and prefix length -> addresses of networks

    def __bool__(self) -> bool:
        return bool(self._starts)

    def add(self, network: Network) -> None:
        self._starts.setdefault((network.version, network.prefixlen), set()).add(int(network.network_address))

    def discard(self, network: Network) -> None:
        length = (network.version, network.prefixlen)
        starts = self._starts.get(length)
        if starts is not None:
            starts.discard(int(network.network_address))
            if not starts:
                del self._starts[length]

    def covering(self, address: Address) -> Iterator[Network]:
        number, bits = int(address), address.max_prefixlen
        for (version, length), starts in list(self._starts.items()):
            start = number >> (bits - length) << (bits - length) if version == address.version else -1
            if start in starts:
                yield (
                    IPv4Network((IPv4Address(start), length))
                    if version == 4
                    else IPv6Network((IPv6Address(start), length))
                )
