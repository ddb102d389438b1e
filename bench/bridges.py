"""Messages per CPU second of a bridging broker, and the memory of what waits for a dead line, with
``python -m bench.bridges``.

StarlingMQ and mosquitto take turns as the bridging broker. Each takes QoS 1 messages of 64 bytes from one publisher and
carries them to a far mosquitto, the same for both, where a subscriber counts them. At most a window of messages is on
its way, so that neither broker drops any. The CPU is that of the bridging broker alone. The last part publishes to a
StarlingMQ whose far broker is not there.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import yaml

from bench.frames import ACK_SIZE, publish
from bench.peers import Broker, launched, mosquitto_path
from bench.peers import version as version_of
from bench.process import memory, scheduled_seconds
from bench.wire import open_connection, subscribe_all
from starlingmq.cli.local_cluster import free_port

PAYLOAD = 64
TOPIC = "b/0"
BATCH = 50  # messages of one write
WINDOW = 1_000  # messages between publisher and subscriber
INFLIGHT = 1_000  # of every connection of a bridge: the far broker announces it, mosquitto's bridge has it as a setting
SILENCE_S = 30.0
MB = 1_000_000
FAR = "listener {port} 127.0.0.1\nallow_anonymous true\nlog_dest none\nset_tcp_nodelay true\n"
NO_LIMITS = f"max_inflight_messages {INFLIGHT}\nmax_queued_messages 0\nmax_queued_bytes 0\n"
PROTOCOLS = {"3.1.1": "mqttv311", "5.0": "mqttv50"}
BRIDGE = (
    "connection b\naddress 127.0.0.1:{far}\nbridge_protocol_version {protocol}\ntopic b/# out 1\ncleansession false\n"
    "notifications false\ntry_private false\nrestart_timeout 1\n"
)


def conf(folder: Path, text: str) -> list[str]:
    path = folder / "mosquitto.conf"
    path.write_text(text)
    return [mosquitto_path(), "-c", str(path)]


def starling(folder: Path, port: int, far: int, version: str = "5.0", **more: Any) -> list[str]:
    """The command of a StarlingMQ with a bridge, whose settings are as those of mosquitto's."""
    bridge = {"name": "b", "servers": [f"mqtt://127.0.0.1:{far}"], "topics": [{"filter": "b/#", "qos": 1}]}
    path = folder / "starlingmq.yaml"
    tree = {
        "listeners": [f"mqtt://127.0.0.1:{port}"],
        "bridges": [{**bridge, "version": version, "max_inflight": INFLIGHT}],
        **more,
    }
    path.write_text(yaml.safe_dump(tree))
    return [sys.executable, "-m", "starlingmq", "serve", "-c", str(path)]


@contextmanager
def bridging(peer: str, version: str, far: int, core: int, folder: Path) -> Iterator[Broker]:
    def command(port: int) -> list[str]:
        if peer == "mosquitto":
            bridge = BRIDGE.format(far=far, protocol=PROTOCOLS[version])
            return conf(folder, FAR.format(port=port) + NO_LIMITS + bridge)
        return starling(folder, port, far, version)

    folder.mkdir()
    with launched(peer, core, folder, command) as broker:
        yield broker


class Flow:
    """A publisher at the bridging broker, and a subscriber at the far one that counts bytes of frames of one size."""

    def __init__(self, near: int, far: int) -> None:
        self.subscriber = open_connection(far, "counts", 4)
        subscribe_all(self.subscriber, [TOPIC], 0, 4)
        self.publisher = open_connection(near, "publishes", 4)
        self.frame = len(publish(TOPIC, bytes(PAYLOAD), 0, 0, 4))
        self.sent = self.received = 0
        self._acknowledged = 0

    def close(self) -> None:
        self.subscriber.close()
        self.publisher.close()

    @property
    def arrived(self) -> int:
        return self.received // self.frame

    def send(self) -> None:
        ids = range(self.sent, self.sent + BATCH)
        self.publisher.sendall(b"".join(publish(TOPIC, bytes(PAYLOAD), 1, id % 60_000 + 1, 4) for id in ids))
        self.sent += BATCH

    def run(self, seconds: float) -> int:
        """Messages that arrive in that time."""
        before = self.arrived
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            while self.sent - self.arrived < WINDOW:
                self.send()
            self.take()
        return self.arrived - before

    def take(self) -> None:
        data = self.subscriber.recv(1 << 20)
        assert data, "the far broker closed the connection"
        self.received += len(data)
        self.publisher.setblocking(False)
        try:
            while self.publisher.recv(1 << 20):
                pass
        except BlockingIOError:
            pass
        finally:
            self.publisher.settimeout(SILENCE_S)


def per_cpu_second(peer: str, version: str, far: int, folder: Path, seconds: float) -> dict[str, float]:
    with bridging(peer, version, far, 1, folder) as broker, closing(Flow(broker.port, far)) as flow:
        flow.subscriber.settimeout(SILENCE_S)
        flow.send()
        while flow.arrived < BATCH:  # the bridge is there
            flow.take()
        flow.run(seconds / 4)
        used, began = scheduled_seconds(broker.pid), time.monotonic()
        arrived = flow.run(seconds)
        used, took = scheduled_seconds(broker.pid) - used, time.monotonic() - began
    return {
        "cpu_us_a_message": round(used / arrived * 1e6, 2),
        "messages_per_cpu_s": round(arrived / used),
        "messages_per_s": round(arrived / took),
    }


def waiting(count: int, core: int, folder: Path) -> dict[str, float]:
    """Publish so many messages for a far broker that does not answer."""
    folder.mkdir()
    node = {"name": "near", "data_dir": str(folder / "data")}
    with launched("starlingmq", core, folder, lambda port: starling(folder, port, free_port(), node=node)) as broker:
        sock = open_connection(broker.port, "publishes", 4)
        idle = memory(broker.pid)
        acknowledged = sent = 0
        began = time.monotonic()
        while acknowledged < count * ACK_SIZE:
            while sent < count and sent - acknowledged // ACK_SIZE < WINDOW:
                ids = range(sent, min(count, sent + BATCH))
                sock.sendall(b"".join(publish(TOPIC, bytes(PAYLOAD), 1, id % 60_000 + 1, 4) for id in ids))
                sent += len(ids)
            acknowledged += len(received(sock))
        took = time.monotonic() - began
        now = memory(broker.pid)
        sock.close()
    return {
        "messages": count,
        "idle_mb": round(idle.pss / MB, 1),
        "above_idle_mb": round((now.pss - idle.pss) / MB, 1),
        "messages_per_s": round(count / took),
    }


def received(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 16)
    assert data, "the broker closed the connection"
    return data


def measure(seconds: float, rounds: int, count: int, versions: list[str]) -> dict[str, Any]:
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        version: {"starlingmq": [], "mosquitto": []} for version in versions
    }
    with tempfile.TemporaryDirectory(prefix="starlingmq-bench-") as name:
        root = Path(name)
        far_folder = root / "far"
        far_folder.mkdir()
        command = FAR + NO_LIMITS
        with launched("mosquitto", 0, far_folder, lambda port: conf(far_folder, command.format(port=port))) as far:
            for number in range(rounds):
                for version, peers in found.items():
                    for peer, some in peers.items():
                        folder = root / f"{peer}-{version}-{number}"
                        some.append(per_cpu_second(peer, version, far.port, folder, seconds))
        waits = waiting(count, 1, root / "waiting") if count else {}
    return {
        "versions": {peer: version_of(peer) for peer in ("starlingmq", "mosquitto")},
        "mqtt": {version: compared(peers) for version, peers in found.items()},
        "waiting": waits,
    }


def compared(peers: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """The medians of the rounds."""
    middle = {peer: statistics.median(one["messages_per_cpu_s"] for one in some) for peer, some in peers.items()}
    times = round(middle["starlingmq"] / middle["mosquitto"], 2)
    return {"rounds": peers, "messages_per_cpu_s": middle, "times_mosquitto": times}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bridges", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--waiting", type=int, default=1_000_000, help="messages for a far broker that is not there")
    parser.add_argument("--version", action="append", choices=list(PROTOCOLS), help="of MQTT; default: each")
    given = parser.parse_args()
    versions = given.version or list(PROTOCOLS)
    print(json.dumps(measure(given.seconds, given.rounds, given.waiting, versions), indent=1))


if __name__ == "__main__":
    main()
