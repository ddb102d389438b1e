"""Messages per second of a link over a line of 100 ms round trip and 1 % loss, with ``python -m bench.links``.

Two StarlingMQs in two network namespaces, with ``bench.line`` between them. A publisher and a subscriber are connected
to them by Unix sockets. The messages are JSON texts of 100 bytes, all different, below 100 topics. ``--flap`` cuts the
line for 2.5 of every 5 seconds meanwhile, and then waits for the missing ones: each message must arrive, at QoS 2
once. Needs root, for the namespaces.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import yaml

from bench.frames import PUBREC, PUBREL, connect, publish
from bench.line import NO_LINE, NoLine, namespaces
from bench.process import cpu_seconds
from bench.wire import read_frame, subscribe_all

SIZE = 100  # bytes of a message
TOPICS = 100
IDS = 60_000  # packet ids of the publisher; as many different messages
BATCH = 500
SILENCE_S = 60.0
FLAP_S = 5.0


def frames_of(qos: int) -> tuple[bytes, int]:
    """All frames in a row, and the size of one. The payload begins with its number."""
    random = Random(1)
    frames = []
    for number in range(IDS):
        text = f'{number:06d} {{"device":"d{random.randrange(10_000):04d}","at":{1764519273 + number / 977:.3f},'
        text += f'"temperature":{random.gauss(21, 3):.2f},"humidity":{random.uniform(30, 60):.1f}}}'
        frames.append(publish(f"b/s{number % TOPICS:02d}", f"{text:<{SIZE}}"[:SIZE].encode(), qos, number + 1, 4))
    assert len({len(frame) for frame in frames}) == 1
    return b"".join(frames), len(frames[0])


def client(path: Path, name: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(SILENCE_S)
    sock.connect(str(path))
    sock.sendall(connect(name, 4))
    assert read_frame(sock)[0] == 0x20
    return sock


@contextmanager
def process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Until it says that it is ready."""
    with log.open("ab") as errors:
        running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
    try:
        assert running.stdout is not None
        if not running.stdout.readline().startswith(b"ready"):
            raise NoLine(log.read_text()[-2000:])
        yield running
    finally:
        running.kill()
        running.communicate()


def broker(folder: Path, name: str, tree: dict[str, Any]) -> list[str]:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"node": {"name": name}, **tree}))
    return ["ip", "netns", "exec", namespace(name), sys.executable, "-m", "starlingmq", "serve", "-c", str(path)]


def namespace(name: str) -> str:
    return f"bench-{name}-{os.getpid()}"


SINK = (
    "import socket, sys\n"
    "listening = socket.create_server((sys.argv[1], 9))\n"
    "print('ready', flush=True)\n"
    "accepted = listening.accept()[0]\n"
    "while accepted.recv(1 << 20): pass\n"
)
SOURCE = (
    "import socket, sys, time\n"
    "sock = socket.create_connection((sys.argv[1], 9))\n"
    "sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, sys.argv[2].encode())\n"
    "print('ready', flush=True)\n"
    "while True: sock.sendall(bytes(1 << 18))\n"
)


class Traffic:
    """A publisher at the near broker and a subscriber at the far one. At most ``window`` messages are between them."""

    def __init__(self, near: Path, far: Path, qos: int, window: int) -> None:
        self.subscriber = client(far, "counts")
        subscribe_all(self.subscriber, ["b/#"], 0, 4)
        self.publisher = client(near, "publishes")
        self.frames, self.size = frames_of(qos)
        self.frame_out = self.size - 2 * (qos > 0)
        self.qos = qos
        self.window = window
        self.sent = self.acknowledged = 0
        self.seen = [0] * IDS  # how often each number has come
        self.arrived = 0
        self._rest = self._acks = b""
        self.check = False

    def close(self) -> None:
        self.subscriber.close()
        self.publisher.close()

    def send(self) -> None:
        at = self.sent % IDS
        self.publisher.sendall(self.frames[at * self.size : (at + BATCH) * self.size])
        self.sent += BATCH

    def run(self, until: float, publishes: bool = True) -> None:
        while (left := until - time.monotonic()) > 0:
            room = publishes and self.sent - min(self.arrived, self.acknowledged) + BATCH <= self.window
            ready, writable, _ = select.select(
                [self.subscriber, self.publisher], [self.publisher] if room else [], [], min(left, 0.5)
            )
            if self.subscriber in ready:
                self._take()
            if self.publisher in ready:
                self._answer()
            if writable:
                self.send()
            if not publishes and self.arrived >= self.sent:
                return

    def _take(self) -> None:
        data = self.subscriber.recv(1 << 20)
        assert data, "the far broker closed the connection"
        data = self._rest + data
        count, rest = divmod(len(data), self.frame_out)
        self._rest = data[len(data) - rest :] if rest else b""
        self.arrived += count
        if self.check:
            start = self.frame_out - SIZE
            for at in range(start, count * self.frame_out, self.frame_out):
                self.seen[int(data[at : at + 6])] += 1

    def _answer(self) -> None:
        data = self.publisher.recv(1 << 20)
        assert data, "the near broker closed the connection"
        data = self._acks + data
        end = len(data) & ~3
        self._acks = data[end:]
        if self.qos < 2:
            self.acknowledged += end // 4
            return
        releases = [b"\x62\x02" + data[at + 2 : at + 4] for at in range(0, end, 4) if data[at] == PUBREC]
        self.acknowledged += end // 4 - len(releases)
        if releases:
            self.publisher.sendall(b"".join(releases))


assert PUBREL == 0x62


def carries(given: argparse.Namespace, congestion: str) -> dict[str, Any]:
    """Measure one TCP connection over the line, without brokers."""
    with tempfile.TemporaryDirectory(prefix="starlingmq-bench-") as name, ExitStack() as stack:
        stack.enter_context(namespaces(namespace("near"), namespace("far")))
        log = Path(name, "log")
        line = stack.enter_context(process(line_command(given), log))
        inside = ["ip", "netns", "exec", namespace("far"), sys.executable, "-c", SINK, "10.77.0.2"]
        stack.enter_context(process(inside, log))
        inside = ["ip", "netns", "exec", namespace("near"), sys.executable, "-c", SOURCE, "10.77.0.2", congestion]
        stack.enter_context(process(inside, log))
        time.sleep(given.seconds / 2)
        before, used, began = count(line), cpu_seconds(line.pid), time.monotonic()
        time.sleep(given.seconds)
        after, used, took = count(line), cpu_seconds(line.pid) - used, time.monotonic() - began
    change = {name: after[name] - before[name] for name in after}
    return {
        "tcp": congestion,
        "mb_per_s": round(change["bytes"] / took / 1e6, 2),
        "packets_per_s": round(change["packets"] / took),
        "lost": change["lost"],
        "full": change["full"],
        "cpu_of_line": round(used / took, 2),
    }


def line_command(given: argparse.Namespace) -> list[str]:
    line = [sys.executable, "-m", "bench.line", namespace("near"), namespace("far")]
    return [*line, "--round-trip-ms", f"{given.round_trip_ms}", "--loss", f"{given.loss}", "--seed", f"{given.seed}"]


def order(line: subprocess.Popen[bytes], word: str) -> None:
    assert line.stdin is not None
    line.stdin.write(f"{word}\n".encode())
    line.stdin.flush()


def count(line: subprocess.Popen[bytes]) -> dict[str, int]:
    order(line, "count")
    assert line.stdout is not None
    found: dict[str, int] = json.loads(line.stdout.readline())
    return found


class Bench:
    """One pair of brokers and their line."""

    def __init__(self, stack: ExitStack, folder: Path, given: argparse.Namespace, qos: int, compress: bool) -> None:
        near, far = folder / "near.sock", folder / "far.sock"
        stack.enter_context(namespaces(namespace("near"), namespace("far")))
        self.line = stack.enter_context(process(line_command(given), folder / "line.log"))
        listeners = {"listeners": ["mqtt://10.77.0.2:1883", f"unix://{far}"], "auth": {"allow_anonymous": True}}
        topics = [{"filter": "b/#", "qos": qos}]
        link = {"name": "b", "servers": ["mqtt://10.77.0.2:1883"], "topics": topics, "keep_alive": 10}
        link["compression"] = "zstd" if compress else "none"
        command = broker(folder, "far", listeners)
        self.far = stack.enter_context(process(command, folder / "far.log"))
        tree = {"listeners": [f"unix://{near}"], "links": [link]}
        self.near = stack.enter_context(process(broker(folder, "near", tree), folder / "near.log"))
        self.traffic = Traffic(near, far, qos, given.window)
        stack.callback(self.traffic.close)

    def cpu(self) -> dict[str, float]:
        running = {"near": self.near, "far": self.far, "line": self.line}
        return {name: cpu_seconds(each.pid) for name, each in running.items()} | {"bench": time.process_time()}

    def speed(self, seconds: float) -> dict[str, Any]:
        traffic = self.traffic
        traffic.send()
        while traffic.arrived < BATCH:  # the bridge is there
            traffic.run(time.monotonic() + 0.1, publishes=False)
        traffic.run(time.monotonic() + seconds / 2)
        arrived, began, used, carried = traffic.arrived, time.monotonic(), self.cpu(), count(self.line)
        traffic.run(began + seconds)
        took = time.monotonic() - began
        messages = traffic.arrived - arrived
        now, after = self.cpu(), count(self.line)
        change = {name: after[name] - carried[name] for name in after}
        return {
            "messages_per_s": round(messages / took),
            "line_mb_per_s": round(change["bytes"] / took / 1e6, 2),
            "line_bytes_per_message": round(change["bytes"] / max(messages, 1), 1),
            "line_packets_per_s": round(change["packets"] / took),
            "lost": change["lost"],
            "full": change["full"],
            "cpu": {name: round((now[name] - used[name]) / took, 2) for name in now},
        }

    def flap(self, seconds: float) -> dict[str, Any]:
        """Publish while the line comes and goes, at a pace that leaves each number to occur once."""
        traffic = self.traffic
        traffic.check = True
        end = time.monotonic() + seconds
        pace = (IDS - BATCH) / seconds
        began = time.monotonic()
        cuts = 0
        while time.monotonic() < end:
            order(self.line, "cut" if cuts % 2 else "heal")
            cuts += 1
            until = min(end, began + cuts * FLAP_S / 2)
            while (now := time.monotonic()) < until:
                if traffic.sent < pace * (now - began):
                    traffic.send()
                traffic.run(min(now + 0.02, until), publishes=False)
        order(self.line, "heal")
        healed = time.monotonic()
        traffic.run(healed + SILENCE_S, publishes=False)
        took = time.monotonic() - healed
        traffic.run(time.monotonic() + 1.0, publishes=False)
        seen = traffic.seen[: traffic.sent]
        carried = count(self.line)
        return {
            "sent": traffic.sent,
            "missing": seen.count(0),
            "twice": sum(times > 1 for times in seen),
            "seconds_to_catch_up": round(took, 1),
            "connections": carried["connections"],
            "line_bytes_per_message": round(carried["bytes"] / traffic.sent, 1),
        }


def measure(given: argparse.Namespace) -> list[dict[str, Any]]:
    if given.line:
        return [carries(given, congestion) for congestion in ("bbr", "cubic")]
    found = []
    for qos in given.qos:
        for compress in given.zstd:
            with tempfile.TemporaryDirectory(prefix="starlingmq-bench-") as name, ExitStack() as stack:
                bench = Bench(stack, Path(name), given, qos, compress)
                result = bench.flap(given.seconds) if given.flap else bench.speed(given.seconds)
                found.append({"qos": qos, "zstd": compress, **result})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.links", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--qos", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--plain", dest="zstd", action="store_const", const=[False], default=[False, True])
    parser.add_argument("--compressed", dest="zstd", action="store_const", const=[True])
    parser.add_argument("--line", action="store_true", help="the line alone, with one TCP connection")
    parser.add_argument("--flap", action="store_true")
    parser.add_argument("--window", type=int, default=50_000, help="messages between publisher and subscriber")
    parser.add_argument("--round-trip-ms", type=float, default=100.0)
    parser.add_argument("--loss", type=float, default=0.01, help="of the packets, each way")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    try:
        print(json.dumps(measure(given), indent=1))
    except NoLine as error:
        print(error, file=sys.stderr)
        sys.exit(NO_LINE)


if __name__ == "__main__":
    main()
