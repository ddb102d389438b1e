"""A target that answers oddly: an attempt ends in one line, or its rows are delivered, in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from starlingmq.config.rules_section import RuleSink
from starlingmq.rules.http_target import HttpTarget
from starlingmq.rules.rule_target import RefusedRows, UnusableTarget
from tests.patience import within

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


async def outcome(answer: Answer, token: bytes | None = None, directory: Path = Path()) -> str:
    """The outcome of a batch: "" if it is stored."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    file = ""
    if token is not None:
        (directory / "token").write_bytes(token)
        file = str(directory / "token")
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    target = HttpTarget(RuleSink(format="http", url=url, token_file=file, timeout=0.5), lambda *_: None, print)
    try:
        async with within(8):
            await target.open()
            await target.write(["{}"])
    except (RefusedRows, UnusableTarget) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        await target.close()
        server.close()
    return ""


def drip(head: bytes, each: bytes) -> Answer:
    """Bytes without an end, each long before a timeout."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while not writer.is_closing():
            writer.write(each)
            await writer.drain()
            await asyncio.sleep(0.05)

    return answer


def once(data: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return answer


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (drip(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"), "UnusableTarget: no answer within 0.5 s"),
        (drip(b"HTTP/1.1 200 OK\r\n\r\n", b"x"), ""),
        (drip(b"HTTP/1.1 422 No\r\n\r\n", b"x"), "RefusedRows: it answers 422 No: xxx"),
        (once(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"), ""),
        (
            once(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"),
            "UnusableTarget: it answers 302 Found",
        ),
        (
            once(b"HTTP/1.1 422 No\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"),
            "RefusedRows: it answers 422",
        ),
        (once(b"what\r\n\r\n"), "UnusableTarget: "),
        (once(b""), "UnusableTarget: "),
    ],
)
async def test_an_answer_has_an_outcome(answer: Answer, told: str) -> None:
    found = await outcome(answer)
    assert found == told == "" or (told and found.startswith(told)), found


@pytest.mark.parametrize("token", [b"canary\nsecond", b"can\xc3\xa4ry", b"", b"\n"])
async def test_a_token_that_cannot_be_sent_is_not_shown(tmp_path: Path, token: bytes) -> None:
    found = await outcome(once(b"HTTP/1.1 204 x\r\n\r\n"), token, tmp_path)
    assert "must have one line of ASCII" in found and "canary" not in found
