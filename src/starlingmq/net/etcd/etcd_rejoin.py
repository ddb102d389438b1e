"""Returning to an etcd after this node's disk was lost.

etcd does not let a member start with an empty disk under its old id, because it would have forgotten its votes. So the
old member is removed through the other members, and the node is added as a new one. The other members are asked at
their peer ports, since a node that was configured with ``initial_members`` knows no other address of theirs. The old
member is removed only if it is this node's own (name and peer URL) and nothing answers at its peer URL.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from starlingmq.config.cluster_section import EtcdTlsConfig
from starlingmq.net.etcd.etcd_members import EtcdMember

ASK_SECONDS: Final = 2.0
ANSWER_BYTES_MAX: Final = 1 << 20


async def ask_members(peer_urls: Iterable[str], tls: EtcdTlsConfig | None) -> list[EtcdMember]:
    """The members of the etcd that runs at one of these URLs; none if none answers."""
    for url in peer_urls:
        try:
            return await asyncio.to_thread(_ask, url, tls)
        except (OSError, ValueError, KeyError, TypeError):  # unreachable, another certificate, or not an etcd
            continue
    return []


def _ask(url: str, tls: EtcdTlsConfig | None) -> list[EtcdMember]:
    import urllib.request  # with email and http, which only a node that has lost its disk needs

    context = None
    if tls is not None:
        context = ssl.create_default_context(cafile=tls.ca)
        context.load_cert_chain(tls.cert, tls.key, lambda: "")  # never a prompt
    # The URL comes from settings: http or https, host and port.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with opener.open(f"{url}/members", timeout=ASK_SECONDS) as answer:
        found: list[dict[str, Any]] = json.loads(answer.read(ANSWER_BYTES_MAX))
    return [
        EtcdMember(
            int(each["id"]),
            str(each.get("name", "")),
            tuple(each.get("peerURLs") or ()),
            tuple(each.get("clientURLs") or ()),
            bool(each.get("isLearner", False)),
        )
        for each in found
    ]


def has_begun(found: Sequence[EtcdMember], peer_url: str) -> bool:
    """Whether that etcd runs without the member at ``peer_url``, which has run before or was removed. A member that was
    added and has never run has no client address."""
    own = [member for member in found if peer_url in member.peer_urls]
    others = [member for member in found if peer_url not in member.peer_urls and member.client_urls]
    return bool(others) and all(member.client_urls for member in own)


async def is_alive(peer_url: str) -> bool:
    """Whether a process listens there."""
    parts = urlsplit(peer_url)
    try:
        async with asyncio.timeout(ASK_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
