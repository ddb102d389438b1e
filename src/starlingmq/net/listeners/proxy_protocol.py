"""The header with which a load balancer names its client: PROXY protocol, versions 1 and 2; bytes in.

It precedes everything else, including TLS. A receiver must not guess whether there is one (specification, 2), so each
connection of a listener with ``proxy_protocol`` has to begin with it.

| header | the client's address |
|---|---|
| v1 TCP4, TCP6; v2 PROXY with TCP over IPv4 or IPv6 | the address in the header |
| v1 UNKNOWN; v2 LOCAL (health checks of the balancer) | the address of the connection itself |
| v2 PROXY without address, with a Unix socket or UDP | the address of the connection itself |
| anything else | ProxyError |

The additional fields of v2 (TLVs, including a checksum) are skipped.
"""

from __future__ import annotations

import re
import struct
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

V1: Final = b"PROXY "
V1_MAX: Final = 107
V1_MIN: Final = len(b"PROXY UNKNOWN\r\n")
V2: Final = b"\r\n\r\n\x00\r\nQUIT\n"
V2_FIXED: Final = 16
V2_MAX: Final = 4096
"""Bytes of a whole header; 232 without TLVs, and balancers append some hundred."""

_LOCAL: Final = 0x20
_PROXY: Final = 0x21
_TCP4: Final = 0x11
_TCP6: Final = 0x21
_SIZES: Final = {0: 0, 1: 12, 2: 36, 3: 216}  # of the addresses, by family
_TRANSPORTS: Final = 3  # unspecified, stream, datagram
_LINE: Final = re.compile(rb"PROXY (TCP4|TCP6) ([0-9A-Fa-f.:]+) ([0-9A-Fa-f.:]+) (0|[1-9]\d{0,4}) (0|[1-9]\d{0,4})\r\n")


class ProxyError(ValueError):
    """The data is not a valid header; one line."""


class ProxyHeader(NamedTuple):
    """``size`` in bytes; ``peer`` is the client as ``host:port``, "" for the peer of the connection itself."""

    size: int
    peer: str


def parse(data: bytes) -> ProxyHeader | int:
    """The header that ``data`` begins with; if it is incomplete, the minimum number of missing bytes.

    A caller that reads just as many never reads beyond the header. Raises ProxyError as soon as it cannot be a header.
    """
    if not data:
        return V1_MIN
    if V2.startswith(data[: len(V2)]):
        return _version_2(data)
    if V1.startswith(data[: len(V1)]):
        return _version_1(data)
    raise ProxyError("the connection does not start with a PROXY header")


def _version_1(data: bytes) -> ProxyHeader | int:
    end = data.find(b"\n", 0, V1_MAX)
    if end < 0:
        if len(data) >= V1_MAX:
            raise ProxyError("a PROXY header of version 1 does not end in CRLF")
        return max(V1_MIN - len(data), 1 if data.endswith(b"\r") else 2)
    line = data[: end + 1]
    if (line.startswith(b"PROXY UNKNOWN ") or line == b"PROXY UNKNOWN\r\n") and line.endswith(b"\r\n"):
        return ProxyHeader(len(line), "")
    match = _LINE.fullmatch(line)
    if match is None:
        raise ProxyError("a PROXY header of version 1 is malformed")
    family, source, destination, port, to_port = (part.decode() for part in match.groups())
    make: type[IPv4Address | IPv6Address] = IPv4Address if family == "TCP4" else IPv6Address
    try:
        host, _ = make(source), make(destination)
    except ValueError:
        raise ProxyError("a PROXY header of version 1 has an invalid address") from None
    if max(int(port), int(to_port)) > 0xFFFF:
        raise ProxyError("a PROXY header of version 1 has an invalid port")
    return ProxyHeader(len(line), _peer(host, int(port)))


def _version_2(data: bytes) -> ProxyHeader | int:
    if len(data) > len(V2) and data[len(V2)] not in (_LOCAL, _PROXY):
        raise ProxyError("a PROXY header has an unknown version or command")
    if len(data) < V2_FIXED:
        return V2_FIXED - len(data)
    command, kind, length = data[12], data[13], int.from_bytes(data[14:16], "big")
    size = V2_FIXED + length
    if size > V2_MAX:
        raise ProxyError(f"a PROXY header of {size} bytes is longer than {V2_MAX}")
    if command == _PROXY:
        needed = _SIZES.get(kind >> 4)
        if needed is None or kind & 15 >= _TRANSPORTS:
            raise ProxyError("a PROXY header has an unknown address family or transport")
        if length < needed:
            raise ProxyError("a PROXY header is shorter than its addresses")
    if len(data) < size:
        return size - len(data)
    if command == _PROXY and kind == _TCP4:
        return ProxyHeader(size, _peer(IPv4Address(data[16:20]), *struct.unpack_from("!H", data, 24)))
    if command == _PROXY and kind == _TCP6:
        return ProxyHeader(size, _peer(IPv6Address(data[16:32]), *struct.unpack_from("!H", data, 48)))
    return ProxyHeader(size, "")


def _peer(host: IPv4Address | IPv6Address, port: int) -> str:
    if isinstance(host, IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    return f"[{host}]:{port}" if isinstance(host, IPv6Address) else f"{host}:{port}"
