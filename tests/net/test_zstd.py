"""Connections in zstd: the filter, listeners of every kind, hostile bytes, and links that turn to plain."""

from __future__ import annotations

import asyncio
import resource
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import within

from starlingmq.client.compression import AGAIN_S, Compression
from starlingmq.client.dial import open_link
from starlingmq.client.endpoint import Tls, parse_url
from starlingmq.client.errors import ConnectFailed
from starlingmq.client.link import Link
from starlingmq.net.zstd_stream import TURN, WINDOW, WINDOW_MAX, BrokenStream, Compressor, Decompressor, ZstdReader

from .conftest import PATIENCE, Certificates, FakeDriver, Open
from .test_listeners import port_of, read_to_end

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAGIC = b"\x28\xb5\x2f\xfd"
CONNECT = b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04zstd"


def everything(decompressor: Decompressor, data: bytes) -> bytes:
    found = decompressor.feed(data)
    while decompressor.more:
        found += decompressor.feed(b"")
    return found


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_each_write_can_be_read_without_the_next_one(writes: list[bytes]) -> None:
    compressor, decompressor = Compressor(), Decompressor()
    for data in writes:
        assert everything(decompressor, compressor.feed(data)) == data


def test_a_stream_begins_with_the_magic_number_and_needs_a_small_window() -> None:
    data = Compressor().feed(CONNECT)
    assert data.startswith(MAGIC)
    assert zstd.get_frame_info(data).decompressed_size is None
    assert WINDOW <= WINDOW_MAX


def test_a_stream_is_read_byte_by_byte() -> None:
    compressor, decompressor = Compressor(), Decompressor()
    writes = [b"a" * 1000, b"", b"b", bytes(range(256)) * 3]
    for data in writes:
        found = b"".join(everything(decompressor, bytes([byte])) for byte in compressor.feed(data))
        assert found == data


def test_repetitions_cost_little() -> None:
    compressor = Compressor()
    message = b"\x32\x70\x00\x0bsensors/a/1\x00\x01" + bytes(range(100))
    first, second = len(compressor.feed(message)), len(compressor.feed(message))
    assert second < 30 < len(message) <= first + 30


def frame(data: bytes, window: int = WINDOW) -> bytes:
    chosen = zstd.CompressionParameter
    return zstd.compress(data, options={int(chosen.window_log): window, int(chosen.content_size_flag): 0})


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x28", ""),
        (b"\x28nothing of zstd", "broken"),
        (MAGIC + bytes([0x00]) + bytes([(WINDOW_MAX + 1 - 10) << 3]), "broken"),
        (frame(b"the end"), ""),
        (frame(b"the end") + b"!", "follow"),
        (frame(b"the end") * 2, "follow"),
        (Compressor().feed(b"abc") + b"\xff" * 50, "broken"),
    ],
)
def test_bytes_that_are_no_zstd_are_refused(data: bytes, why: str) -> None:
    decompressor = Decompressor()
    if not why:
        everything(decompressor, data)
        return
    with pytest.raises(BrokenStream, match=why):
        everything(decompressor, data)


def test_a_window_up_to_the_limit_is_read() -> None:
    head = MAGIC + bytes([0x00]) + bytes([(WINDOW_MAX - 10) << 3])
    assert everything(Decompressor(), head) == b""


def test_after_the_end_of_the_frame_nothing_is_read() -> None:
    decompressor = Decompressor()
    assert everything(decompressor, frame(b"the end")) == b"the end"
    with pytest.raises(BrokenStream):
        decompressor.feed(b"x")


class Turns:
    """The shell around a reader: its calls, and the turns of an event loop."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.problems: list[str] = []
        self.reading = True
        self.due: list[object] = []
        self.reader = ZstdReader(self.got.append, self.problems.append, self.read, self.due.append)

    def read(self, reading: bool) -> None:
        assert reading != self.reading, "only changes are told"
        self.reading = reading

    def turn(self) -> None:
        due, self.due[:] = list(self.due), []
        for call in due:
            assert callable(call)
            call()


def test_a_turn_gives_a_bounded_number_of_bytes_and_reads_nothing_meanwhile() -> None:
    turns = Turns()
    turns.reader.feed(Compressor().feed(bytes(5 * TURN)))
    while turns.due:
        assert not turns.reading
        before = len(turns.got)
        turns.turn()
        assert len(turns.got) - before <= 1
    assert turns.reading
    assert {len(each) for each in turns.got} == {TURN}
    assert b"".join(turns.got) == bytes(5 * TURN)


def test_a_reader_on_hold_gives_nothing_and_forgets_nothing() -> None:
    turns, compressor = Turns(), Compressor()
    turns.reader.feed(compressor.feed(b"a" * 3 * TURN))
    turns.reader.hold(True)
    turns.turn()
    assert len(turns.got) == 1 and not turns.due and not turns.reading
    turns.reader.feed(compressor.feed(b"b"))  # of a TLS record that was decrypted before
    assert len(turns.got) == 1
    turns.reader.hold(False)
    assert not turns.reading, "the rest comes first"
    while turns.due:
        turns.turn()
    assert b"".join(turns.got) == b"a" * 3 * TURN + b"b" and turns.reading


def test_a_reader_that_was_stopped_gives_nothing() -> None:
    turns = Turns()
    turns.reader.feed(Compressor().feed(bytes(3 * TURN)))
    turns.reader.stop()
    turns.turn()
    turns.reader.feed(b"anything")
    turns.reader.hold(True)
    assert len(turns.got) == 1 and not turns.due and not turns.problems


def test_a_server_without_zstd_is_asked_again_after_a_while() -> None:
    choice = Compression()
    assert choice.wanted(0.0)
    choice.failed()
    assert not choice.wanted(1.0), "the next one is plain"
    choice.failed()
    assert choice.wanted(2.0), "it has nothing to do with zstd"
    choice.failed()
    assert choice.answered(3.0), "it answers plain ones only"
    choice.failed()
    assert not choice.wanted(3.0 + AGAIN_S - 1)
    assert not choice.answered(4.0)
    assert choice.wanted(3.0 + AGAIN_S)
    choice.failed()
    assert not choice.wanted(3.0 + AGAIN_S)
    assert not choice.answered(3.0 + AGAIN_S), "that was said"
    assert choice.wanted(10 * AGAIN_S)
    assert not choice.answered(10 * AGAIN_S) and choice.wanted(10 * AGAIN_S)
    choice.failed()
    assert choice.answered(11 * AGAIN_S)


class Received:
    """The owner of a link."""

    def __init__(self) -> None:
        self.data = b""
        self.lost = False
        self.news = asyncio.Event()

    def link_received(self, data: bytes) -> None:
        self.data += data
        self.news.set()

    def link_lost(self, link: Link, error: Exception | None) -> None:
        self.lost = True
        self.news.set()

    async def until(self, size: int) -> None:
        async with within(PATIENCE):
            while len(self.data) < size and not self.lost:
                self.news.clear()
                await self.news.wait()


SCHEMES = ("mqtt", "mqtts", "ws", "wss", "unix")


@asynccontextmanager
async def linked(
    scheme: str, listen: Open, certificates: Certificates, tmp_path: Path
) -> AsyncIterator[tuple[Link, Received]]:
    """A compressed link to a listener of the scheme."""
    url = f"unix://{tmp_path}/s" if scheme == "unix" else f"{scheme}://127.0.0.1:0"
    secure = scheme in ("mqtts", "wss")
    listener = await listen(url, **({"tls": certificates.server()} if secure else {}))
    address = listener.address.replace("127.0.0.1", "localhost")
    owner = Received()
    link = await open_link(parse_url(address), Tls(ca=certificates.ca), owner, compress=True)
    try:
        yield link, owner
    finally:
        link.abort()
        async with within(PATIENCE):
            await link.closed


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_both_directions_are_compressed(
    scheme: str, driver: FakeDriver, listen: Open, certificates: Certificates, tmp_path: Path
) -> None:
    async with linked(scheme, listen, certificates, tmp_path) as (link, owner):
        driver.on_received = lambda client, data: client.transport.write(data.upper())
        client = await driver.client()
        for part in (CONNECT, b"a" * 300_000, b"b"):
            link.write(part)
            await owner.until(len(owner.data) + len(part))
        assert client.received == CONNECT + b"a" * 300_000 + b"b"
        assert owner.data == client.received.upper() and link.heard
        client.transport.close()
        await owner.until(len(owner.data) + 1)
        assert owner.lost
        link.abort()
        await client.until(lambda seen: seen.events == ["lost"])


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_input_waits_while_the_driver_takes_none(
    scheme: str, driver: FakeDriver, listen: Open, certificates: Certificates, tmp_path: Path
) -> None:
    async with linked(scheme, listen, certificates, tmp_path) as (link, owner):
        driver.on_received = lambda client, data: client.transport.pause_reading()
        client = await driver.client()
        link.write(b"a" * 10 * TURN)
        await client.until(lambda seen: bool(seen.reads))
        for number in range(2, 11):
            assert len(client.reads) == number - 1 and len(client.reads[-1]) <= TURN
            client.transport.resume_reading()
            await client.until(lambda seen: len(seen.reads) == number)  # noqa: B023
        driver.on_received = lambda client, data: client.transport.write(b"!")
        client.transport.resume_reading()
        link.write(b"b")
        await owner.until(1)
        assert client.received == b"a" * 10 * TURN + b"b"


async def test_the_other_side_of_a_link_waits_too(driver: FakeDriver, listen: Open, tmp_path: Path) -> None:
    address = (await listen(f"unix://{tmp_path}/s")).address
    owner = Received()
    link = await open_link(parse_url(address), Tls(), owner, compress=True)
    link.set_reading(False)
    link.write(CONNECT)
    client = await driver.client()
    await client.until(lambda seen: seen.received == CONNECT)
    client.transport.write(b"a" * 10 * TURN)
    link.set_reading(True)
    await owner.until(1)
    link.set_reading(False)
    before = len(owner.data)
    assert before <= 2 * TURN
    link.set_reading(True)
    await owner.until(10 * TURN)
    assert owner.data == b"a" * 10 * TURN
    link.abort()


async def test_bytes_that_begin_as_anything_else_are_not_touched(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("mqtt://127.0.0.1:0")
    for number, data in enumerate((CONNECT, MAGIC[1:], b"\x00")):
        _, writer = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
        writer.write(data)
        client = await driver.client(number)
        await client.until(lambda seen: seen.received == data)  # noqa: B023
        writer.close()


async def test_nats_is_never_zstd(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("nats://127.0.0.1:0")
    _, writer = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
    writer.write(MAGIC)
    client = await driver.client()
    await client.until(lambda seen: seen.received == MAGIC)
    writer.close()


@pytest.mark.parametrize("data", [b"\x28nothing of zstd", Compressor().feed(CONNECT) + b"\xff" * 100])
async def test_a_broken_stream_ends_the_connection_and_is_counted(
    data: bytes, driver: FakeDriver, listen: Open
) -> None:
    listener = await listen("mqtt://127.0.0.1:0")
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
    writer.write(data)
    assert await read_to_end(reader) == b""
    client = await driver.client()
    await client.until(lambda seen: seen.events == ["lost"])
    assert listener.gate.refused == {"broken_zstd": 1} and listener.gate.connections == 0
    writer.close()


async def test_a_server_that_answers_in_plain_text_ends_the_link(driver: FakeDriver, tmp_path: Path) -> None:
    def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x20\x03\x00\x84\x00")
        writer.close()  # uvloop's server waits for it

    async with await asyncio.start_unix_server(answer, f"{tmp_path}/s"):
        owner = Received()
        link = await open_link(parse_url(f"unix://{tmp_path}/s"), Tls(), owner, compress=True)
        link.write(CONNECT)
        await owner.until(1)
        assert owner.lost and not link.heard and "zstd" in link.problem


async def test_without_the_library_nothing_is_compressed(
    driver: FakeDriver, listen: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = await listen(f"unix://{tmp_path}/s")
    for name in ("starlingmq.net.zstd_stream", "starlingmq.net.compressed_connection"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConnectFailed, match=r"extra \[zstd\]"):
        await open_link(parse_url(listener.address), Tls(), Received(), compress=True)
    assert not driver.clients
    _, writer = await asyncio.open_unix_connection(f"{tmp_path}/s")
    writer.write(MAGIC)
    client = await driver.client()
    await client.until(lambda seen: seen.received == MAGIC)
    writer.close()


def bomb() -> Iterator[bytes]:
    """A gigabyte of zeros, in pieces."""
    compressor = Compressor()
    yield compressor.feed(CONNECT)
    for _ in range(1024):
        yield compressor.feed(bytes(1 << 20))


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.asyncio(loop_factories=["epoll"])
async def test_a_gigabyte_of_zeros_is_served_like_any_other_input(driver: FakeDriver, listen: Open) -> None:
    """In bounded pieces, between which others are served."""
    sizes = [0]
    peak = [0]

    def count(client: object, data: bytes) -> None:
        if client is not driver.clients[0]:
            driver.clients[1].transport.write(data)
            return
        sizes.append(sizes[-1] + len(data))
        driver.clients[0].received = b""
        driver.clients[0].reads.clear()
        if len(sizes) % 64 == 0:
            peak[0] = max(peak[0], memory())

    driver.on_received = count
    listener = await listen("mqtt://127.0.0.1:0")
    data = b"".join(bomb())
    assert len(data) < 200_000
    _, writer = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
    await driver.client()
    other_reader, other = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
    await driver.client(1)
    before, cpu = memory(), time.process_time()
    writer.write(data)
    seen = []
    while sizes[-1] < 1 << 30:
        other.write(b"x")
        async with within(PATIENCE):
            assert await other_reader.readexactly(1) == b"x"
        seen.append(sizes[-1])
    assert max(b - a for a, b in pairwise(sizes)) <= TURN
    assert max(b - a for a, b in pairwise(seen)) <= 20 * TURN, "the other one waited"
    assert peak[0] - before < 16 << 20
    assert time.process_time() - cpu < 30
    writer.close()
    other.close()


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="this system has one congestion control")
async def test_both_ends_send_for_a_long_line(driver: FakeDriver, listen: Open) -> None:
    if "bbr" not in Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split():
        pytest.skip("the kernel has no BBR")
    listener = await listen("mqtt://127.0.0.1:0")
    found = []
    for number, data in enumerate((CONNECT, MAGIC)):
        _, writer = await asyncio.open_connection("127.0.0.1", port_of(listener.address))
        client = await driver.client(number)
        accepted = client.transport.get_extra_info("socket")
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        writer.write(data + Compressor().feed(CONNECT)[len(MAGIC) :])
        await client.until(lambda seen: bool(seen.received))
        found.append(_congestion(accepted))
        writer.close()
    assert found == ["reno", "bbr"]


def _congestion(sock: socket.socket) -> str:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
