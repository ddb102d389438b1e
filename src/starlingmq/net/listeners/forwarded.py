"""The address of a client behind proxies, from ``X-Forwarded-For`` or ``Forwarded`` (RFC 7239).

Each proxy appends the address that it was connected to from. Everything to the left of what a trusted proxy appended is
the client's own text and may be forged. So the client is the right-most address that is not a trusted proxy, and the
headers of a peer that is not a trusted proxy are ignored.

A proxy that appends to one of the two headers may pass on the other as the client sent it. Both may be present if both
name the same client; otherwise the request is refused, because falling back to the proxy's address would count a
client's failures for all clients behind that proxy. The same holds for a ``Forwarded`` header that is malformed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from starlingmq.config.networks import Address, Network, is_among, parse_address

X_FORWARDED_FOR: Final = b"x-forwarded-for"
FORWARDED: Final = b"forwarded"
HOPS_MAX: Final = 64
_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105 the grammar of a header
_PAIR: Final = re.compile(rf'[ \t]*({_TOKEN})=({_TOKEN}|"(?:[^"\\]|\\.)*")[ \t]*([,;]|$)')
_EMPTY: Final = re.compile(r"[ \t]*([,;]|$)")


class ForwardedError(ValueError):
    """The headers contradict each other or cannot be parsed: answer with status 400."""


def client_address(peer: str, headers: Iterable[tuple[bytes, bytes]], trusted: Sequence[Network]) -> str:
    """The address of the client whose connection comes from ``peer``, an address without port.

    Header names are in lower case. Without ``trusted`` the headers are ignored. Raises ForwardedError.
    """
    if not trusted or not is_among(parse_address(peer), trusted):
        return peer
    lists: list[bytes] = []
    elements: list[bytes] = []
    for name, value in headers:
        if name == X_FORWARDED_FOR:
            lists.append(value)
        elif name == FORWARDED:
            elements.append(value)
    found = []
    if lists:
        found.append(_client(peer, _of_list(b",".join(lists).decode("latin-1")), trusted))
    if elements:
        found.append(_client(peer, _of_elements(b",".join(elements).decode("latin-1")), trusted))
    if len(set(found)) > 1:
        raise ForwardedError("X-Forwarded-For and Forwarded name different clients")
    return found[0] if found else peer


def _client(peer: str, hops: Iterator[str], trusted: Sequence[Network]) -> str:
    """``hops`` come from the right: the peer's own entry first. The nearest known hop replaces an unknown one."""
    known = peer
    for _, hop in zip(range(HOPS_MAX), hops, strict=False):
        address = _address(hop)
        if address is None:
            break
        known = str(address)
        if not is_among(address, trusted):
            break
    return known


def _of_list(text: str) -> Iterator[str]:
    """The entries of ``X-Forwarded-For`` from the right, split only as far as they are needed."""
    while text:
        text, _, entry = text.rpartition(",")
        if entry.strip():
            yield entry.strip()


def _of_elements(text: str) -> Iterator[str]:
    """The ``for`` of each element of ``Forwarded`` from the right; "" for an element without one.

    It is parsed from the left, since a comma in quotes parts nothing.
    """
    found: list[str] = []
    current: str | None = None
    seen = False
    position = 0
    while position < len(text):
        match = _PAIR.match(text, position)
        if match is not None:
            name, value, end = match.groups()
            if name.lower() == "for":
                if current is not None:
                    raise ForwardedError("an element of the Forwarded header has two for= parameters")
                current = re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
            seen = True
        else:
            match = _EMPTY.match(text, position)
            if match is None:
                raise ForwardedError("the header Forwarded is malformed")
            end = match.group(1)
        position = match.end()
        if end != ";" and seen:
            found.append(current or "")
            current, seen = None, False
    if seen:
        found.append(current or "")
    return reversed(found)


def _address(text: str) -> Address | None:
    """Of ``192.0.2.1``, ``192.0.2.1:80``, ``2001:db8::1``, ``[2001:db8::1]`` or ``[2001:db8::1]:80``."""
    if text.startswith("["):
        return parse_address(text.partition("]")[0])
    if text.count(":") == 1:
        text = text.partition(":")[0]
    return parse_address(text)
