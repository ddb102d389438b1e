"""Memory of a stream with many consumers, and the time until it serves after a restart: ``python -m
bench.many_consumers``. Each consumer is durable, with explicit acknowledgements and a filter for one subject."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.process import memory, scheduled_seconds
from bench.stream_cost import PAYLOAD, Connection
from starlingmq.cli.local_cluster import free_ports

SUBJECTS: Final = 1_000
WINDOW: Final = 500
MIB: Final = 1 << 20


def serve(folder: Path, port: int) -> subprocess.Popen[str]:
    """A broker that is ready."""
    command = [sys.executable, "-m", "starlingmq", "serve", "--data-dir", str(folder)]
    process = subprocess.Popen(
        [*command, "--listen", f"nats://127.0.0.1:{port}", "--log-level", "warning"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    if not process.stdout.readline().startswith("ready"):
        raise SystemExit("error: the broker did not start")
    return process


def fill(connection: Connection, messages: int) -> None:
    connection.ask("$JS.API.STREAM.CREATE.M", {"name": "M", "subjects": ["m.*"], "storage": "file"})
    connection.send(b"SUB _A.* 1\r\n")
    for first in range(0, messages, WINDOW):
        connection.send(
            b"".join(
                b"PUB m.%d _A.x %d\r\n%b\r\n" % (number % SUBJECTS, len(PAYLOAD), PAYLOAD)
                for number in range(first, first + WINDOW)
            )
        )
        connection.counted(b'"seq":', WINDOW)
    connection.send(b"UNSUB 1\r\n")


def consume(connection: Connection, consumers: int) -> None:
    """Make them."""
    connection.send(b"SUB _C.* 1\r\n")
    for first in range(0, consumers, WINDOW):
        frames = []
        for number in range(first, first + WINDOW):
            config = {
                "durable_name": f"c{number}",
                "ack_policy": "explicit",
                "filter_subject": f"m.{number % SUBJECTS}",
            }
            body = json.dumps({"stream_name": "M", "config": config}).encode()
            subject = b"$JS.API.CONSUMER.DURABLE.CREATE.M.c%d" % number
            frames.append(b"PUB %b _C.x %d\r\n%b\r\n" % (subject, len(body), body))
        connection.send(b"".join(frames))
        connection.counted(b'"num_pending":', WINDOW)
    connection.send(b"UNSUB 1\r\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--consumers", type=int, default=100_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="starlingmq-bench-") as name:
        (port,) = free_ports(1)
        process = serve(Path(name), port)
        try:
            empty = memory(process.pid).rss
            connection = Connection(port)
            fill(connection, given.messages)
            filled = memory(process.pid).rss
            began = scheduled_seconds(process.pid)
            consume(connection, given.consumers)
            made = scheduled_seconds(process.pid) - began
            full = memory(process.pid).rss
            print(f"{(filled - empty) / given.messages:.0f} bytes a message, {given.messages:,} in the stream")
            print(f"{(full - filled) / given.consumers:.0f} bytes and {made * 1e6 / given.consumers:.0f} us a consumer")
            print(f"{full / MIB:.0f} MiB in all", flush=True)
        finally:
            process.terminate()
            process.wait()
        at = time.perf_counter()
        process = serve(Path(name), port)
        try:
            again = Connection(port)
            told = again.ask(f"$JS.API.CONSUMER.INFO.M.c{given.consumers - 1}")
            seconds = time.perf_counter() - at
            assert told["num_pending"] == given.messages // SUBJECTS, told
            print(f"{seconds:.1f} s until it serves again ({scheduled_seconds(process.pid):.1f} s of CPU), ", end="")
            print(f"{memory(process.pid).rss / MIB:.0f} MiB then")
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
