"""nats-server's answers to ``$SYS.REQ`` that its monitoring pages do not have, in its JSON format."""

from __future__ import annotations

from typing import Any, Final

from starlingmq.admin.nats_monitor import ACCOUNT, NatsMonitor, Varz

Json = dict[str, Any]

OF_VARZ: Final = (
    *("start", "mem", "cores", "cpu", "connections", "total_connections", "subscriptions", "slow_consumers"),
    "slow_consumer_stats",
)


def server_info(varz: Varz, seq: int) -> Json:
    """The head of each answer: the server that gives it."""
    cluster = varz.cluster.get("name", "")
    head = {"name": varz.server_name, "host": varz.host, "id": varz.server_id, "ver": varz.version, "time": varz.now}
    return {**head, "seq": seq, "jetstream": False, "flags": 0} | ({"cluster": cluster} if cluster else {})


def statsz(varz: Varz, peers: list[tuple[int, str]]) -> Json:
    """``peers``: numbers and names of the other connected nodes."""
    nothing = {"msgs": 0, "bytes": 0}
    counted = {"sent": nothing, "received": nothing, "pending": 0}
    return {
        **{name: getattr(varz, name) for name in OF_VARZ},
        **_traffic(varz),
        "active_accounts": 1,
        "routes": [{"rid": number, "name": name, **counted} for number, name in peers],
        "active_servers": 1 + len(peers),
    }


def account_statz(varz: Varz, monitor: NatsMonitor) -> Json:
    only = {
        "acc": ACCOUNT,
        "name": ACCOUNT,
        "conns": varz.connections,
        "leafnodes": 0,
        "total_conns": varz.connections,
        "num_subscriptions": monitor.subsz().num_subscriptions,
        **_traffic(varz),
        "slow_consumers": varz.slow_consumers,
    }
    return {**at(varz), "account_statz": [only]}


def at(varz: Varz) -> Json:
    return {"server_id": varz.server_id, "now": varz.now}


def _traffic(varz: Varz) -> Json:
    sent, received = {"msgs": varz.out_msgs, "bytes": varz.out_bytes}, {"msgs": varz.in_msgs, "bytes": varz.in_bytes}
    return {"sent": sent, "received": received}
