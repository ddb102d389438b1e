"""The service that streams are read from, as readers without Spark use it: planned, read, left alone, refused."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import trustme

from starlingmq import Broker
from starlingmq.bulk.protocol import SCHEMA, Bounds, Nodes, Ticket
from starlingmq.client import Client
from starlingmq.config.settings import Config, ConfigError, load_config
from starlingmq.hooks import AuthRequest
from starlingmq.spark.nodes import LostRows, NodeBook, NodeConnection, StreamError
from starlingmq.spark.option_error import OptionError
from starlingmq.spark.placing import AssignedNode
from starlingmq.spark.read_options import Options, read_options
from starlingmq.spark.row_publishing import PublishError
from starlingmq.spark.row_publishing import publish as send
from starlingmq.spark.row_reading import RowPartition, read_part
from starlingmq.spark.secret_reference import secret_text
from starlingmq.spark.sink_options import read_sink_options
from starlingmq.spark.source import BatchReader
from tests.bulk.conftest import TOKEN, settings
from tests.cli.test_stream_commands import ask
from tests.patience import within
from tests.spark.brokers import ThreadBroker


def options(broker: Broker, **more: Any) -> Options:
    assert broker.read_at
    plain = Options(servers=(broker.read_at,), stream="all", token=TOKEN, node_timeout=1.0)
    return msgspec.structs.replace(plain, **more)


async def publish(broker: Broker, count: int, topic: str = "a/b") -> None:
    async with Client(broker.address()) as client:
        for number in range(count):
            await client.publish(topic, b"%d" % number, qos=1)


async def rows(options: Options, start: int, end: int, forgive: bool = False) -> list[dict[str, Any]]:
    part = RowPartition("n1", options.servers[0], start, end, forgive)

    def read() -> list[dict[str, Any]]:
        return [row for batch in read_part(part, options) for row in batch.to_pylist()]

    return await asyncio.to_thread(read)


async def test_acknowledged_messages_can_be_read_at_once(shared_broker: Broker, stream: str) -> None:
    await publish(shared_broker, 10)
    found = await rows(options(shared_broker, stream=stream), 0, 10)
    assert [(row["offset"], row["payload"]) for row in found] == [(n, b"%d" % n) for n in range(10)]
    first = found[0]
    assert (first["topic"], first["qos"], first["retain"], first["node"]) == ("a/b", 1, False, "n1")
    assert first["properties"] == [] and first["client_id"] and first["timestamp"].year > 2000
    assert await rows(options(shared_broker, stream=stream), 3, 5) == found[3:5], "the same rows again"


async def test_topics_are_filtered_at_the_node(shared_broker: Broker, stream: str) -> None:
    await publish(shared_broker, 5)
    await publish(shared_broker, 3, "c")
    found = await rows(options(shared_broker, stream=stream, filters=("c", "x/#")), 0, 8)
    assert [row["offset"] for row in found] == [5, 6, 7]
    with pytest.raises(StreamError, match="not a topic filter"):
        await rows(options(shared_broker, stream=stream, filters=("a/#/b",)), 0, 8)


async def test_streams_and_their_nodes_are_listed(shared_broker: Broker, stream: str) -> None:
    await publish(shared_broker, 5)
    book = NodeBook(options(shared_broker, stream=stream, consumer="me"))

    def plan() -> None:
        (bounds,) = book.bounds().values()
        assert (bounds.first, bounds.next, bounds.begin) == (0, 5, 0) and bounds.id
        assert book.ask("n1", "nodes", None, Nodes).node == "n1"
        assert book.ask("n1", "streams", None, list[Bounds])[0].topics == ["#"]
        assert (book.seek("n1", 0.0), book.seek("n1", 1e11)) == (0, 5)
        assert book.limit("n1", 0, 1) == 1
        book.commit("n1", 2)
        book.close()

    await asyncio.to_thread(plan)
    with pytest.raises(StreamError, match="there is no stream none"):
        await rows(options(shared_broker, stream="none"), 0, 5)
    with pytest.raises(StreamError, match="there is no stream none on n1; create it"):
        await asyncio.to_thread(NodeBook(options(shared_broker, stream="none")).bounds)


async def test_a_reader_without_the_token_is_refused(shared_broker: Broker, stream: str) -> None:
    for token in ("", "another token"):
        with pytest.raises(StreamError, match="the token is missing or wrong"):
            await rows(options(shared_broker, stream=stream, token=token), 0, 1)


async def test_a_token_by_reference_is_read_where_it_is_used(
    shared_broker: Broker, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(shared_broker, 3)
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    monkeypatch.setenv("READERS_TOKEN", TOKEN)
    for reference in ({"tokenFile": str(path)}, {"tokenEnv": "READERS_TOKEN"}):
        given = read_options({"servers": shared_broker.read_at, "stream": stream} | reference, streaming=False)
        sent = pickle.dumps(BatchReader(given))
        assert TOKEN.encode() not in sent and TOKEN not in repr(given)
        reader: BatchReader = pickle.loads(sent)
        assert len(await rows(reader.options, 0, 3)) == 3
    path.unlink()
    monkeypatch.delenv("READERS_TOKEN")
    with pytest.raises(OptionError, match=r"tokenEnv: the variable READERS_TOKEN is not set; .*spark\.executorEnv"):
        await rows(given, 0, 3)
    with pytest.raises(OptionError, match=r"tokenFile: .*cannot be read: No such file"):
        secret_text(read_options({"servers": "a:1", "stream": "s", "tokenFile": str(path)}, True).token)
    with pytest.raises(OptionError, match="tokenFile: token is set as well"):
        read_options({"servers": "a:1", "stream": "s", "token": "x", "tokenFile": "y"}, True)


RULES = """default: deny
rules:
- {allow: stream, users: [ann], streams: [all]}
- {allow: publish}
"""


async def test_a_reader_without_the_right_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "acl.yaml").write_text(RULES)
    config = load_config(None, [*settings(tmp_path / "data"), f"auth.acl.file={tmp_path / 'acl.yaml'}"])

    def known(request: AuthRequest) -> bool:
        return request.username is None or request.password == b"secret"

    async with Broker(config, listeners=["mqtt://127.0.0.1:0"], authenticate=known) as broker:
        await publish(broker, 3)
        ann = options(broker, user="ann", password="secret")
        assert len(await rows(ann, 0, 3)) == 3
        refusals = {
            "an anonymous reader .* may not read stream all": options(broker),
            "user 'bob' may not read stream all; allow it": options(broker, user="bob", password="secret"),
            "user 'ann' was refused: not authorized": options(broker, user="ann", password="guessed"),
            "the token is missing": msgspec.structs.replace(ann, token=""),
        }
        for words, given in refusals.items():
            book = NodeBook(given)
            with pytest.raises(StreamError, match=words):
                await rows(given, 0, 3)
            for ask_for in (book.bounds, lambda book=book: book.seek("n1", 0.0)):
                with pytest.raises(StreamError, match=words):
                    await asyncio.to_thread(ask_for)
            await asyncio.to_thread(book.close)
        (tmp_path / "acl.yaml").write_text(RULES.replace("ann", "bob"))
        broker.reload(config)
        with pytest.raises(StreamError, match="user 'ann' may not read stream all"):
            await rows(ann, 0, 3)


async def test_a_reload_makes_and_changes_streams(broker: Broker, tmp_path: Path) -> None:
    def wanted(*streams: str) -> Config:
        return load_config(None, [*settings(tmp_path), f"streams.define=[{', '.join(streams)}]"])

    await publish(broker, 2, "c")
    broker.reload(wanted("{name: some, topics: [c]}", "{name: all, topics: ['a/#'], retention_time: 1h}"))
    await publish(broker, 3, "c")
    await publish(broker, 1)
    assert len(await rows(options(broker, stream="some"), 0, 3)) == 3
    found = await rows(options(broker), 0, 3)
    assert [row["topic"] for row in found] == ["c", "c", "a/b"], "what was kept stays, and what comes is chosen anew"
    shown = await asyncio.to_thread(lambda: ask(tmp_path, "show", name="all"))
    assert shown["retention_time"] == 3600 and shown["topics"] == ["a/#"]
    with pytest.raises(ConfigError, match=r"streams\.define: stream more: 'a/#/b' is not a topic filter"):
        broker.reload(wanted("{name: new, topics: [x]}", "{name: more, topics: ['a/#/b']}"))
    listed = await asyncio.to_thread(lambda: ask(tmp_path, "list"))
    assert [each["name"] for each in listed["streams"]] == ["all", "some"]


async def test_a_node_that_is_not_there_is_waited_for_and_named(shared_broker: Broker, stream: str) -> None:
    nowhere = options(shared_broker, stream=stream, servers=("127.0.0.1:1",), node_timeout=0.3)
    with pytest.raises(StreamError, match=r"127.0.0.1:1 does not answer: .*option nodeTimeout"):
        await asyncio.to_thread(NodeBook(nowhere).bounds)
    with pytest.raises(StreamError, match=r"node n9 has a part of the stream, but none of .* knows its address"):
        await asyncio.to_thread(NodeBook(options(shared_broker, stream=stream, node_timeout=0.3)).bounds, {"n9": 4})


async def test_a_task_finds_a_node_that_has_come_back_at_another_address(shared_broker: Broker, stream: str) -> None:
    await publish(shared_broker, 5)
    given = options(shared_broker, stream=stream, node_timeout=5.0)
    part = RowPartition("n1", "127.0.0.1:1", 0, 5, False)  # where it was when the batch was planned
    found = await asyncio.to_thread(lambda: [row for batch in read_part(part, given) for row in batch.to_pylist()])
    assert [row["offset"] for row in found] == list(range(5))


async def test_a_node_at_the_address_of_another_one_is_not_taken_for_it(shared_broker: Broker, stream: str) -> None:
    await publish(shared_broker, 5)
    part = RowPartition("n2", shared_broker.read_at, 0, 5, False)
    with pytest.raises(StreamError, match=r"node n2 became unreachable.*no server knows the address of node n2"):
        await asyncio.to_thread(lambda: list(read_part(part, options(shared_broker, stream=stream, node_timeout=0.5))))


@pytest.mark.parametrize("durability", [pytest.param("process", marks=pytest.mark.long), "power"])
async def test_offsets_begin_where_the_settings_say_and_go_on_after_a_start(tmp_path: Path, durability: str) -> None:
    define = "streams.define=[{name: all, topics: ['#'], first_offset: 1000}]"
    config = load_config(None, [*settings(tmp_path), define, f"storage.durability={durability}"])
    for start in range(2):
        async with Broker(config, listeners=["mqtt://127.0.0.1:0"]) as broker:
            await publish(broker, 3)
            (bounds,) = (await asyncio.to_thread(NodeBook(options(broker)).bounds)).values()
            assert (bounds.begin, bounds.first, bounds.next) == (1000, 1000, 1003 + 3 * start)
            found = await rows(options(broker), 1000, 1003 + 3 * start)
            assert [row["offset"] for row in found] == list(range(1000, 1003 + 3 * start))


async def test_a_port_where_something_else_answers_is_told(shared_broker: Broker, stream: str) -> None:
    strange = options(
        shared_broker, stream=stream, servers=(shared_broker.address().partition("//")[2],), node_timeout=0.3
    )
    with pytest.raises(StreamError, match=r"servers needs the port of streams\.listen"):
        await asyncio.to_thread(NodeBook(strange).bounds)
    sink = read_sink_options({"servers": f"mqtt://{shared_broker.read_at}", "nodeTimeout": "1"})
    with pytest.raises(PublishError, match="no MQTT broker answers there; name the port of a listener"):
        await send(sink, AssignedNode(urls=sink.urls), "x", 0, iter([(b"a", b"p", 1, False, b"")]))


async def test_trimmed_messages_are_an_error_or_left_out(
    shared_broker: Broker, shared_node: ThreadBroker, stream: str
) -> None:
    await publish(shared_broker, 100)
    first = (await asyncio.to_thread(lambda: ask(shared_node.data, "trim", name=stream, before="60")))["first"]
    assert 0 < first <= 60
    with pytest.raises(LostRows, match="has been deleted by retention"):
        await rows(options(shared_broker, stream=stream), 0, 100)
    found = await rows(options(shared_broker, stream=stream), 0, 100, forgive=True)
    assert [row["offset"] for row in found] == list(range(first, 100))


async def until(what: Callable[[], bool]) -> None:
    async with within(30):
        while not what():
            await asyncio.sleep(0.02)


async def test_the_process_is_begun_again_where_it_was(broker: Broker) -> None:
    await publish(broker, 3)
    address, process = broker.read_at, broker.read_by
    assert process
    os.kill(process, signal.SIGKILL)
    await until(lambda: broker.read_by not in (0, process))
    assert broker.read_at == address
    assert len(await rows(options(broker, node_timeout=20.0), 0, 3)) == 3


async def test_it_stands_back_for_the_broker(shared_broker: Broker, tmp_path: Path) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert shared_broker.read_by and os.getpriority(os.PRIO_PROCESS, shared_broker.read_by) == min(own + 10, 19)
    even = load_config(None, [*settings(tmp_path / "other", "n2"), "streams.nice=0"])
    async with Broker(even, listeners=["mqtt://127.0.0.1:0"]) as other:
        assert other.read_by and os.getpriority(os.PRIO_PROCESS, other.read_by) == own


async def test_it_keeps_to_its_processors(tmp_path: Path) -> None:
    mine = os.sched_getaffinity(0)
    one = max(mine)
    config = load_config(None, [*settings(tmp_path / "data"), f"streams.processors=[{one}]"])
    async with Broker(config, listeners=["mqtt://127.0.0.1:0"]) as broker:
        assert broker.read_by and os.sched_getaffinity(broker.read_by) == {one}
        assert os.sched_getaffinity(0) == mine
        await publish(broker, 2)
        assert len(await rows(options(broker), 0, 2)) == 2


async def test_processors_that_there_are_none_of_are_told(tmp_path: Path) -> None:
    config = load_config(None, [*settings(tmp_path / "data"), "streams.processors=[4000]"])
    with pytest.raises(ConfigError, match=r"streams\.processors: .*available are \d"):
        async with Broker(config, listeners=["mqtt://127.0.0.1:0"]):
            pass


async def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    tls = [f"cluster.tls.{name}={tmp_path / name}.pem" for name in ("ca", "cert", "key")]
    config = load_config(None, [*settings(tmp_path / "data"), *tls])
    async with Broker(config, listeners=["mqtt://127.0.0.1:0"]) as broker:
        await publish(broker, 2)
        ca = (tmp_path / "ca.pem").read_text()
        assert len(await rows(options(broker, ca=ca), 0, 2)) == 2


async def test_it_is_not_open_to_everyone(tmp_path: Path) -> None:
    config = load_config(None, [*settings(tmp_path), "streams.listen=0.0.0.0:0"])
    with pytest.raises(ConfigError, match=r"set cluster\.tls, or"):
        async with Broker(config, listeners=["mqtt://127.0.0.1:0"]):
            pass


def test_the_columns_are_those_of_spark() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema  # Spark refuses any other

    from starlingmq.spark import COLUMNS

    assert to_arrow_schema(COLUMNS, timezone="UTC").equals(SCHEMA)
    assert isinstance(SCHEMA, pa.Schema)


def test_a_connection_says_what_it_could_not_reach() -> None:
    connection = NodeConnection("127.0.0.1:1", Options(servers=("127.0.0.1:1",), stream="s"))
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1 does not answer"):
        list(connection.rows(Ticket(stream="s", start=0, end=1)))
