"""``python -m bench.transports``: TLS and WebSocket compared with plain TCP, for brokers that have both.

Connections made, memory of an idle connection, and messages at a fixed rate; all brokers with the same certificate
(ECDSA, P-256), TLS 1.3, no resumption, no compression of WebSocket frames.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import trustme
from rich.console import Console

from bench import peers
from bench.cells import RunError, child
from bench.channel import PATH, SCHEMES
from bench.fetched_peers import given, written
from bench.tables import grid
from bench.transport_load import Outcome, Spec

MOSQUITTO_CONF: Final = "listener {port} 127.0.0.1\nallow_anonymous true\nlog_dest none\nset_tcp_nodelay true\n"
FLASHMQ_CONF: Final = "allow_anonymous true\nthread_count 1\nlog_file {folder}/log\nlog_level error\n"
FLASHMQ_LISTEN: Final = "listen {{\n  protocol {protocol}\n  inet4_bind_address 127.0.0.1\n  port {port}\n{tls}}}\n"


class Certificate:
    def __init__(self, folder: Path) -> None:
        issued = trustme.CA(key_type=trustme.KeyType.ECDSA).issue_cert(
            "127.0.0.1", "localhost", key_type=trustme.KeyType.ECDSA
        )
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.key.chmod(0o644)  # mosquitto reads it as another user


Starter = Callable[[str, int, Path, Certificate], list[str]]


def starlingmq(scheme: str, port: int, folder: Path, certificate: Certificate) -> list[str]:
    url = f"{scheme}://127.0.0.1:{port}{PATH if scheme in ('ws', 'wss') else ''}"
    listener: dict[str, object] = {"url": url}
    if scheme in ("mqtts", "wss"):
        listener["tls"] = {"cert": str(certificate.cert), "key": str(certificate.key)}
    return [sys.executable, "-m", "starlingmq", "serve", "--set", f"listeners={json.dumps([listener])}"]


def mosquitto(scheme: str, port: int, folder: Path, certificate: Certificate) -> list[str]:
    text = MOSQUITTO_CONF.format(port=port)
    if scheme in ("ws", "wss"):
        text += "protocol websockets\n"
    if scheme in ("mqtts", "wss"):
        text += f"certfile {certificate.cert}\nkeyfile {certificate.key}\n"
    return [peers.mosquitto_path(), "-c", written(folder / "mosquitto.conf", text)]


def flashmq(scheme: str, port: int, folder: Path, certificate: Certificate) -> list[str]:
    tls = f"  fullchain {certificate.cert}\n  privkey {certificate.key}\n" if scheme in ("mqtts", "wss") else ""
    protocol = "websockets" if scheme in ("ws", "wss") else "mqtt"
    text = FLASHMQ_CONF.format(folder=folder) + FLASHMQ_LISTEN.format(protocol=protocol, port=port, tls=tls)
    return [str(given("FLASHMQ")), "--config-file", written(folder / "flashmq.conf", text)]


STARTERS: Final[dict[str, Starter]] = {"starlingmq": starlingmq, "mosquitto": mosquitto, "flashmq": flashmq}


class Result(msgspec.Struct, frozen=True, kw_only=True):
    peer: str
    scheme: str
    outcome: Outcome | None
    error: str = ""


def measure(peer: str, scheme: str, scale: float) -> Result:
    cores = sorted(os.sched_getaffinity(0))
    try:
        with tempfile.TemporaryDirectory(prefix="starlingmq-bench-") as name:
            folder = Path(name)
            folder.chmod(0o755)
            certificate = Certificate(folder)
            with peers.launched(
                peer, cores[0], folder, lambda port: STARTERS[peer](scheme, port, folder, certificate)
            ) as broker:
                spec = Spec(
                    scheme=scheme,
                    port=broker.port,
                    broker=broker.pid,
                    core=cores[-1],
                    handshakes=int(500 * scale),
                    idle=int(1_000 * scale),
                    pairs=max(1, int(50 * scale)),
                    duration=4 * scale,
                )
                return Result(peer=peer, scheme=scheme, outcome=child("transport_load", spec, Outcome))
    except (RunError, peers.PeerError) as error:
        return Result(peer=peer, scheme=scheme, outcome=None, error=str(error))


def show(results: list[Result], console: Console) -> None:
    columns = (
        "",
        "peer",
        "CPU us a connection",
        "per CPU s",
        "idle bytes",
        "CPU us a message",
        "p50 us",
        "p99",
    )
    table = grid("TLS and WebSocket: 2,000 messages/s over 50 pairs, QoS 0", *columns)
    for each in results:
        if each.outcome is None:
            table.add_row(each.scheme, each.peer, each.error)
            continue
        found = each.outcome
        figures = [f"{found.handshake_us:,.0f}", f"{found.handshakes_per_cpu_s:,.0f}", f"{found.idle_bytes:,.0f}"]
        figures += [f"{found.message_us:.1f}", *(f"{value:,.0f}" for value in found.latency_us)]
        table.add_row(each.scheme, each.peer, *figures)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.transports", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", default=",".join(STARTERS), help="names with commas between them")
    parser.add_argument("--only", default=",".join(SCHEMES), help="schemes with commas between them")
    parser.add_argument("--scale", type=float, default=1.0, help="a part of the connections and of the time")
    parser.add_argument("--out", type=Path, default=Path("out/transports"))
    options = parser.parse_args()
    results: list[Result] = []
    for peer in options.peers.split(","):
        try:
            peers.install(peer)
        except peers.PeerError as error:
            print(f"{peer}: skipped: {error}", file=sys.stderr)
            continue
        results += [measure(peer, scheme, options.scale) for scheme in options.only.split(",")]
    results.sort(key=lambda each: SCHEMES.index(each.scheme))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    show(results, Console(width=None if sys.stdout.isatty() else 150))


if __name__ == "__main__":
    main()
