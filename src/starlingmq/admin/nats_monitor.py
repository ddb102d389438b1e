"""The monitoring endpoints of nats-server, in its JSON format, for tools that read them (nats-top, exporters).

Names, units and meanings are those of nats-server's monitoring pages: some durations are nanoseconds, times are RFC
3339, counters run since the start. Counters of messages and bytes cover the whole broker, MQTT included; ``connz`` and
``subsz`` list connections and subscriptions of NATS clients only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from heapq import nlargest
from itertools import islice
from typing import Any, Final, Literal

from msgspec import Struct, field

from starlingmq.admin.jetstream_monitor import ACCOUNT, Details, JetStreamMonitor
from starlingmq.admin.local_node import LocalNode
from starlingmq.admin.readiness import readiness
from starlingmq.core.nats.nats_client import NatsClient
from starlingmq.core.nats.server_info import GO, PROTOCOL, PROTOCOL_VERSION
from starlingmq.core.session.session import Client
from starlingmq.net.process import memory

CONNECTIONS_MAX: Final = 1024  # on a page of connz, as at nats-server
SUBSCRIPTIONS_MAX: Final = 1000  # shown per connection
NANOSECONDS: Final = 1_000_000_000

Sort = Literal["cid", "subs", "pending", "msgs_to", "msgs_from", "bytes_to", "bytes_from", "start", "last", "idle"]


class SlowConsumers(Struct, frozen=True):
    clients: int


class Varz(Struct, frozen=True):
    server_id: str
    server_name: str
    version: str
    starlingmq: str
    proto: int
    git_commit: str
    go: str
    host: str
    port: int
    auth_required: bool
    tls_required: bool
    max_connections: int
    ping_interval: int
    ping_max: int
    auth_timeout: float
    max_control_line: int
    max_payload: int
    max_pending: int
    cluster: dict[str, str]
    jetstream: dict[str, Any]
    start: str
    now: str
    uptime: str
    mem: int
    cores: int
    cpu: float
    connections: int
    total_connections: int
    routes: int
    remotes: int
    leafnodes: int
    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int
    slow_consumers: int
    subscriptions: int
    slow_consumer_stats: SlowConsumers


class Connection(Struct, frozen=True, omit_defaults=True):
    cid: int
    kind: str
    type: str
    ip: str
    port: int
    start: str
    last_activity: str
    uptime: str
    idle: str
    pending_bytes: int
    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int
    subscriptions: int
    account: str
    name: str = ""
    lang: str = ""
    version: str = ""
    tls_version: str = ""
    authorized_user: str = ""
    subscriptions_list: list[str] = field(default_factory=list)


class Connz(Struct, frozen=True):
    server_id: str
    now: str
    num_connections: int
    total: int
    offset: int
    limit: int
    connections: list[Connection]


class Subsz(Struct, frozen=True):
    server_id: str
    now: str
    num_subscriptions: int
    num_cache: int
    total: int
    offset: int
    limit: int


class Healthz(Struct, frozen=True, omit_defaults=True):
    status: str
    status_code: int = 0
    error: str = ""


class NatsMonitor:
    def __init__(self, local_node: LocalNode) -> None:
        self._local_node = local_node
        self.jetstream = JetStreamMonitor(local_node)

    def varz(self) -> Varz:
        local_node = self._local_node
        config, state, now = local_node.config(), local_node.state, local_node.driver.clock()
        counters, nats = state.ctx.counters, state.nats
        scheme, host, port = self._listener()
        uptime = max(now - state.sys.started_at, 0.001)
        slow = counters.dropped.get("slow_consumer", 0)
        peers = 0 if local_node.cluster is None else max(len(local_node.cluster.names()) - 1, 0)
        return Varz(
            server_id=nats.info.server_id,
            server_name=nats.info.server_name or nats.info.server_id,
            version=PROTOCOL_VERSION,
            starlingmq=nats.info.version,
            proto=PROTOCOL,
            git_commit=nats.info.version,
            go=GO,
            host=host,
            port=port,
            auth_required=nats.info.auth_required(),
            tls_required=scheme == "tls",
            max_connections=config.limits.max_connections,
            ping_interval=int(config.nats.ping_interval * NANOSECONDS),
            ping_max=config.nats.max_pings_out,
            auth_timeout=config.mqtt.connect_timeout,
            max_control_line=config.nats.max_control_line,
            max_payload=config.nats.max_payload,
            max_pending=config.limits.queue_bytes,
            cluster={"name": nats.info.cluster} if nats.info.cluster else {},
            jetstream=self.jetstream.varz(),
            start=rfc3339(state.sys.started_at),
            now=rfc3339(now),
            uptime=duration(uptime),
            mem=memory(),
            cores=os.cpu_count() or 1,
            cpu=round(100 * time.process_time() / uptime, 1),
            connections=counters.connections_open,
            total_connections=counters.connections_opened,
            routes=peers,
            remotes=peers,
            leafnodes=0,
            in_msgs=counters.publish_received,
            out_msgs=counters.publish_sent,
            in_bytes=counters.bytes_received,
            out_bytes=counters.bytes_sent,
            slow_consumers=slow,
            subscriptions=int(state.sys.figures()["subscriptions/count"]),
            slow_consumer_stats=SlowConsumers(slow),
        )

    def connz(
        self,
        sort: Sort,
        offset: int,
        limit: int,
        subscriptions: bool,
        cid: int = 0,
        user: str = "",
        nobody: bool = False,
    ) -> Connz:
        """``sort`` other than by number puts the largest first. ``limit`` is at most ``CONNECTIONS_MAX``. With ``cid``
        or ``user``, only that connection or those of that user are listed; ``nobody`` gives an empty page."""
        state, now = self._local_node.state, self._local_node.driver.clock()
        clients = state.nats.clients
        limit = min(limit, CONNECTIONS_MAX)
        if cid or user or nobody:
            clients = {
                number: client
                for number, client in clients.items()
                if not nobody and cid in (0, number) and user in ("", client.username)
            }
        if sort == "cid":
            shown = list(islice(clients.values(), offset, offset + limit))
        else:
            by = SORTS[sort]
            shown = nlargest(offset + limit, clients.values(), key=by)[offset:]
        found = [connection(client, now, subscriptions) for client in shown]
        return Connz(state.nats.info.server_id, rfc3339(now), len(found), len(clients), offset, limit, found)

    def subsz(self) -> Subsz:
        state = self._local_node.state
        count = sum(len(nats_of(client).subscriptions) for client in state.nats.clients.values())
        now = rfc3339(self._local_node.driver.clock())
        return Subsz(state.nats.info.server_id, now, count, state.router.cached(), count, 0, 0)

    def jsz(self, details: Details) -> dict[str, Any]:
        now = rfc3339(self._local_node.driver.clock())
        server_id = self._local_node.state.nats.info.server_id
        return {"server_id": server_id, "now": now, **self.jetstream.jsz(details)}

    def healthz(self) -> Healthz:
        reasons = readiness(self._local_node).reasons
        return Healthz("unavailable", 503, "; ".join(reasons)) if reasons else Healthz("ok", 200)

    def _listener(self) -> tuple[str, str, int]:
        """Scheme, host and port of the first NATS listener; "" and 0 if there is none."""
        for listener in self._local_node.listeners():
            if listener.spec.scheme in ("nats", "tls"):
                host, _, port = listener.address.partition("://")[2].partition("/")[0].rpartition(":")
                return listener.spec.scheme, host.strip("[]"), int(port)
        return "", "", 0


def connection(client: Client, now: float, subscriptions: bool) -> Connection:
    nats = nats_of(client)
    host, _, port = client.peer.rpartition(":")
    return Connection(
        cid=nats.number,
        kind="Client",
        type="websocket" if "+ws" in client.listener.partition("://")[0] else "nats",
        ip=host.strip("[]"),
        port=int(port) if port.isdigit() else 0,
        start=rfc3339(client.connected_at),
        last_activity=rfc3339(client.last_packet),
        uptime=duration(now - client.connected_at),
        idle=duration(now - client.last_packet),
        pending_bytes=max(client.size, nats.pending),
        in_msgs=client.published,
        out_msgs=sent_to(client),
        in_bytes=client.bytes_in,
        out_bytes=client.bytes_out,
        subscriptions=len(nats.subscriptions),
        account=ACCOUNT,
        name=nats.name,
        lang=nats.lang,
        version=nats.library_version,
        authorized_user=client.username,
        subscriptions_list=[
            sub.subject.decode(errors="replace") for sub in islice(nats.subscriptions.values(), SUBSCRIPTIONS_MAX)
        ]
        if subscriptions
        else [],
    )


def nats_of(client: Client) -> NatsClient:
    assert isinstance(client.protocol_handler, NatsClient)
    return client.protocol_handler


def sent_to(client: Client) -> int:
    """Messages delivered for the subscriptions that it has now."""
    return sum(sub.count for sub in nats_of(client).subscriptions.values())


SORTS: Final[dict[str, Callable[[Client], Any]]] = {
    "subs": lambda client: len(nats_of(client).subscriptions),
    "pending": lambda client: max(client.size, nats_of(client).pending),
    "msgs_to": sent_to,
    "msgs_from": lambda client: client.published,
    "bytes_to": lambda client: client.bytes_out,
    "bytes_from": lambda client: client.bytes_in,
    "start": lambda client: client.connected_at,
    "last": lambda client: client.last_packet,
    "idle": lambda client: -client.last_packet,
}


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def duration(seconds: float) -> str:
    """As nats-server writes it: 1d2h3m4s, from the largest unit that is not zero."""
    left = max(int(seconds), 0)
    days, left = divmod(left, 86_400)
    hours, left = divmod(left, 3600)
    minutes, left = divmod(left, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (left, "s")]
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return "".join(f"{count}{unit}" for count, unit in parts)
