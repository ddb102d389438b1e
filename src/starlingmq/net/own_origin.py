"""Which host names in a browser's requests name this machine: for listeners that ask for no login.

A page of another site may make a browser on this machine send requests to a listener on loopback, and may use a host
name of its own that resolves to this machine (DNS rebinding). Programs send no Origin header; browsers cannot omit it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit


def is_own(authority: str, hosts: Collection[str]) -> bool:
    """Whether ``host:port`` (the port is optional) names this machine: localhost, a loopback address, or one of
    ``hosts``, which are in lower case."""
    name = urlsplit(f"//{authority}").hostname if is_plain(authority) else None
    if name is None:
        return False
    if name == "localhost" or name in hosts:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_plain(text: str) -> bool:
    """Whether the text can be parsed as part of a URL without surprises."""
    if not text.isprintable() or " " in text or "\\" in text or "@" in text:
        return False
    try:
        urlsplit(text if "://" in text else f"//{text}").port  # noqa: B018  raises for what is no port
    except ValueError:
        return False
    return True
