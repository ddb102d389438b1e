"""Networks and addresses, as settings and peers name them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

from starlingmq.config.section_types import ConfigError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAPPED_BITS: Final = 96  # bits of an IPv6 address before a mapped IPv4 address


def parse_networks(texts: Iterable[str], setting: str) -> tuple[Network, ...]:
    """Networks such as ``10.0.0.0/8``, ``2001:db8::/32`` or one address. Raises ConfigError that names the setting."""
    found = []
    for index, text in enumerate(texts):
        try:
            found.append(parse_network(text))
        except ValueError as error:
            raise ConfigError(
                f"{setting}[{index}]: {text!r} is not a network such as 10.0.0.0/8 or 2001:db8::/32: {error}"
            ) from None
    return tuple(found)


def parse_network(text: str) -> Network:
    """A network of mapped IPv4 addresses becomes the IPv4 network, as in ``parse_address``. Raises ValueError."""
    network = ipaddress.ip_network(text)
    mapped = network.network_address.ipv4_mapped if isinstance(network, ipaddress.IPv6Network) else None
    if mapped is None or network.prefixlen < MAPPED_BITS:
        return network
    return ipaddress.IPv4Network((mapped, network.prefixlen - MAPPED_BITS))


def parse_address(text: str) -> Address | None:
    """An IP address without port; None if the text is not one. A mapped IPv4 address becomes that IPv4 address.

    Brackets and the zone of a link-local address (``fe80::1%eth0``) are cut off.
    """
    try:
        address = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_among(address: Address | None, networks: Sequence[Network]) -> bool:
    return address is not None and any(address in network for network in networks)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host. Names other than localhost are not resolved: False."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether the host stands for all addresses of a machine, so that it cannot be dialled."""
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_local(url: str) -> bool:
    """Whether only this machine can reach what the URL names. Names other than localhost are not resolved: False."""
    parts = urlsplit(url)
    return parts.scheme == "unix" or is_loopback(parts.hostname or "")
