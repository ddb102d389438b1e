"""``starlingmq pub``: publish messages, with the options of mosquitto_pub."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final

import typer

from starlingmq.cli.client_args import ClientArgs, Qos
from starlingmq.cli.declare import CommandError, command_of
from starlingmq.client import Client, ClientError
from starlingmq.client.client import acknowledged
from starlingmq.client.events import Completed
from starlingmq.client.options import QOS

READ_SIZE: Final = 64 * 1024  # bytes of stdin per read
BATCHES_AHEAD: Final = 4  # reads whose lines are not yet published
UNANSWERED_MAX: Final = 2000  # messages that wait to be sent or acknowledged


@dataclass(kw_only=True)
class PubArgs(ClientArgs):
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Topic to publish to.")] = None
    message: Annotated[str | None, typer.Option("-m", "--message", help="Payload.")] = None
    file: Annotated[str | None, typer.Option("-f", "--file", help="Send the content of a file.")] = None
    lines: Annotated[bool, typer.Option("-l", "--stdin-line", help="Send each line of stdin as a message.")] = False
    stdin: Annotated[bool, typer.Option("-s", "--stdin-file", help="Send all of stdin as one message.")] = False
    null: Annotated[bool, typer.Option("-n", "--null-message", help="Send an empty message.")] = False
    qos: Qos = 0
    retain: Annotated[bool, typer.Option("-r", "--retain", help="Retain the message.")] = False
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Number of times to publish it.")] = 1
    repeat_delay: Annotated[float, typer.Option("--repeat-delay", min=0.0, help="Seconds between repetitions.")] = 0.0
    max_inflight: Annotated[
        int, typer.Option("-M", "--max-inflight", min=1, max=65535, help="Maximum number of unacknowledged messages.")
    ] = 1000

    takes_words: ClassVar = True

    def check(self) -> str:
        """Return the topic. Raises CommandError without a topic, or unless exactly one source of the payload is
        given.
        """
        self._take_words()
        sources = [self.message is not None, self.file is not None, self.lines, self.stdin, self.null]
        if sum(sources) != 1:
            problem = "nothing to send" if not any(sources) else "more than one thing to send"
            raise CommandError(
                f"{problem}: give one of -m TEXT, -f FILE, -l, -s or -n, or: starlingmq pub TOPIC MESSAGE"
            )
        topic = self.topic or self.url_topic()
        if not topic:
            raise CommandError("no topic given: starlingmq pub TOPIC MESSAGE, or -t TOPIC")
        if "+" in topic or "#" in topic:
            raise CommandError(
                f"-t {topic}: a topic to publish to must not contain wildcards; they are for `starlingmq sub`"
            )
        return topic

    def _take_words(self) -> None:
        """Words without an option are the topic, and then the message, if no option names them."""
        words = self.properties().rest
        if words and not (self.topic or self.url_topic()):
            self.topic = words.pop(0)
        if words and not (self.message is not None or self.file is not None or self.lines or self.stdin or self.null):
            self.message = words.pop(0)
        if words:
            raise CommandError(f"unexpected argument {words[0]!r}; a message of several words needs quotes")

    def payload(self) -> bytes:
        if self.message is not None:
            return self.message.encode(errors="surrogateescape")  # bytes of the command line that are not UTF-8
        if self.file is not None:
            return Path(self.file).read_bytes()
        return sys.stdin.buffer.read() if self.stdin else b""


def run(args: PubArgs) -> int:
    """Publish messages to a topic: `starlingmq pub -t greeting -m hello`.

    Without options, the first word is the topic and the second one the message: `starlingmq pub greeting hello`.
    """
    topic = args.check()
    client = args.client(max_inflight=args.max_inflight)
    payload = b"" if args.lines else args.payload()
    try:
        asyncio.run(_publish(client, args, topic, payload))
    except (ClientError, ValueError) as error:
        raise CommandError(str(error)) from error
    return 0


async def _publish(client: Client, args: PubArgs, topic: str, payload: bytes) -> None:
    properties = args.properties()
    await client.connect()
    try:
        sender = Sender(client, args, topic)
        if args.lines:
            async for line in stdin_lines():
                await sender.send(line)
        else:
            for number in range(args.repeat):
                if number and args.repeat_delay:
                    await asyncio.sleep(args.repeat_delay)
                await sender.send(payload)
        await sender.finish()
    finally:
        await client.disconnect(properties=properties.of("disconnect"))


class Sender:
    """Keeps many messages in flight; the first refused one ends the command."""

    def __init__(self, client: Client, args: PubArgs, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._qos = args.qos
        self._retain = args.retain
        self._properties = args.properties().of("publish")
        self._unanswered: deque[asyncio.Future[Completed]] = deque()

    async def send(self, payload: bytes) -> None:
        if self._qos == 0:
            await self._client.publish(self._topic, payload, 0, self._retain, self._properties)
            return
        while self._unanswered and (self._unanswered[0].done() or len(self._unanswered) >= UNANSWERED_MAX):
            acknowledged(self._topic, await self._unanswered.popleft())
        self._unanswered.append(
            self._client.publish_soon(self._topic, payload, QOS[self._qos], self._retain, self._properties)
        )

    async def finish(self) -> None:
        while self._unanswered:
            acknowledged(self._topic, await self._unanswered.popleft())


async def stdin_lines() -> AsyncIterator[bytes]:
    """Yield the lines of stdin as they arrive, without line ends.

    A thread reads them, because stdin may be a file, which an event loop cannot wait for. It is a daemon, because a
    read from a terminal cannot be interrupted and the command must be able to end. It uses ``os.read``, because a
    buffered reader would be locked at that time.
    """
    loop = asyncio.get_running_loop()
    batches: asyncio.Queue[list[bytes]] = asyncio.Queue()
    room = threading.Semaphore(BATCHES_AHEAD)

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the rest is not needed
            for batch in _batches(sys.stdin.fileno()):
                room.acquire()
                loop.call_soon_threadsafe(batches.put_nowait, batch)
            loop.call_soon_threadsafe(batches.put_nowait, [])

    threading.Thread(target=read, daemon=True).start()
    while batch := await batches.get():
        room.release()
        for line in batch:
            yield line


def _batches(descriptor: int) -> Iterator[list[bytes]]:
    """Yield lists of whole lines; the last line need not end in a line feed."""
    unfinished: list[bytes] = []  # joined when its end has arrived: a long line takes many reads
    while data := os.read(descriptor, READ_SIZE):
        first, *rest = data.split(b"\n")
        unfinished.append(first)
        if rest:
            batch = [b"".join(unfinished), *rest]
            unfinished = [batch.pop()]
            yield batch
    if last := b"".join(unfinished):
        yield [last]


command = pub = command_of(PubArgs, run)
