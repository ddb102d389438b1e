"""``python -m tests.cluster.lone_node SECRET``: the listener of node ``two`` in a process of its own, whose memory can
be looked at. It says its address, and ends with its standard input."""

from __future__ import annotations

import asyncio
import sys

from tests.cluster.conftest import Node


async def main() -> None:
    node = Node("two", 2, secret=sys.argv[1])
    await node.start()
    print(node.peers.address, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await node.peers.close()


if __name__ == "__main__":
    asyncio.run(main())
