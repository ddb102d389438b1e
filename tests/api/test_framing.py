"""Where a request begins and ends: what two readers could read in two ways is refused, and the connection closed."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import pytest

from starlingmq import Broker
from starlingmq.api import body
from starlingmq.api.framing import framing_fault
from tests.patience import within

from .conftest import Serve

BODY: Final = json.dumps({"topic": "first", "payload": "x", "retain": True}).encode()
SMUGGLED_BODY: Final = json.dumps({"topic": "smuggled", "payload": "x", "retain": True}).encode()


def request(headers: bytes, content: bytes, version: bytes = b"1.1") -> bytes:
    head = b"POST /api/v1/publish HTTP/" + version + b"\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + headers + b"\r\n" + content


LENGTH: Final = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
CHUNKS: Final = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
SMUGGLED: Final = request(b"Content-Length: %d\r\n" % len(SMUGGLED_BODY), SMUGGLED_BODY)

HEADS: Final = {
    "both": LENGTH + CHUNKED,
    "both, the other way round": CHUNKED + LENGTH,
    "both, a length of 0": b"Content-Length: 0\r\n" + CHUNKED,
    "two lengths": LENGTH + b"Content-Length: 3\r\n",
    "two equal lengths": LENGTH + LENGTH,
    "a list of lengths": LENGTH.rstrip() + b", %d\r\n" % len(BODY),
    "a length with a sign": b"Content-Length: +%d\r\n" % len(BODY),
    "a negative length": b"Content-Length: -1\r\n",
    "a length in hexadecimal": b"Content-Length: 0x10\r\n",
    "a length with an underscore": b"Content-Length: 1_0\r\n",
    "an empty length": b"Content-Length: \r\n",
    "a length with other digits": b"Content-Length: \xb2\r\n",
    "a huge length": b"Content-Length: " + b"9" * 30 + b"\r\n",
    "another coding": b"Transfer-Encoding: gzip, chunked\r\n",
    "an unknown coding": b"Transfer-Encoding: xchunked\r\n",
    "identity": b"Transfer-Encoding: identity\r\n",
    "chunked twice": CHUNKED + CHUNKED,
    "chunked in quotes": b'Transfer-Encoding: "chunked"\r\n',
    "chunked with a parameter": b"Transfer-Encoding: chunked;q=1\r\n",
    "chunked after a vertical tab": b"Transfer-Encoding: \x0bchunked\r\n",
    "a blank before the colon": b"Transfer-Encoding : chunked\r\n",
    "a blank before the name": b" Transfer-Encoding: chunked\r\n",
    "a folded coding": b"Transfer-Encoding:\r\n chunked\r\n",
    "a folded header": b"X: a\r\n\tb\r\n" + LENGTH,
    "a bare line feed": b"X: a\n" + LENGTH,
    "a bare line feed that hides a coding": b"X: a\nTransfer-Encoding: chunked\r\n",
    "a bare carriage return": b"X: a\rTransfer-Encoding: chunked\r\n" + LENGTH,
    "a NUL": b"X: a\0\r\n" + LENGTH,
    "no name": b": a\r\n" + LENGTH,
    "no colon": b"nothing\r\n" + LENGTH,
    "two hosts": b"Host: localhost\r\n" + LENGTH,
}

CHUNKS_ODD: Final = {
    "no number": b"\r\nx\r\n0\r\n\r\n",
    "a sign": b"+1\r\nx\r\n0\r\n\r\n",
    "a prefix": b"0x1\r\nx\r\n0\r\n\r\n",
    "a blank before the number": b" 1\r\nx\r\n0\r\n\r\n",
    "too short a chunk": b"1\r\nxyz\r\n0\r\n\r\n",
    "no end of a chunk": b"1\r\nx0\r\n\r\n",
    "a wrong end of a chunk": b"1\r\nxXX0\r\n\r\n",
    "a number of many digits": b"0" * 30 + b"1\r\nx\r\n0\r\n\r\n",
    "a huge chunk": b"ffffffffffffffffff\r\nx",
    "an endless extension": b"1;" + b"x" * 400_000 + b"\r\nx\r\n0\r\n\r\n",
    "endless trailers": b"0\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
    "a trailer that is none": b"0\r\nContent Length: 5\r\n\r\n",
}


async def answers(broker: Broker, sent: bytes) -> list[int]:
    """The status of each answer until the server closes the connection."""
    host, _, port = broker.address("http").partition("://")[2].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    found = b""
    try:
        writer.write(sent)
        async with within(20):
            while data := await reader.read(65536):
                found += data
    except ConnectionError:
        pass  # it did not read everything, which is its right
    finally:
        writer.close()
    return [int(part[:3]) for part in found.split(b"HTTP/1.1 ")[1:]]


def published(broker: Broker) -> list[str]:
    return [topic.decode() for topic in (b"first", b"smuggled") if broker.state.retained.get(topic)]


@pytest.mark.parametrize("name", HEADS)
async def test_a_head_that_could_be_read_in_two_ways_is_refused(serve: Serve, name: str, caplog: Any) -> None:
    broker = await serve()
    for sent in (BODY, CHUNKS):
        # Where the body is malformed as well, the connection is closed without a word.
        assert await answers(broker, request(HEADS[name], sent) + SMUGGLED) in ([400], []), name
    assert published(broker) == [] and not caplog.records


async def test_a_coding_does_not_go_with_http_1_0(serve: Serve) -> None:
    broker = await serve()
    assert await answers(broker, request(CHUNKED, CHUNKS, b"1.0") + SMUGGLED) == [400]
    assert published(broker) == []


@pytest.mark.parametrize("name", CHUNKS_ODD)
async def test_odd_chunks_are_refused(serve: Serve, name: str, caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_SECONDS", 0.5)
    broker = await serve()
    assert await answers(broker, request(CHUNKED, CHUNKS_ODD[name]) + SMUGGLED) in ([400], [408], [])
    assert published(broker) == []
    assert not caplog.records


async def test_well_framed_requests_are_served_one_after_the_other(serve: Serve) -> None:
    broker = await serve()
    last = SMUGGLED.replace(b"Host:", b"Connection: close\r\nHost:")
    assert await answers(broker, request(LENGTH, BODY) + request(CHUNKED, CHUNKS) + last) == [200, 200, 200]
    assert published(broker) == ["first", "smuggled"]


async def test_the_second_request_on_a_connection_is_looked_at_as_the_first(serve: Serve) -> None:
    broker = await serve()
    good = request(LENGTH, BODY)
    for name in ("both", "two equal lengths", "a bare line feed", "a folded header"):
        assert await answers(broker, good + request(HEADS[name], BODY) + SMUGGLED) in ([200, 400], [200]), name
    assert published(broker) == ["first"]


async def test_the_body_of_a_refused_request_is_no_request(serve: Serve, token_file: str) -> None:
    """It is not read, and so the connection ends."""
    broker = await serve(auth={"api": {"token_file": token_file}, "failures": {"delay": 0}})
    for target in (b"/api/v1/publish", b"/health/live", b"/nothing", b"//api/v1/publish", b"/docs"):
        sent = b"POST " + target + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(SMUGGLED)
        (status,) = await answers(broker, sent + SMUGGLED)
        assert status in (401, 404, 405), target
    assert published(broker) == []


@pytest.mark.parametrize(
    ("head", "fault"),
    [
        (b"GET / HTTP/1.1\r\nA: b\r\n\r\n", ""),
        (b"GET / HTTP/1.1\r\n\r\nrest\n of it", ""),
        (b"POST / HTTP/1.1\r\ncontent-LENGTH:  5 \r\n\r\n", ""),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: Chunked\r\n\r\n", ""),
        (b"GET / HTTP/1.1\nA: b\n\n", "CR LF"),
        (b"GET / HTTP/1.1\r\nA: b\n\r\n\r\n", "CR LF"),
        (b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", "one line"),
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "must not be combined"),
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", "a single number"),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1"),
    ],
)
def test_faults_of_a_head(head: bytes, fault: str) -> None:
    found = framing_fault(head)
    assert (fault in found) if fault else found == ""
