"""How a node tells the others where its streams are read."""

from __future__ import annotations

from typing import Final

SCHEME: Final = "streams"


def bulk_url(address: str, node: str) -> str:
    """What other nodes are told of where streams are read."""
    return f"{SCHEME}://{address}/{node}"


def bulk_place(url: str) -> tuple[str, str] | None:
    """Name of the node and address, of such a URL; None for another one."""
    scheme, _, rest = url.partition("://")
    address, _, node = rest.partition("/")
    return (node, address) if scheme == SCHEME else None
