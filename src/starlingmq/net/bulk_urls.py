"""URLs with which a node announces the address of its bulk process to other nodes."""

from __future__ import annotations

from typing import Final

SCHEME: Final = "streams"


def bulk_url(address: str, node: str) -> str:
    """The URL for other nodes."""
    return f"{SCHEME}://{address}/{node}"


def parse_bulk_url(url: str) -> tuple[str, str] | None:
    """Name of the node and address in such a URL; None for other URLs."""
    scheme, _, rest = url.partition("://")
    address, _, node = rest.partition("/")
    return (node, address) if scheme == SCHEME else None
