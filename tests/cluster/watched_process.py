"""A process with the listener of a node, for tests that end it:
``python -m tests.cluster.watched_process NUMBER INCARNATION SETTINGS PEER``.

It prints its address, dials PEER (``number=address``, or "": no peer), and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading

import msgspec

from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.config.cluster_section import ClusterConfig, ClusterTlsConfig
from starlingmq.net.peers.peer_server import PeerServer


async def main(number: int, incarnation: int, settings: dict[str, str], peer: str) -> None:
    tls = ClusterTlsConfig(**{key: settings.pop(key) for key in ("ca", "cert", "key") if key in settings})
    config = msgspec.structs.replace(ClusterConfig(listen="127.0.0.1:0", tls=tls), **settings)
    peers = PeerServer(
        config,
        "watched",
        lambda envelope: None,
        lambda number: None,
        lambda number: None,
        lambda number, incarnation: None,
        random.random,
        os.urandom,
    )
    await peers.start()
    peers.introduce(number, incarnation)
    if peer:
        other, _, address = peer.partition("=")
        peers.set_peers([MemberInfo("other", int(other), 1, address)])
    print(peers.address, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]))
