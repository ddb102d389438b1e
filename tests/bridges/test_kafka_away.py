"""A bridge to a Kafka that is not there: only this bridge waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.bridges.real import Serve, bridge, publish, reading

from starlingmq.cli.local_cluster import free_port

BOUND = 20
OUT = {"filter": "plant/#", "rename": "plant"}
IN = {"filter": "orders", "direction": "in"}


def to_nowhere(*topics: dict[str, Any], **more: Any) -> dict[str, Any]:
    return bridge([f"kafka://127.0.0.1:{free_port()}" for _ in range(2)], *topics, **more)


async def test_messages_wait_up_to_the_bound_and_others_are_served(serve: Serve, tmp_path: Path) -> None:
    near = await serve(to_nowhere(OUT, IN, max_mqueue_len=BOUND), node={"data_dir": str(tmp_path)})
    async with reading(near.url, "plant/#") as here:
        for number in range(2 * BOUND):
            await publish(near.url, "plant/a", str(number))
            assert await here.one() == ("plant/a", b"%d" % number)
    view = await near.until(lambda view: view.problem != "")
    assert view.state in ("waiting", "connecting") and "Connect" in view.problem, view.problem
    assert (view.waiting, view.dropped) == (BOUND, BOUND)
