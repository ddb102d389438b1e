"""Spark beside the load of ``tests.cluster.chaos_copies``: a pipeline reads the stream ``readings`` and publishes each
row into the stream ``written``. In the end ``written`` has each row of ``readings`` once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from tests.cluster.chaos_streams import TOKEN, stream_rows
from tests.cluster.real import Node
from tests.patience import within

from starlingmq.cli.local_cluster import free_ports

SECONDS: Final = 300.0
LOOK_SECONDS: Final = 1.0
WRITTEN: Final = "written"


class Sparked:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    def listen(self, nodes: Sequence[Node]) -> None:
        """Before the nodes start; after ``keep_stream``."""
        self._ports = free_ports(len(nodes))
        for node, port in zip(nodes, self._ports, strict=True):

            def change(settings: dict[str, Any], port: int = port) -> None:
                streams = settings["streams"]
                streams["listen"] = f"127.0.0.1:{port}"
                streams["define"].append({"name": WRITTEN, "topics": [f"{WRITTEN}/#"]})

            node.configure(change)

    def begin(self, nodes: Sequence[Node]) -> None:
        token = self._directory / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        servers = [f"127.0.0.1:{port}" for port in self._ports]
        pipeline = {
            "name": "chaos",
            "source": {"servers": servers, "stream": "readings", "token_file": str(token), "node_timeout": 120},
            "decode": {"format": "raw"},
            "steps": [{"name": "result", "sql": f"SELECT payload, '{WRITTEN}/rows' AS topic FROM rows"}],
            "sink": {
                "format": "topic",
                "options": {"servers": ",".join(node.url for node in nodes), "nodeTimeout": "120"},
            },
            "trigger": {"every": "1s"},
            "checkpoint": str(self._directory / "checkpoint"),
        }
        path = self._directory / "chaos.yaml"
        path.write_text(yaml.safe_dump(pipeline))
        with (self._directory / "spark.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "starlingmq", "pipeline", "run", str(path)], stdout=log, stderr=log
            )

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    async def check(self, nodes: Sequence[Node]) -> int:
        """Called when nothing more is published and all nodes serve. The number of rows."""
        wanted = await self._payloads(nodes, "readings")
        async with within(SECONDS):
            while sum((found := await self._payloads(nodes, WRITTEN)).values()) < sum(wanted.values()):
                assert self._process is not None and self._process.poll() is None, self._said()
                await asyncio.sleep(LOOK_SECONDS)
        assert found == wanted, f"{len(found - wanted)} rows too many, {len(wanted - found)} rows too few"
        return found.total()

    @staticmethod
    async def _payloads(nodes: Sequence[Node], stream: str) -> Counter[bytes]:
        found: Counter[bytes] = Counter()
        for node in nodes:
            _, rows = await asyncio.to_thread(stream_rows, nodes[0], node.name, stream)
            found.update(payload for _, payload in rows)
        return found

    def _said(self) -> str:
        return (self._directory / "spark.log").read_text()[-2000:]
