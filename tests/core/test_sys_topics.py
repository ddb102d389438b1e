"""``$SYS/broker``: figures under the names that mosquitto has, which exporters read."""

from __future__ import annotations

from tests.conformance.kit import subscribe
from tests.harness import World

from starlingmq.wire.mqtt import Publish, Subscribe, SubscribeRequest
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL

BASE = "$SYS/broker/"
INTERVAL = 10.0


def _figures(w: World) -> dict[str, str]:
    """Return the retained figures of ``$SYS`` by the name below ``$SYS/broker/``."""
    client = w.connect("monitor")
    client.send(Subscribe(1, [SubscribeRequest(BASE.encode() + b"#", 0)]))
    w.advance(1.0)  # they are sent some in each turn
    packets = [packet for packet in client.receive() if isinstance(packet, Publish)]
    client.disconnect()
    return {packet.topic.decode().removeprefix(BASE): packet.payload.decode() for packet in packets}


def test_clients_are_counted_by_whether_they_are_connected() -> None:
    w = World(sys_interval=INTERVAL)
    here = [w.connect(f"here-{number}") for number in range(3)]
    away = w.connect("away", properties={SESSION_EXPIRY_INTERVAL: 3600}, clean_start=False)
    subscribe(here[0], "$share/pool/t")
    w.advance(INTERVAL)  # four are connected
    away.drop()
    here.pop().disconnect()
    w.advance(INTERVAL)
    figures = _figures(w)
    names = ("connected", "active", "disconnected", "inactive", "total", "maximum")
    assert {name: figures[f"clients/{name}"] for name in names} == {
        "connected": "2", "active": "2", "disconnected": "1", "inactive": "1", "total": "3", "maximum": "4",
    }  # fmt: skip
    assert figures["shared_subscriptions/count"] == "1"


def test_a_steady_rate_is_the_average_per_minute_in_the_end_and_decays_when_it_ends() -> None:
    w = World(sys_interval=INTERVAL)
    publisher = w.connect("publisher")
    for _ in range(180):  # half an hour: two and a half messages a second
        for _ in range(25):
            publisher.send(Publish(b"t", b""))
        w.advance(INTERVAL)
    steady = _figures(w)
    assert 140.0 < float(steady["load/publish/received/1min"]) <= 150.0
    assert 120.0 < float(steady["load/publish/received/15min"]) < 140.0  # 86 % after twice its period
    for _ in range(6):
        w.advance(INTERVAL)
    calm = _figures(w)
    assert float(calm["load/publish/received/1min"]) < 0.4 * float(steady["load/publish/received/1min"])
    assert float(calm["load/publish/received/15min"]) > 0.9 * float(steady["load/publish/received/15min"])
    for name in ("bytes/received", "bytes/sent", "publish/sent", "publish/dropped", "sockets"):
        assert {f"load/{name}/{period}" for period in ("1min", "5min", "15min")} <= calm.keys()
