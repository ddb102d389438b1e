"""A bridge to a Kafka that is not there: only this bridge waits. Records that are too large hold no others up.

The Kafka that is there is the one that librdkafka has for tests.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.bridges.real import Serve, bridge, publish, reading

from starlingmq.cli.local_cluster import free_port

confluent_kafka = pytest.importorskip("confluent_kafka")

BOUND = 20
LARGEST = 2000  # bytes of a packet
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


async def test_the_client_is_dropped_in_its_thread() -> None:
    """That waits for its searches of addresses, which may last long: never in the event loop."""
    from starlingmq.bridges.kafka_clients import KafkaWriter
    from starlingmq.bridges.kafka_state import Sent

    ended: asyncio.Queue[str] = asyncio.Queue()
    writer = KafkaWriter({"bootstrap.servers": f"127.0.0.1:{free_port()}"}, ended.put_nowait, lambda _: None)
    writer.begin()
    with pytest.raises(ConnectionError):
        await writer.greeted
    assert writer.write(Sent(1, 1, 1), "plant", b"plant/a", b"", []), "the bridge may not know the end yet"
    writer.stop()
    await writer.stopped()
    assert writer._producer is None


@pytest.mark.parametrize("size", range(LARGEST - 100, LARGEST, 20))
async def test_records_around_the_largest_packet_hold_no_others_up(serve: Serve, size: int) -> None:
    kafka = confluent_kafka.Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1})
    (at,) = kafka.list_topics(timeout=10.0).brokers.values()
    for payload in (bytes(size), b"next"):
        kafka.produce("orders", payload, b"k", partition=0)
    assert kafka.flush(10.0) == 0
    topic = {"filter": "orders", "direction": "in", "qos": 1}
    near = await serve(limits={"max_packet_size": LARGEST})
    async with reading(near.url, "orders") as reader:
        near.use([bridge(f"kafka://{at.host}:{at.port}", topic)], limits={"max_packet_size": LARGEST})
        await reader.until(b"next")
    assert near.view().messages_in + near.view().kept_out == 2
