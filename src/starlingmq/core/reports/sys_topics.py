"""``$SYS``: figures of the broker as retained messages, for monitoring with only an MQTT client."""

from __future__ import annotations

from typing import Final

import msgspec

from starlingmq.core.context.context import Context
from starlingmq.core.groups.group_stats import figures
from starlingmq.core.messages.message import Message
from starlingmq.core.publish.publishing import Publishing
from starlingmq.core.reports.sys_load import SysLoad
from starlingmq.core.retained.retained_store import RetainedTree

GROUPS_TOLD: Final = 100  # groups with a topic of their own


def count_own_retained(retained: RetainedTree) -> int:
    """The retained messages of the broker itself, which are neither stored nor listed: some dozens."""
    cursor = retained.cursor(b"$SYS/#")
    count = 0
    while not cursor.done:
        count += len(cursor.next(1000))
    return count


class SysTopics:
    """Publishes, every ``mqtt.sys_interval`` seconds, the figures that have changed."""

    ctx: Context
    publishing: Publishing
    version: str
    started_at: float
    due_at: float  # 0.0: never
    _last: dict[str, str]
    _groups: dict[bytes, bytes]
    _load: SysLoad
    _clients_max: int

    def __init__(self, ctx: Context, publishing: Publishing, version: str) -> None:
        self.ctx = ctx
        self.publishing = publishing
        self.version = version
        self.started_at = ctx.now
        self.due_at = ctx.now if ctx.mqtt.sys_interval != 0.0 else 0.0
        self._last = {}
        self._groups = {}
        self._load = SysLoad(ctx.now)
        self._clients_max = 0

    def tick(self) -> None:
        ctx = self.ctx
        if self.due_at == 0.0 or ctx.now < self.due_at:
            return
        self.due_at = ctx.now + ctx.mqtt.sys_interval if ctx.mqtt.sys_interval != 0.0 else 0.0
        for topic, value in self.figures().items():
            if self._last.get(topic) != value:
                self._last[topic] = value
                name = b"$SYS/broker/" + topic.encode()
                self.publishing.route(Message(name, value.encode(), 0, True, b"", 0.0, "", ctx.now), None)
        told = self._groups
        self._groups = self.group_figures()
        for name in told:
            if name not in self._groups:
                self.publishing.route(Message(name, b"", 0, True, b"", 0.0, "", ctx.now), None)
        for name, payload in self._groups.items():
            if told.get(name) != payload:
                self.publishing.route(Message(name, payload, 0, True, b"", 0.0, "", ctx.now), None)

    def group_figures(self) -> dict[bytes, bytes]:
        """Figures by topic, as JSON, for up to ``GROUPS_TOLD`` groups. Wildcards are spelled as in NATS."""
        found: dict[bytes, bytes] = {}
        for group in self.publishing.router.groups()[:GROUPS_TOLD]:
            name = b"$SYS/broker/groups/%b/%b" % (group.name, group.filter.replace(b"+", b"*").replace(b"#", b">"))
            found[name] = msgspec.json.encode(figures(group))
        return found

    def figures(self) -> dict[str, str]:
        ctx = self.ctx
        counters = ctx.counters
        of_nodes = sum([link.subscription_count() for link in ctx.cluster.links.values()])
        groups = self.publishing.router.groups()
        sessions = len(ctx.sessions) - len(ctx.cluster.links) - len(self.publishing.groups.lines)
        totals = {
            "bytes/received": counters.bytes_received,
            "bytes/sent": counters.bytes_sent,
            "publish/messages/received": counters.publish_received,
            "publish/messages/sent": counters.publish_sent,
            "publish/messages/queued": counters.messages_queued,
            "publish/messages/retransmitted": counters.retransmitted,
            "publish/messages/dropped": sum(counters.dropped.values()),
            "publishers/held": counters.held_publishers,
            "connections/opened": counters.connections_opened,
            "connections/open": counters.connections_open,
            "sessions/count": sessions,
            "subscriptions/count": len(self.publishing.router.tree) - of_nodes,
            "shared_subscriptions/count": sum([len(group.members) for group in groups]),
            "groups/count": len(groups),
            "groups/waiting": sum([group.waiting() for group in groups]),
            "groups/given": sum([group.given for group in groups]),
            "groups/redelivered": sum([group.redelivered for group in groups]),
            "retained messages/count": len(self.publishing.retained.tree),
            "retained messages/bytes": self.publishing.retained.tree.total_bytes,
        }
        figures = {topic: str(value) for topic, value in totals.items()}
        figures |= self._client_figures(sessions) | self._load_figures()
        if ctx.recording:
            figures["storage/state"] = ctx.storage.state
            figures["storage/failures"] = str(ctx.storage.failures)
            figures["storage/records_lost"] = str(ctx.storage.records_lost)
        if ctx.node != 0:
            figures["cluster/state"] = "isolated" if ctx.isolated else "serving"
            figures["cluster/messages/forwarded"] = str(counters.forwards_sent)
            figures["cluster/messages/received"] = str(counters.forwards_received)
            figures["cluster/messages/doubled"] = str(counters.forwards_doubled)
            figures["cluster/messages/unwanted"] = str(counters.forwards_unwanted)
        if ctx.cluster.qos2 is not None:
            for name, count in ctx.cluster.qos2.figures().items():
                figures["cluster/handshakes/" + name] = str(count)
        figures |= self._retained_figures()
        figures["version"] = "starlingmq " + self.version
        figures["uptime"] = str(int(ctx.now - self.started_at))
        figures["event_loop/stall_max_ms"] = f"{counters.stall_max_ms:.1f}"
        for reason, count in counters.dropped.items():
            figures["publish/messages/dropped/" + reason] = str(count)
        for reason, count in counters.errors.items():
            figures["connections/closed/" + reason] = str(count)
        for reason, count in counters.noted.items():
            figures["connections/noted/" + reason] = str(count)
        return figures

    def _client_figures(self, sessions: int) -> dict[str, str]:
        """mosquitto's names; ``maximum`` is of the moments at which figures were published."""
        connected = self.ctx.counters.clients_connected
        away = max(0, sessions - connected)
        self._clients_max = max(self._clients_max, connected)
        totals = {
            "connected": connected,
            "active": connected,
            "disconnected": away,
            "inactive": away,
            "total": connected + away,
            "maximum": self._clients_max,
        }
        return {"clients/" + name: str(value) for name, value in totals.items()}

    def _load_figures(self) -> dict[str, str]:
        counters = self.ctx.counters
        totals = {
            "bytes/received": counters.bytes_received,
            "bytes/sent": counters.bytes_sent,
            "publish/received": counters.publish_received,
            "publish/sent": counters.publish_sent,
            "publish/dropped": sum(counters.dropped.values()),
            "sockets": counters.connections_opened,
        }
        return self._load.figures(totals, self.ctx.now)

    def _retained_figures(self) -> dict[str, str]:
        retaining = self.ctx.cluster.retained
        if retaining is None:
            return {}
        waits = retaining.waits
        figures = {
            "complete": "yes" if retaining.complete else "no",
            "waiting": str(retaining.waiting),
            "written": str(retaining.written),
            "coalesced": str(retaining.coalesced),
            "fetched": str(retaining.fetched),
            "replays/incomplete": str(waits.incomplete),
            "replays/waiting": str(waits.count),
            "replays/waiting_seconds": f"{waits.seconds(self.ctx.now):.1f}",
            "replays/waiting_for": " ".join([str(node) for node in sorted(waits.missing)]) or "none",
        }
        return {"cluster/retained/" + name: value for name, value in figures.items()}
