"""Requests that are cheap to send and costly to read, such as thousands of headers or chunks, are refused unread."""

from __future__ import annotations

from typing import Any, Final

import h11
import pytest

from starlingmq.api.asgi import HEAD_BYTES_MAX
from starlingmq.api.framing import CHUNKS_MAX, LINES_MAX, BoundedConnection

from .conftest import Serve
from .test_framing import BODY, CHUNKED, SMUGGLED, answers, published, request

pytestmark = pytest.mark.security

GET: Final = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
GET_CHUNKED: Final = GET + CHUNKED + b"\r\n"


def chunks(number: int) -> bytes:
    return b"1\r\nx\r\n" * number


def events(*reads: bytes) -> list[Any]:
    """The events that h11 parses; the last one is an error, or the need for more data."""
    connection = BoundedConnection(HEAD_BYTES_MAX)
    found: list[Any] = []
    for data in reads:
        connection.receive_data(data)
        while True:
            try:
                event = connection.next_event()
            except h11.RemoteProtocolError as error:
                return [*found, str(error)]
            if event in (h11.NEED_DATA, h11.PAUSED):
                break
            found.append(type(event))
    return found


def split(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


LINES: Final = f"a request may have at most {LINES_MAX} header lines"
TOO_MANY_CHUNKS: Final = f"a request body may have at most {CHUNKS_MAX} chunks"


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize(
    ("sent", "last"),
    [
        (GET + b"a:\r\n" * (LINES_MAX - 2) + b"\r\n", h11.EndOfMessage),
        (GET + b"a:\r\n" * (LINES_MAX - 1), LINES),
        (GET + b"a:\r\n" * (LINES_MAX - 1) + b"\r\n", LINES),
        (GET + b"a:\n" * (LINES_MAX - 1) + b"\n", LINES),
        (GET_CHUNKED + chunks(CHUNKS_MAX) + b"0\r\n\r\n", h11.EndOfMessage),
        (GET_CHUNKED + chunks(CHUNKS_MAX + 1), TOO_MANY_CHUNKS),
        (GET_CHUNKED + b"0\r\n" + b"a:\r\n" * LINES_MAX + b"\r\n", h11.EndOfMessage),
        (GET_CHUNKED + b"0\r\n" + b"a:\r\n" * (LINES_MAX + 1), LINES),
        (GET_CHUNKED + chunks(2) + b"000;x\r\n" + b"a:\r\n" * (LINES_MAX + 1) + b"\r\n", LINES),
    ],
)
def test_lines_and_chunks_are_counted(sent: bytes, last: Any, in_pieces: bool) -> None:
    found = events(*(split(sent) if in_pieces else [sent]))[-1]
    assert found == last or (isinstance(found, str) and found.startswith(str(last)))


def test_data_that_looks_like_trailers_is_data() -> None:
    data = b"0\r\n" + b"a:\r\n" * 1_000
    head = GET_CHUNKED + b"%x\r\n" % len(data)
    assert events(head, data, b"\r\n0\r\n\r\n")[-1] is h11.EndOfMessage
    assert events(head + data[:1], data[1:] + b"\r\n", b"0\r\n\r\n")[-1] is h11.EndOfMessage
    assert events(head, data + b"\r", b"\n0\r\n", b"a:\r\n" * (LINES_MAX + 1))[-1] == LINES


def test_a_body_with_a_length_may_come_in_any_number_of_pieces() -> None:
    assert events(GET + b"Content-Length: 1000\r\n\r\n", *[b"x"] * 1_000)[-1] is h11.EndOfMessage


def test_each_request_of_a_connection_has_its_own_bound() -> None:
    connection = BoundedConnection(HEAD_BYTES_MAX)
    for _ in range(3):
        connection.receive_data(GET_CHUNKED + chunks(CHUNKS_MAX) + b"0\r\n\r\n")
        while not isinstance(connection.next_event(), h11.EndOfMessage):
            pass
        connection.send(h11.Response(status_code=200, headers=[(b"content-length", b"0")]))
        connection.send(h11.EndOfMessage())
        connection.start_next_cycle()


@pytest.mark.parametrize(
    "sent",
    [
        GET + b"a:\r\n" * 7_000 + b"\r\n",
        GET_CHUNKED + chunks(50_000),
        request(CHUNKED, chunks(50_000)),
        GET_CHUNKED + b"0\r\n" + b"a:\r\n" * 7_000 + b"\r\n",
    ],
)
async def test_exceeding_a_bound_ends_the_connection(serve: Serve, sent: bytes, caplog: Any) -> None:
    broker = await serve()
    assert await answers(broker, sent + SMUGGLED) in ([400], [])
    assert published(broker) == [] and not caplog.records


async def test_a_body_in_as_many_chunks_as_there_may_be_is_taken(serve: Serve) -> None:
    broker = await serve()
    padding = b"".join(b"1\r\n \r\n" for _ in range(CHUNKS_MAX - 1))
    whole = padding + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    sent = request(CHUNKED + b"Connection: close\r\n", whole)
    assert await answers(broker, sent) == [200]
    assert published(broker) == ["first"]
