"""Sessions that roaming clients did not find (session present 0), and why: what the nodes say in their logs, what broke
at the time, and what the client had sent and heard since it was last told so."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tests.cluster.real import AwayError, Node

from starlingmq.wire.mqtt import Ack, Packet, Suback, Unsuback
from starlingmq.wire.packets import PUBREL

AFTERMATH_SECONDS: Final = 10.0  # after a fault is mended: nodes start, find each other, read what they keep
AWAY: Final = ("kill a node", "kill two", "kill all", "restart", "isolate", "mute", "deaf", "split", "freeze a node")
CUT: Final = ("cut", "slow links", "reset")  # all nodes still hear each other, if through a relay
LATE_SECONDS: Final = 15.0  # from the line in the log until a busy client has read its CONNACK
LINE: Final = re.compile(
    r"^(\S+ \S+) .* of client '(\S+)': "
    r"(?:node (\S+(?: or \S+)*) may have|its session was lost before).*\(session_lost\)",
    re.MULTILINE,
)

Fault = tuple[float, float, str, str]  # from, to (seconds since the epoch), what, whom


class Memory:
    """The messages that a client sent and heard since CONNACK told it that its session was lost."""

    def __init__(self) -> None:
        self._lost = False
        self._sent = False
        self._heard = False

    def sends(self) -> None:
        self._sent = True

    def hears(self, packet: Packet) -> None:
        """Answers count; a PUBLISH may come before the node has read anything."""
        if isinstance(packet, Suback | Unsuback) or (isinstance(packet, Ack) and packet.type != PUBREL):
            self._heard = True

    def accepted(self, found: bool) -> str:
        """A CONNACK: how the loss before it ended, as far as the client knows; "": there was none."""
        since = "answered since" if self._heard else "it had sent something" if self._sent else "it had sent nothing"
        lost, self._lost = self._lost, not found
        self._sent = self._heard = False
        return since if lost else ""


@dataclass(frozen=True)
class Loss:
    at: float  # seconds since the epoch, when CONNACK came
    client: str
    node: str  # that said so
    before: str  # see ``Memory.accepted``
    since: float = 0.0  # seconds since the epoch, when the client read its CONNACK before this one

    def __str__(self) -> str:
        return f"{self.client} at {self.node}, {datetime.fromtimestamp(self.at):%H:%M:%S.%f}"


@dataclass(frozen=True)
class Line:
    """A log line about a session that was not found; no ``owners``: it was lost before."""

    at: float
    client: str
    owners: tuple[str, ...]


def lines_of(log: str) -> list[Line]:
    found = LINE.findall(log)
    return [
        Line(
            datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f").timestamp(), who, tuple(names.split(" or ") if names else ())
        )
        for at, who, names in found
    ]


class Losses:
    """``wrong``: findings that fail the run."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._faults = list(faults)
        self.counts: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()

    def judge(self, losses: list[Loss], logs: dict[str, list[Line]]) -> None:
        """``logs``: of all nodes, by name, in order."""
        for loss in losses:
            lines = [
                line
                for line in logs[loss.node]
                if line.client == loss.client and loss.at - LATE_SECONDS <= line.at <= loss.at + 0.1
            ]
            if not lines:
                self.counts["for no reason that its node tells"] += 1
                self.wrong[f"{loss}: the node does not say why its session was not found"] += 1
            elif lines[-1].owners:
                self.counts[self._fault(loss, lines[-1].owners)] += 1
            else:
                self._again(loss, logs)

    def _again(self, loss: Loss, logs: dict[str, list[Line]]) -> None:
        """The client had been told of this loss before. It may have left without reading that CONNACK: then it was
        another loss than the one that it has read of."""
        lines = [line for log in logs.values() for line in log if line.client == loss.client and line.owners]
        if loss.before and any(loss.since < line.at <= loss.at for line in lines):
            self.counts["told again, it had left before it read the first CONNACK"] += 1
            return
        self.counts[f"told again, {loss.before or 'it had not read the first CONNACK'}"] += 1
        if loss.before == "answered since":
            said = [
                f"{datetime.fromtimestamp(line.at):%H:%M:%S.%f} {name}: {' or '.join(line.owners) or 'lost before'}"
                for name, log in logs.items()
                for line in log
                if line.client == loss.client and loss.since - LATE_SECONDS <= line.at <= loss.at + 0.1
            ]
            since = f"{datetime.fromtimestamp(loss.since):%H:%M:%S.%f}"
            self.wrong[
                f"{loss}: its session is lost once more, though it was answered since it was told at {since}; "
                f"the nodes said: {', '.join(said)}"
            ] += 1

    def _fault(self, loss: Loss, owners: tuple[str, ...]) -> str:
        met = max(self._met(loss.at, AWAY, owner) for owner in owners)
        if met:
            return f"its node could not be reached: {met}"
        met = self._met(loss.at, CUT)
        return f"its node could be reached by way of others: {met}" if met else "its node could be reached"

    def _met(self, at: float, kinds: tuple[str, ...], node: str = "") -> str:
        """The last fault of these kinds that a node may suffer from at that time."""
        for since, until, what, whom in reversed(self._faults):
            near = since <= at <= until + AFTERMATH_SECONDS and (whom == "all" or node in whom)
            if near and any(kind in what for kind in kinds):
                return what
        return ""


class GivenUp:
    """The messages that nodes have dropped as ``unsettled_qos2``, over all incarnations that could be asked."""

    def __init__(self) -> None:
        self._incarnations: dict[tuple[str, int], int] = {}  # name and process id

    @property
    def total(self) -> int:
        return sum(self._incarnations.values())

    def ask(self, node: Node) -> None:
        if node.process is None or node.frozen or not node.runs:
            return
        life = node.name, node.process.pid
        with suppress(AwayError):
            self._incarnations[life] = node.status()["sessions"]["unsettled_qos2"]
