"""nats-server's answers to ``$SYS.REQ`` that its monitoring pages do not have, in its JSON format."""

from __future__ import annotations

from msgspec import Struct

from starlingmq.admin.nats_monitor import ACCOUNT, NatsMonitor, SlowConsumers, Varz


class AnsweringServer(Struct, frozen=True, omit_defaults=True):
    """The head of each answer: the server that gives it."""

    name: str
    host: str
    id: str
    ver: str
    time: str
    seq: int
    jetstream: bool
    flags: int
    cluster: str = ""


class ServerId(Struct, frozen=True):
    name: str
    host: str
    id: str


class DataStats(Struct, frozen=True):
    msgs: int
    bytes: int


class RouteStats(Struct, frozen=True):
    rid: int
    name: str
    sent: DataStats
    received: DataStats
    pending: int


class Statsz(Struct, frozen=True, omit_defaults=True):
    start: str
    mem: int
    cores: int
    cpu: float
    connections: int
    total_connections: int
    active_accounts: int
    subscriptions: int
    sent: DataStats
    received: DataStats
    slow_consumers: int
    slow_consumer_stats: SlowConsumers
    routes: list[RouteStats]
    active_servers: int


class AccountStats(Struct, frozen=True):
    acc: str
    name: str
    conns: int
    leafnodes: int
    total_conns: int
    num_subscriptions: int
    sent: DataStats
    received: DataStats
    slow_consumers: int


class AccountStatz(Struct, frozen=True):
    server_id: str
    now: str
    account_statz: list[AccountStats]


class Accountz(Struct, frozen=True):
    server_id: str
    now: str
    system_account: str
    accounts: list[str]


class Jsz(Struct, frozen=True):
    """JetStream is not available."""

    server_id: str
    now: str
    disabled: bool
    memory: int
    storage: int


def server_info(varz: Varz, seq: int) -> AnsweringServer:
    cluster = varz.cluster.get("name", "")
    return AnsweringServer(
        varz.server_name, varz.host, varz.server_id, varz.version, varz.now, seq, False, 0, cluster=cluster
    )


def statsz(varz: Varz, peers: list[tuple[int, str]]) -> Statsz:
    """``peers``: numbers and names of the other connected nodes."""
    nothing = DataStats(0, 0)
    return Statsz(
        start=varz.start,
        mem=varz.mem,
        cores=varz.cores,
        cpu=varz.cpu,
        connections=varz.connections,
        total_connections=varz.total_connections,
        active_accounts=1,
        subscriptions=varz.subscriptions,
        sent=DataStats(varz.out_msgs, varz.out_bytes),
        received=DataStats(varz.in_msgs, varz.in_bytes),
        slow_consumers=varz.slow_consumers,
        slow_consumer_stats=varz.slow_consumer_stats,
        routes=[RouteStats(number, name, nothing, nothing, 0) for number, name in peers],
        active_servers=1 + len(peers),
    )


def account_statz(varz: Varz, monitor: NatsMonitor) -> AccountStatz:
    only = AccountStats(
        acc=ACCOUNT,
        name=ACCOUNT,
        conns=varz.connections,
        leafnodes=0,
        total_conns=varz.connections,
        num_subscriptions=monitor.subsz().num_subscriptions,
        sent=DataStats(varz.out_msgs, varz.out_bytes),
        received=DataStats(varz.in_msgs, varz.in_bytes),
        slow_consumers=varz.slow_consumers,
    )
    return AccountStatz(varz.server_id, varz.now, [only])
