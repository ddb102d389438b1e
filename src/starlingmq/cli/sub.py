"""``starlingmq sub``: subscribe and print messages, with the options of mosquitto_sub.

Exit code 0 after ``-C`` messages, ``-E``, ``--retained-only``, Ctrl-C and SIGTERM; 27 when the time of ``-W`` is over.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final

import typer

from starlingmq.cli.client_args import ClientArgs, Qos
from starlingmq.cli.declare import CommandError, command_of
from starlingmq.cli.output import NotJson, Printer, as_json, formatted, plain, verbose
from starlingmq.client import Client, ClientError, Message, Subscription
from starlingmq.client.options import QOS
from starlingmq.core.topics.topics import matches, valid_filter

TIMED_OUT: Final = 27


@dataclass(kw_only=True)
class SubArgs(ClientArgs):
    topics: Annotated[list[str], typer.Option("-t", "--topic", help="Topic filter; repeatable.")] = field(
        default_factory=list
    )
    unsubscribe: Annotated[
        list[str], typer.Option("-U", "--unsubscribe", help="Unsubscribe from this filter; repeatable.")
    ] = field(default_factory=list)
    qos: Qos = 0
    count: Annotated[int, typer.Option("-C", min=0, help="Exit after this number of messages.")] = 0
    wait: Annotated[float, typer.Option("-W", min=0.0, help="Exit after this number of seconds, with code 27.")] = 0.0
    exit_subscribed: Annotated[bool, typer.Option("-E", help="Exit after the broker has acknowledged.")] = False
    no_retained: Annotated[bool, typer.Option("-R", help="Do not print retained messages.")] = False
    retained_only: Annotated[
        bool, typer.Option("--retained-only", help="Print retained messages, and exit at the first other one.")
    ] = False
    remove_retained: Annotated[
        bool, typer.Option("--remove-retained", help="Delete each retained message that arrives.")
    ] = False
    filter_out: Annotated[
        list[str], typer.Option("-T", "--filter-out", help="Do not print messages whose topic matches; repeatable.")
    ] = field(default_factory=list)
    no_local: Annotated[
        bool, typer.Option("--no-local", help="Do not receive messages published by this client (MQTT 5).")
    ] = False
    retain_as_published: Annotated[
        bool, typer.Option("--retain-as-published", help="Keep the retain flag of live messages (MQTT 5).")
    ] = False
    retain_handling: Annotated[
        int,
        typer.Option(
            "--retain-handling",
            min=0,
            max=2,
            help="Retained messages: 0 send, 1 send for new subscriptions, 2 never (MQTT 5).",
        ),
    ] = 0
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print the topic before the payload.")] = False
    format: Annotated[
        str | None, typer.Option("-F", help="Format as in mosquitto_sub: %t %p %q %r %l %j %I ... @H \\n.")
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per message.")] = False
    no_newline: Annotated[bool, typer.Option("-N", help="No line break after a message.")] = False
    reconnect: Annotated[
        bool, typer.Option("--reconnect/--no-reconnect", help="Reconnect when the connection is lost.")
    ] = True

    takes_words: ClassVar = True

    def subscriptions(self) -> list[Subscription]:
        """Return the subscriptions. Raises CommandError if there is none, or for an invalid topic filter."""
        topic = self.url_topic()
        filters = self.topics + ([topic] if topic else []) + self.properties().rest
        if not filters and not self.unsubscribe:
            raise CommandError("no topic filter given: starlingmq sub FILTER, or -t FILTER")
        for each in filters + self.unsubscribe + self.filter_out:
            if not valid_filter(each.encode()):
                raise CommandError(f"{each!r} is not a topic filter: + must be a whole level, and # the last one")
        return [
            Subscription(
                filter=each,
                qos=QOS[self.qos],
                no_local=self.no_local,
                retain_as_published=self.retain_as_published,
                retain_handling=self.retain_handling,
            )
            for each in filters
        ]

    def printer(self) -> Printer:
        if self.format is not None:
            return formatted(self.format)
        if self.json:
            return as_json
        return verbose if self.verbose else plain


def run(args: SubArgs) -> int:
    """Print the messages of topics: `starlingmq sub -t 'sensors/#' -v`.

    Words without an option are topic filters, too: `starlingmq sub 'sensors/#'`.
    """
    session = SubRun(args)
    try:
        return asyncio.run(session.run())
    except (ClientError, ValueError) as error:
        raise CommandError(str(error)) from error


class SubRun:
    """One run of the command."""

    def __init__(self, args: SubArgs) -> None:
        self._args = args
        self._subscriptions = args.subscriptions()
        self._properties = args.properties()
        self._client: Client = args.client(reconnect=args.reconnect)
        self._printer = args.printer()
        self._end = b"" if args.no_newline else b"\n"
        self._hidden = [each.encode() for each in args.filter_out]
        self._printed = 0

    async def run(self) -> int:
        """Run and return the exit code. A signal is an orderly end."""
        loop = asyncio.get_running_loop()
        work = loop.create_task(self._work())
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, work.cancel)
        try:
            await asyncio.wait([work], timeout=self._args.wait or None)
            if work.done():
                return 0 if work.cancelled() else work.result()
            work.cancel()
            print(f"error: timed out after {self._args.wait:g} s", file=sys.stderr)
            return TIMED_OUT
        finally:
            await self._client.disconnect(properties=self._properties.of("disconnect"))
            sys.stdout.flush()

    async def _work(self) -> int:
        client = self._client
        await client.connect()
        if self._subscriptions:
            await client.subscribe(self._subscriptions, properties=self._properties.of("subscribe"))
        if self._args.unsubscribe:
            await client.unsubscribe(self._args.unsubscribe, properties=self._properties.of("unsubscribe"))
        if self._args.exit_subscribed:
            return 0
        async for message in client.messages():
            if not await self._show(message):
                break
            if not client.unread:  # one write for messages that arrived together
                sys.stdout.buffer.flush()
        return 0

    async def _show(self, message: Message) -> bool:
        """Print the message if the options allow it. Returns False after the last one."""
        args = self._args
        if args.retained_only and not message.retain:
            return False
        if message.retain and args.no_retained:
            return True
        topic = message.topic.encode()
        if any(matches(each, topic) for each in self._hidden):
            return True
        if args.remove_retained and message.retain:
            await self._client.publish(message.topic, b"", retain=True)
        self._print(message)
        self._printed += 1
        return self._printed != args.count

    def _print(self, message: Message) -> None:
        try:
            line = self._printer(message, time.time_ns())
        except NotJson as error:
            print(f"error: {error}", file=sys.stderr)
            return
        sys.stdout.buffer.write(line + self._end)


command = sub = command_of(SubArgs, run)
