"""A watch continues through any failure of its stream, or reports that it is lost."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.net.etcds import Client, connected, running
from tests.patience import within

from starlingmq.cluster.etcd.etcd_requests import Put, Txn, Watch, WatchEvent, WatchLost
from starlingmq.net.etcd.etcd_calls import WATCH, EtcdCalls, EtcdError
from starlingmq.net.proto import etcd_pb2 as pb

NEVER = 3600.0  # seconds: a test that waits for this fails
CREATE = pb.WatchRequest(create_request=pb.WatchCreateRequest(key=b"k"))
PREFIXES = tuple(b"/%d/" % number for number in range(10))


@asynccontextmanager
async def watch_server() -> AsyncIterator[str]:
    """A gRPC server whose watches are created but report nothing."""

    async def watch(requests: AsyncIterator[pb.WatchRequest], context: Any) -> AsyncIterator[pb.WatchResponse]:
        async for _ in requests:
            yield pb.WatchResponse(created=True)

    server = grpc.aio.server()
    method = grpc.stream_stream_rpc_method_handler(watch, WATCH.request.FromString, WATCH.answer.SerializeToString)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("etcdserverpb.Watch", {"Watch": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def begun(calls: EtcdCalls, turns: int) -> str:
    """Begin a watch, and cancel its stream that many turns of the event loop later. Returns how its task ends."""
    stream = await calls.open(WATCH)
    task = asyncio.create_task(stream.begin(CREATE))
    for _ in range(turns):
        await asyncio.sleep(0)
    stream.cancel()
    async with within(20.0):
        await asyncio.wait((task,))
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    assert error is None or isinstance(error, EtcdError), error
    return "answered" if error is None else error.code


async def test_a_stream_that_is_moved_at_any_moment_of_its_beginning_says_so() -> None:
    async with watch_server() as address:
        calls = EtcdCalls([address], NEVER)
        try:
            assert await begun(calls, 2000) in ("answered", "MOVED")  # now the channel is connected
            ends = [await begun(calls, turns) for turns in range(60) for _ in range(5)]
        finally:
            await calls.close()
        assert set(ends) <= {"answered", "MOVED"}
        assert ends[0] == "MOVED"


async def test_a_stream_that_is_moved_while_it_connects_does_not_wait_for_the_time_of_a_call() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        calls = EtcdCalls([f"127.0.0.1:{deaf.getsockname()[1]}"], NEVER)
        try:
            assert await begun(calls, 50) == "MOVED"
        finally:
            await calls.close()


def test_watches_follow_when_the_endpoint_that_is_asked_is_no_member_any_more() -> None:
    moves: list[str] = []
    calls = EtcdCalls(["a:1"])
    calls.on_moved = lambda: moves.append(calls.endpoint)
    calls.also(["b:1"])
    calls.leave("a:1")
    calls.also(["b:1", "c:1"])
    assert moves == ["b:1"], "it is still a member"
    calls.also(["c:1"])
    assert moves == ["b:1", "a:1"]


@pytest.mark.slow
async def test_watches_outlive_hundreds_of_moves_between_endpoints(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("starlingmq.net.etcd.etcd_client.RETRY", 0.01)
    async with running(tmp_path) as server:
        other = server.address.replace("127.0.0.1", "localhost")
        async with connected(server.address, other) as client:
            for prefix in PREFIXES:
                client.submit(Watch(prefix, 1))
            for turn in range(300):
                await asyncio.sleep(turn % 7 * 0.003)
                client.etcd.calls.leave(client.etcd.calls.endpoint)
            await every_watch_tells(client)


async def every_watch_tells(client: Client) -> None:
    await client.done(Txn("last", (), tuple(Put(prefix + b"last", b"") for prefix in PREFIXES)))
    for prefix in PREFIXES:
        await client.first(WatchEvent, lambda event, prefix=prefix: event.prefix == prefix)  # type: ignore[misc]


async def test_a_watch_that_ends_by_an_error_of_the_program_is_logged_and_lost(
    monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr("starlingmq.net.etcd.etcd_client.RETRY", 0.0)
    client = Client(["127.0.0.1:1"])
    monkeypatch.setattr(client.etcd.calls, "open", broken)
    with caplog.at_level(logging.ERROR, "starlingmq.etcd"):
        client.submit(Watch(b"/k", 1))
        assert await client.first(WatchLost) == WatchLost(b"/k", 0)
    assert "out of order" in caplog.text and "/k" in caplog.text
    await client.etcd.close()


async def test_a_watch_that_is_replaced_or_closed_is_not_lost(monkeypatch: Any) -> None:
    monkeypatch.setattr("starlingmq.net.etcd.etcd_client.RETRY", 0.0)
    async with watch_server() as address:
        client = Client([address])
        client.submit(Watch(b"/k", 1))
        client.submit(Watch(b"/k", 2))
        client.submit(Watch(b"/l", 1))
        await asyncio.sleep(0)
        await client.etcd.close()
        await asyncio.sleep(0)
    assert not [answer for answer in client.answers if isinstance(answer, WatchLost)]
