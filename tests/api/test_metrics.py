"""Metrics: names that every Prometheus user looks for first, and help texts that explain more than the name."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

from starlingmq import Broker, __version__
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.session.queue import MessageQueue

from .conftest import Ask, Join, Serve

FILLERS = {"of", "the", "by", "a", "and", "to", "from"}


async def lines_of(broker: Broker, ask: Ask) -> dict[str, str]:
    text = (await ask(broker, "GET", "/metrics")).text
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


async def test_metrics_have_the_build_the_process_and_the_retained_messages(serve: Serve, join: Join, ask: Ask) -> None:
    broker = await serve()
    before = await lines_of(broker, ask)
    peer = await join(broker, "p")
    await peer.publish("a", b"kept", 1, retain=True)
    lines = await lines_of(broker, ask)
    (build,) = [name for name in lines if name.startswith("starlingmq_build_info{")]
    labels = dict(re.findall(r'(\w+)="([^"]*)"', build))
    assert labels["version"] == __version__ and labels["python"] == platform.python_version()
    assert labels["code"] in ("compiled", "interpreted") and float(lines[build]) == 1
    assert float(lines["starlingmq_retained_messages"]) == float(before["starlingmq_retained_messages"]) + 1
    if sys.platform == "linux":
        assert float(lines["process_open_fds"]) > 3 and float(lines["process_cpu_seconds_total"]) > 0
        assert float(lines["process_resident_memory_bytes"]) > 1 << 20
        samples = (await ask(broker, "GET", "/api/v1/metrics")).json()["samples"]
        assert "process_start_time_seconds" in {sample["name"] for sample in samples}


async def test_a_help_text_says_more_than_the_name(serve: Serve, ask: Ask, tmp_path: Path) -> None:
    broker = await serve(node={"data_dir": str(tmp_path / "data"), "shutdown_timeout": 0.1})
    text = (await ask(broker, "GET", "/metrics")).text
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    assert len(helps) > 40
    for name, said in helps.items():
        new = set(re.findall(r"[a-z]+", said.lower())) - set(re.findall(r"[a-z]+", name)) - FILLERS
        assert len(new) >= 3 and said.endswith("."), f"{name}: {said}"


async def test_messages_beyond_the_limits_of_queues_are_counted_again_with_all_sessions(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    ctx = broker.state.ctx
    queue = ctx.new_session("away").queue = MessageQueue(1, 0)
    for _ in range(4):
        queue.push(Outgoing(Message(b"t", b"", 1, False, b"", 0.0, "", ctx.now), 1, False, b"", None), ctx.now, True)
    ctx.beyond_limits = 1000
    lines = await lines_of(broker, ask)
    assert float(lines["starlingmq_queued_beyond_limits"]) == ctx.beyond_limits == 3
