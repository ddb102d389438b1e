"""A receiver of OTLP over HTTP, on a free port of loopback: what any collector does with what comes, it keeps."""

from __future__ import annotations

import asyncio
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

PATIENCE = 30.0


class Collector:
    """``with Collector() as collector``: at ``collector.url``. ``status`` is what it answers with."""

    def __init__(self) -> None:
        self.status = 200
        self.headers: list[dict[str, str]] = []
        self._spans: list[tuple[str, Span]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = zlib.decompress(body, 31)
                collector.take({name.lower(): value for name, value in self.headers.items()}, body)
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, headers: dict[str, str], body: bytes) -> None:
        self.headers.append(headers)
        if self.status != 200:
            return
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            words = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                self._spans += [(words["service.instance.id"], span) for span in scope.spans]

    def spans(self) -> list[tuple[str, Span]]:
        """Node and span, in the order of coming."""
        return list(self._spans)

    async def until(self, *names: str) -> dict[str, Span]:
        """Wait for one span of each of these names (``NODE NAME``); the last of each that came."""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    found = {f"{node} {span.name}": span for node, span in self.spans()}
                    if all(name in found for name in names):
                        return found
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{names} did not all come; {sorted(found)} did") from None


def words(span: Span) -> dict[str, Any]:
    """The attributes of a span."""
    return {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in span.attributes}
