"""A broker whose messages OpenTelemetry follows: real spans of applications, a real receiver of OTLP over HTTP."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import nats
from starlingmq import Broker
from starlingmq.config.settings import Config, ConfigError, from_tree
from starlingmq.otel import export
from starlingmq.otel.export import END_SECONDS
from starlingmq.wire.mqtt import Ack, Publish
from starlingmq.wire.packets import PUBACK
from starlingmq.wire.properties import USER_PROPERTY, Properties, encode_property_bytes
from tests.embedding.conftest import Join, Serve, join, serve
from tests.otel.collector import Collector, words
from tests.patience import slowness, within

__all__ = ["join", "serve"]

NODE = {"name": "n1", "shutdown_timeout": 0.1}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans are sent as soon as there are some, and no wait is long."""
    monkeypatch.setattr(export, "DELAY_MS", 20)
    monkeypatch.setattr(export, "EXPORT_SECONDS", 0.5)


def traced(collector: Collector, **more: object) -> dict[str, object]:
    return {"node": NODE, "tracing": {"endpoint": collector.url, "ratio": 0.0, **more}}


def settings(tracing: dict[str, object]) -> Config:
    return from_tree({"listeners": ["mqtt://127.0.0.1:0"], "node": NODE, "tracing": tracing})


async def test_the_trace_of_an_application_goes_on_through_the_broker(serve: Serve, join: Join) -> None:
    with Collector() as collector:
        broker = await serve(**traced(collector))
        author, reader = await join(broker, "author"), await join(broker, "reader")
        await reader.subscribe("a/#", qos=1)
        with TracerProvider().get_tracer("app").start_as_current_span("measure") as own:
            carrier: dict[str, str] = {}
            TraceContextTextMapPropagator().inject(carrier)
        properties: Properties = {USER_PROPERTY: [("unit", "K"), *carrier.items()]}
        await author.publish("a/plain", b"nobody traces this", 1)
        await author.publish("a/b", b"281", 1, properties=encode_property_bytes(properties))
        got = [await reader.expect(Publish) for _ in range(2)]
        assert got[1].properties == encode_property_bytes(properties), "what the application said goes on unaltered"
        reader.send(*(Ack(PUBACK, one.packet_id) for one in got))
        found = await collector.until("n1 accept", "n1 deliver", "n1 acknowledge")
        accept, deliver, acknowledge = (found[f"n1 {name}"] for name in ("accept", "deliver", "acknowledge"))
        trace = own.get_span_context()
        assert {span.trace_id for span in found.values()} == {trace.trace_id.to_bytes(16, "big")}
        assert accept.parent_span_id == trace.span_id.to_bytes(8, "big")
        assert deliver.parent_span_id == accept.span_id and acknowledge.parent_span_id == deliver.span_id
        assert (accept.kind, deliver.kind) == (Span.SPAN_KIND_SERVER, Span.SPAN_KIND_PRODUCER)
        assert words(deliver)["messaging.client.id"] == "reader"
        assert words(deliver)["messaging.destination.name"] == "a/b"
        assert abs(accept.start_time_unix_nano / 1e9 - time.time()) < 60
        assert len(collector.spans()) == 3


async def test_nats_clients_are_followed_by_their_header(serve: Serve) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with Collector() as collector:
        broker = await serve(listeners=["nats://127.0.0.1:0"], **traced(collector))
        client = await nats.connect(broker.address("nats"))
        try:
            inbox = await client.subscribe("a.b")
            await client.publish("a.b", b"x", headers={"Traceparent": parent})
            got = await inbox.next_msg(timeout=10)
            assert got.headers == {"Traceparent": parent}
        finally:
            await client.close()
        found = await collector.until("n1 accept", "n1 deliver")
        assert found["n1 accept"].trace_id.hex() == "4bf92f3577b34da6a3ce929d0e0e4736"


async def test_a_dropped_message_is_an_error_span_and_begins_a_trace_without_a_parent(serve: Serve, join: Join) -> None:
    with Collector() as collector:
        options = traced(collector, ratio=1.0)
        broker = await serve(**options, mqtt={"max_mqueue_len": 1})
        reader = await join(broker, "reader", clean_start=False, properties={0x11: 100})
        await reader.subscribe("a", qos=1)
        await reader.close()
        author = await join(broker, "author")
        for payload in (b"first", b"second"):
            await author.publish("a", payload, 1)
        found = await collector.until("n1 accept", "n1 drop")
        drop = found["n1 drop"]
        assert drop.status.code == Status.STATUS_CODE_ERROR and drop.status.message == "queue_full"
        (first,) = [span for _, span in collector.spans() if span.span_id == drop.parent_span_id]
        assert first.name == "accept" and first.parent_span_id == b"" and first.trace_id == drop.trace_id


async def test_settings_change_while_it_serves(serve: Serve, join: Join, tmp_path: Path) -> None:
    key = tmp_path / "headers"
    key.write_text("# of the collector\nX-Key: k1\n")
    with Collector() as one, Collector() as other:
        broker = await serve(node=NODE)
        author = await join(broker, "author")
        assert broker.state.ctx.audit is None
        tracing: dict[str, object] = {"endpoint": one.url, "ratio": 1.0, "headers_file": str(key)}
        broker.reload(settings(tracing))
        await author.publish("a", b"x", 1)
        await one.until("n1 accept")
        assert one.headers[0]["x-key"] == "k1" and one.headers[0]["content-type"] == "application/x-protobuf"
        broker.reload(settings({**tracing, "ratio": 0.0}))
        await author.publish("a", b"not chosen", 1)
        broker.reload(settings({**tracing, "endpoint": other.url}))
        await author.publish("a", b"x", 1)
        await other.until("n1 accept")
        assert (len(one.spans()), len(other.spans())) == (1, 1)
        with pytest.raises(ConfigError, match="headers_file"):
            broker.reload(settings({**tracing, "headers_file": str(tmp_path / "none")}))
        broker.reload(settings({}))
        await author.publish("a", b"x", 1)
        assert broker.state.ctx.audit is None


async def test_the_last_spans_are_exported_at_the_end(serve: Serve, join: Join) -> None:
    with Collector() as collector:
        broker = await serve(**traced(collector, ratio=1.0))
        author = await join(broker, "author")
        await author.publish("a", b"x", 1)
        await broker.stop()
        assert [span.name for _, span in collector.spans()] == ["accept"]


async def test_a_collector_that_is_away_is_told_of_once_and_nobody_waits(
    serve: Serve, join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1/traces"  # it takes connections, and says nothing
        with caplog.at_level(logging.INFO, "starlingmq.otel"):
            broker = await serve(node=NODE, tracing={"endpoint": url, "ratio": 1.0})
            author = await join(broker, "author")
            async with within(20):
                while "does not accept spans" not in caplog.text:
                    await author.publish("a", b"x", 1)
                    await asyncio.sleep(0.05)
            start = time.monotonic()
            await broker.stop()
            assert time.monotonic() - start < END_SECONDS + 2 * slowness()
    assert caplog.text.count("does not accept spans") == 1


async def test_figures_tell_what_was_traced_and_lost(serve: Serve, join: Join) -> None:
    with Collector() as collector:
        listeners = ["mqtt://127.0.0.1:0", "http://127.0.0.1:0"]
        broker = await serve(listeners=listeners, **traced(collector, ratio=1.0, rate=1))
        author = await join(broker, "author")
        for _ in range(3):
            await author.publish("a", b"x", 1)
        await collector.until("n1 accept")
        async with within(20):
            while "starlingmq_traced_spans_total 0.0" in (text := await metrics(broker)):
                await asyncio.sleep(0.02)
        assert "starlingmq_traced_spans_lost_total 0.0" in text
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("starlingmq_traced_"))
        chosen, left_out = (float(lines[f"starlingmq_traced_{name}_total"]) for name in ("messages", "left_out"))
        assert chosen >= 1 and chosen + left_out == 3


async def metrics(broker: Broker) -> str:
    url = broker.address("http")
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET /metrics HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    return text


async def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("starlingmq.otel", "opentelemetry"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[otel\]' in the sources"):
        await Broker(settings({"endpoint": "http://127.0.0.1:4318/v1/traces"})).start()


@pytest.mark.parametrize(
    ("tracing", "line"),
    [
        (
            {"endpoint": "127.0.0.1:4318"},
            "tracing.endpoint: '127.0.0.1:4318' is not a URL starting with http:// or https://",
        ),
        ({"endpoint": "http://[::1/"}, "tracing.endpoint: 'http://[::1/' is not a URL"),
        ({"endpoint": "https://me:key@host/"}, "tracing.endpoint: a URL must not contain a user name or password"),
        ({"headers_file": "x"}, "tracing.headers_file: has no effect without tracing.endpoint; set tracing.endpoint"),
        ({"ratio": 1.5}, "tracing.ratio: "),
        ({"rate": 0}, "tracing.rate: "),
    ],
)
def test_wrong_settings_are_named(tracing: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(tracing)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["no colon", "name:", ": value", "name: \x1b[31m"])
async def test_a_headers_file_with_nonsense_is_named_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "headers"
    path.write_text(f"a: b\n{text}\n", encoding="utf-8")
    config = settings({"endpoint": "http://127.0.0.1:9/", "headers_file": str(path)})
    with pytest.raises(ConfigError) as caught:
        await Broker(config).start()
    assert str(caught.value).startswith(f"tracing.headers_file: {path}") and "line 2: expected" in str(caught.value)
