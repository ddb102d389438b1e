"""Export of spans to a collector by OTLP over HTTP. A thread of the SDK sends them, so the event loop does not wait."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Sequence
from time import time_ns
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from starlingmq._version import __version__
from starlingmq.config.secret_masking import without_login
from starlingmq.net.connector_counts import ConnectorCounts
from starlingmq.otel.steps import Step

log = logging.getLogger("starlingmq.otel")

QUEUED_MAX: Final = 4096  # spans; further ones are dropped and counted
BATCH: Final = 256
DELAY_MS: Final = 1000  # between two exports
EXPORT_SECONDS: Final = 3.0  # for one export, including retries
END_SECONDS: Final = 2.0  # for the rest at the end
NOT_ACCEPTED: Final = "spans were not accepted, or there was no answer"

KINDS: Final = {
    "server": SpanKind.SERVER,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
    "internal": SpanKind.INTERNAL,
}
SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class Ids(IdGenerator):
    """The ids of the step for which a span is being created."""

    def __init__(self) -> None:
        self.trace = 0
        self.span = 0

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        return self.span


class Counting(SpanExporter):
    """Logs once that a collector does not accept spans, and once that it does again. Called by the SDK's thread."""

    def __init__(self, inner: SpanExporter, endpoint: str) -> None:
        self._inner = inner
        self.endpoint = endpoint
        self.counts = ConnectorCounts()
        self.failing = False
        self.ending = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.ending and self.failing:  # there is no time for retries
            self.counts.fail(NOT_ACCEPTED, len(spans))
            return SpanExportResult.FAILURE
        result = self._inner.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed:
            self.counts.fail(NOT_ACCEPTED, len(spans))
        else:
            self.counts.accept(len(spans))
        if failed != self.failing:
            self.failing = failed
            if failed:
                log.warning("%s does not accept spans (tracing.endpoint); spans are lost until it does", self.endpoint)
            else:
                log.info("%s accepts spans again; %d were lost", self.endpoint, self.counts.failed)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()


class Export:
    """Call ``put`` for spans, then ``close``. ``exporter`` replaces that of OTLP, for tests."""

    def __init__(self, node: str, endpoint: str, headers: dict[str, str], exporter: SpanExporter | None = None) -> None:
        # Without logging of its own, a program would show the SDK's messages on stderr.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        inner = exporter or OTLPSpanExporter(endpoint, headers=headers, timeout=EXPORT_SECONDS)
        self.counting = Counting(inner, without_login(endpoint))
        self._ids = Ids()
        self._resource = Resource.create(
            {"service.name": "starlingmq", "service.instance.id": node, "service.version": __version__}
        )
        self._provider = TracerProvider(ALWAYS_ON, self._resource, shutdown_on_exit=False, id_generator=self._ids)
        self._processor = BatchSpanProcessor(self.counting, QUEUED_MAX, DELAY_MS, BATCH)
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("starlingmq", __version__)

    def put(self, step: Step) -> None:
        self._ids.trace, self._ids.span = step.trace, step.span
        context = trace.set_span_in_context(trace.INVALID_SPAN)  # not the span of the embedding program
        if step.parent:
            parent = SpanContext(step.trace, step.parent, step.remote, SAMPLED)
            context = trace.set_span_in_context(NonRecordingSpan(parent))
        span = self._tracer.start_span(
            step.name, context, KINDS[step.kind], step.attributes, start_time=int(step.start * 1e9)
        )
        if step.error:
            span.set_status(Status(StatusCode.ERROR, step.error))
        span.end(int(step.end * 1e9))

    async def test(self) -> str:
        """Export one span with the name "connector test"; return the problem, "" if the collector accepts it."""
        context = SpanContext(secrets.randbits(128) or 1, secrets.randbits(64) or 1, False, SAMPLED)
        now = time_ns()
        span = ReadableSpan("connector test", context, resource=self._resource, start_time=now, end_time=now)
        result = await asyncio.to_thread(self.counting.export, [span])
        return "" if result is SpanExportResult.SUCCESS else NOT_ACCEPTED

    async def close(self) -> None:
        """Send the rest, for at most ``END_SECONDS``."""
        self.counting.ending = True
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def end() -> None:
            self._provider.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=end, name="last-spans", daemon=True).start()
        try:
            async with asyncio.timeout(END_SECONDS):
                await ended.wait()
        except TimeoutError:
            log.warning("some spans were not exported at shutdown, because %s is slow", self.counting.endpoint)
