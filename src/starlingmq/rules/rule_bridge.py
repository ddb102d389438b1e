"""The shell of a rule: a bridge whose other side is its sink.

Its session at this broker subscribes to the source, so a rule is stored, bounded, copied, carried by one node and taken
over by others as every session of a bridge. Rows become messages of this broker (``rule_flow``), or go to a target.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal

from starlingmq.bridges.bridge import NearHandle
from starlingmq.bridges.bridge_relay import BridgeCounts, number
from starlingmq.bridges.session_bridge import SessionBridge
from starlingmq.client.errors import explain
from starlingmq.client.options import V5
from starlingmq.config.rules_section import RuleLane
from starlingmq.config.secret_masking import without_login
from starlingmq.config.section_types import ConfigError
from starlingmq.net.driver import Driver
from starlingmq.rules.rule_flow import ALL, HEAD, Arrived, Publication, RuleFlow, Work
from starlingmq.wire.mqtt import decode_publish
from starlingmq.wire.packets import Ack
from starlingmq.wire.properties import MAXIMUM_PACKET_SIZE, RECEIVE_MAXIMUM, USER_PROPERTY, encode_property_bytes

if TYPE_CHECKING:
    from starlingmq.rules.program import RuleProgram, TopicRows
    from starlingmq.rules.rule_target import RuleTarget

log = logging.getLogger("starlingmq")

REASON: Final = "starlingmq-reason"  # a User Property of dead letters
RULE: Final = "starlingmq-rule"  # the same: the name of the rule
ROWS_MAX: Final = 10_000  # of one message
LOG_SECONDS: Final = 10.0  # until the next failure of a message is logged


class RuleBridge(SessionBridge):
    config: RuleLane
    replays = False

    def __init__(
        self, config: RuleLane, driver: Driver, site: str, elected: Callable[[], bool], counts: BridgeCounts
    ) -> None:
        super().__init__(config, driver, site, elected, counts)
        self.rule = config.rule
        self._program: RuleProgram | None = None
        self._topic_rows: TopicRows | None = None
        self._item: Callable[[tuple[Any, ...]], Any] = tuple  # of a row, for the target
        self._target: RuleTarget | None = None
        self._flow: RuleFlow | None = None
        self._early: list[Arrived] = []  # before it runs
        self._told_at = -LOG_SECONDS  # when a failure was logged
        self._server = without_login(self.rule.sink.url) if self.rule.sink.url else "this broker"

    @property
    def kind(self) -> Literal["bridge", "link", "rule"]:
        return "rule"

    @property
    def label(self) -> str:
        return f"rule {self.config.rule.name}"

    # An attempt

    async def _greet(self) -> None:
        """Compile the rule, and look which messages the session will send again."""
        if self._program is None or self.rule.tables:  # which may have changed
            await asyncio.to_thread(self._compile)
        if self.rule.sink.format != "topic":
            self._target = await asyncio.to_thread(self._new_target)
            await self._target.begin()
        self._early = []
        session = self.session
        window = None if session is None else session.window
        # A request may still be on its way to the target when a later message has become a dead letter.
        self._again: dict[int, int] = {}
        if window is not None and self.rule.sink.format == "topic":
            self._again = {packet_id: entry.message.offset for packet_id, entry in window.entries.items()}

    def _compile(self) -> None:
        """In a thread: the compiler is loaded the first time. Raises ValueError."""
        try:
            program = import_module("starlingmq.rules.program")
        except ConfigError as error:  # sqlglot is not installed
            raise ValueError(str(error)) from None
        made = program.RuleProgram(self.rule)
        if self.rule.sink.format == "topic":
            self._topic_rows = program.TopicRows(self.rule, made)
        elif self.rule.sink.format == "http":
            self._item = program.JsonRows(made).text
        self._program = made

    def _new_target(self) -> RuleTarget:
        """In a thread: kinds that are not configured are not loaded. Raises ImportError."""
        sink, told = self.rule.sink, (self._delivered, self._end)
        target: RuleTarget
        if sink.format == "http":
            target = import_module("starlingmq.rules.http_target").HttpTarget(sink, *told)
        else:
            assert self._program is not None
            module = import_module("starlingmq.rules.postgresql_target")
            target = module.PostgresqlTarget(sink, self._program.columns, *told)
        return target

    def _runs(self) -> None:
        super()._runs()
        producers = self._driver.state.publishing.producers
        self._flow = RuleFlow(
            producers.log(f"{self.config.name}/rows"),
            self._again,
            number(self._limits, RECEIVE_MAXIMUM, 65_535),
            number(self._limits, MAXIMUM_PACKET_SIZE, 0),
        )
        self._out = self._flow.out
        self._in = self._flow.rows
        early, self._early = self._early, []
        for message in early:
            self._take(message)
        self._push()

    async def _close(self) -> None:
        await super()._close()
        self._flow = None
        target, self._target = self._target, None
        if target is not None:
            await target.stop()

    # Messages

    def _message(self, near: NearHandle, first: int, data: bytes, start: int, end: int) -> None:
        packet = decode_publish(first, data, start, end, V5)
        message = Arrived(
            packet.packet_id,
            offset_of(near, packet.packet_id),
            packet.qos,
            packet.topic,
            packet.payload,
            packet.retain,
            packet.properties,
        )
        if packet.dup:
            self.counts.again += 1
        if self._flow is None:
            self._early.append(message)
        else:
            self._take(message)

    def _take(self, message: Arrived) -> None:
        """Make the rows of a message, except those that are stored."""
        flow, program = self._flow, self._program
        assert flow is not None and program is not None
        stored = flow.came(message)
        if stored == ALL:
            self._send(flow.out.done(flow.take(message, 0).sent))
            return
        publications: list[Publication] = []
        items: list[Any] = []
        try:
            now = int(self._driver.clock() * 1_000_000)
            rows = program.rows(message.topic, message.payload, message.qos, message.retain, message.properties, now)
            if len(rows) > ROWS_MAX:
                raise ValueError(f"it has {len(rows)} rows, and may have {ROWS_MAX} at most")
            if self._topic_rows is not None:
                publications = [self._fitting(self._topic_rows.message(row), flow.largest) for row in rows]
            else:
                items = [self._item(row) for row in rows]
        except ValueError as error:
            publications, items = self._failed(message, str(error)), []
        left = publications[stored:]
        work = flow.take(message, len(left) + len(items))
        if not left and not items:
            self._send(flow.out.done(work.sent))
        for row, publication in enumerate(left, stored):
            flow.publish(work, message, row, publication)
        if items and self._target is not None:
            self._target.offer(work, message, items)

    def _fitting(self, publication: Publication, most: int) -> Publication:
        size = len(publication[0]) + len(publication[1]) + len(publication[4]) + HEAD
        if 0 < most < size:
            raise ValueError(f"a row makes a message of {size} bytes, and this broker takes {most}")
        return publication

    def _failed(self, message: Arrived, reason: str) -> list[Publication]:
        """The message has no result. Returns its dead letter, if there is to be one."""
        self.counts.refused += 1
        said = f"{message.topic.decode()}: {reason}"
        self.complaints = [said]
        now = self._driver.clock()
        if now - self._told_at >= LOG_SECONDS:
            self._told_at = now
            log.warning("%s: a message has no result: %s", self.label, said)
        letter = self.rule.dead_letter
        if letter is None:
            return []
        pairs: Any = [(RULE, self.rule.name), (REASON, reason), ("topic", message.topic.decode())]
        properties = encode_property_bytes({USER_PROPERTY: pairs})
        return [(letter.topic.encode(), message.payload, 1, False, properties)]

    def _push(self) -> None:
        """Publish as many rows as this broker has room for."""
        flow, near = self._flow, self._near
        if flow is None or near is None or not near.reads:
            return
        frames, places = flow.frames()
        self._production.coming.extend(places)
        self.counts.messages_out += len(places)
        self.counts.bytes_out += sum(map(len, frames))
        self._send(frames)

    def _published(self, packet: Ack) -> None:
        flow = self._flow
        if flow is None:
            return
        if packet.reason < 0x80:
            self._send(flow.acknowledged(packet.packet_id))
        elif (due := flow.refused(packet.packet_id)) is not None:
            self.counts.refused += 1
            self.complaints = [f"this broker refuses a row: {explain(packet.reason, packet.properties)}"]
            self._send(due)
        else:
            self._end(f"this broker takes no message now: {explain(packet.reason, packet.properties)}")

    def set_reading(self) -> None:
        """Also after all packets that have come at once."""
        self._push()
        if self._flow is not None and self._near is not None:
            self._hold(self._near, self._flow.full())

    # The target

    def _delivered(self, work: Work, refused: list[tuple[Arrived, str]]) -> None:
        """The target has stored a row of a message, or refuses it for good."""
        flow = self._flow
        if flow is None or self._near is None:
            return
        for message, reason in refused:
            letters = self._failed(message, reason)
            work.left += len(letters)
            for letter in letters:
                flow.publish(work, message, 0, letter)
        self.counts.messages_out += not refused
        self._send(flow.stored(work))
        self.set_reading()


def offset_of(near: NearHandle, packet_id: int) -> int:
    """Where this message of the session is in the journal; -1: not there, or of QoS 0."""
    window = None if near.client is None or near.client.session is None else near.client.session.window
    entry = None if window is None else window.entries.get(packet_id)
    return -1 if entry is None or entry.message is None else entry.message.offset
