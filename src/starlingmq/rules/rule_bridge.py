"""The shell of a rule: a bridge whose other side is its sink.

Its session at this broker subscribes to the source, so a rule is stored, bounded, copied, carried by one node and taken
over by others as every session of a bridge. Rows become messages of this broker (``rule_flow``), or go to a target.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
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
from starlingmq.core.publish.dead_letters import REASON, TOPIC
from starlingmq.net.driver import Driver
from starlingmq.rules.rule_flow import ALL, HEAD, Arrived, Publication, RuleFlow, Work
from starlingmq.rules.sql_values import BYTES_MAX, ROWS_MAX, RowFailed, printable, size_of
from starlingmq.wire.mqtt import decode_publish
from starlingmq.wire.packets import Ack
from starlingmq.wire.properties import (
    MAXIMUM_PACKET_SIZE,
    RECEIVE_MAXIMUM,
    USER_PROPERTY,
    encode_property_bytes,
    split_publish_properties,
)
from starlingmq.wire.reasons import MqttError

if TYPE_CHECKING:
    from starlingmq.rules.program import RuleProgram, TopicRows
    from starlingmq.rules.rule_target import RuleTarget

log = logging.getLogger("starlingmq")

RULE: Final = "starlingmq-rule"  # a User Property of dead letters: the name of the rule
TURN_SECONDS: Final = 0.02  # of work on messages, until the loop has its turn
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
        self._coming: deque[Arrived] = deque()  # messages that are not worked on yet
        self._goes_on = False  # in the next turn of the loop
        self._releasing = False  # the same
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
        self._coming.clear()
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
        self._work()

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
        self._coming.append(message)

    def _work(self) -> None:
        """Take the messages that came while there is room for their rows; other clients have their turn between."""
        flow, near = self._flow, self._near
        if flow is None or near is None:
            return
        self._push()
        until = time.monotonic() + TURN_SECONDS
        while self._coming and not self._full(flow) and not self._goes_on:
            self._take(self._coming.popleft())
            self._push()
            if self._coming and time.monotonic() >= until:
                self._goes_on = True
                asyncio.get_running_loop().call_soon(self._next_turn)
        self._hold(near, bool(self._coming) or self._full(flow))
        if near.blocked and not near.reads and not self._releasing:
            self._releasing = True
            asyncio.get_running_loop().call_soon(self._release, near)

    def _release(self, near: NearHandle) -> None:
        """The broker reads no more rows because they came while it was to wait, and it waits because of rows."""
        self._releasing = False
        if near is self._near and near.client is not None and near.blocked:
            near.blocked = False
            self._driver.drained(near.client)
            self._work()

    def _next_turn(self) -> None:
        self._goes_on = False
        self._work()

    def _full(self, flow: RuleFlow) -> bool:
        return flow.full() or (self._target is not None and self._target.full())

    def _take(self, message: Arrived) -> None:
        """Make the rows of a message, except those that are stored."""
        flow = self._flow
        assert flow is not None
        stored = flow.came(message)
        if stored == ALL:
            self._send(flow.out.done(flow.take(message, 0).sent))
            return
        publications, items = self._made_of(message, flow)
        left = publications[stored:]
        work = flow.take(message, len(left) + len(items))
        if not left and not items:
            self._send(flow.out.done(work.sent))
        for row, publication in enumerate(left, stored):
            flow.publish(work, message, row, publication)
        if items and self._target is not None:
            self._target.offer(work, message, items)

    def _made_of(self, message: Arrived, flow: RuleFlow) -> tuple[list[Publication], list[Any]]:
        """The rows of a message, for this broker or for the target; its dead letter, if it has no result."""
        program = self._program
        assert program is not None
        publications: list[Publication] = []
        items: list[Any] = []
        size = 0
        try:
            now = int(self._driver.clock() * 1_000_000)
            rows = program.rows(message.topic, message.payload, message.qos, message.retain, message.properties, now)
            if len(rows) > ROWS_MAX:
                raise RowFailed(f"it has {len(rows)} rows, and may have {ROWS_MAX} at most")
            for row in rows:
                if self._topic_rows is not None:
                    publications.append(self._fitting(self._topic_rows.message(row), flow.largest))
                    size += len(publications[-1][1]) + len(publications[-1][4])
                else:
                    items.append(self._item(row))
                    size += size_of(items[-1])
                if size > BYTES_MAX:
                    raise RowFailed(f"its rows have more than {BYTES_MAX:,} bytes")
        except MqttError as error:
            return self._failed(message, f"a row makes no message: {error.detail}"), []
        except ValueError as error:
            return self._failed(message, str(error)), []
        except (RecursionError, MemoryError) as error:
            return self._failed(message, f"its values are too large ({type(error).__name__})"), []
        return publications, items

    def _fitting(self, publication: Publication, most: int) -> Publication:
        """Raises ValueError, MqttError for a message for which this broker would close the connection."""
        topic, payload, qos, retain, properties = publication
        state = self._driver.state
        size = len(topic) + len(payload) + len(properties) + HEAD
        if 0 < most < size:
            raise ValueError(f"a row makes a message of {size} bytes, and this broker takes {most}")
        if qos > state.ctx.max_qos:
            raise ValueError(f"a row has QoS {qos}, and this broker takes {state.ctx.max_qos} at most (mqtt.max_qos)")
        if retain and not state.ctx.retain_available:
            raise ValueError("a row has retain, which this broker does not take (mqtt.retain_available)")
        state.router.check(topic)
        if properties:
            split_publish_properties(properties, 0, len(properties))
        return publication

    def _failed(self, message: Arrived, reason: str) -> list[Publication]:
        """The message has no result. Returns its dead letter, if there is to be one, and this broker takes it."""
        self.counts.refused += 1
        topic, reason = message.topic.decode(), printable(reason)
        said = f"{printable(topic)}: {reason}"
        letters: list[Publication] = []
        if self.rule.dead_letter is not None:
            pairs: Any = [(RULE, self.rule.name), (REASON, reason), (TOPIC, topic)]
            qos = min(1, self._driver.state.ctx.max_qos)
            try:
                properties = encode_property_bytes({USER_PROPERTY: pairs})
                letter = (self.rule.dead_letter.topic.encode(), message.payload, qos, False, properties)
                letters = [self._fitting(letter, number(self._limits, MAXIMUM_PACKET_SIZE, 0))]
            except (MqttError, ValueError) as error:
                said += f"; nor a dead letter: {error.detail if isinstance(error, MqttError) else error}"
        self.complaints = [said]
        now = self._driver.clock()
        if now - self._told_at >= LOG_SECONDS:
            self._told_at = now
            log.warning("%s: a message has no result: %s", self.label, said)
        return letters

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
        self._work()

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
        self._work()


def offset_of(near: NearHandle, packet_id: int) -> int:
    """Where this message of the session is in the journal; -1: not there, or of QoS 0."""
    window = None if near.client is None or near.client.session is None else near.client.session.window
    entry = None if window is None else window.entries.get(packet_id)
    return -1 if entry is None or entry.message is None else entry.message.offset
