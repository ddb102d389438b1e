"""``ctl --url``: the work of a remote operator over HTTP, at one broker and in a real cluster of three."""

from __future__ import annotations

import json
import select
from pathlib import Path

import pytest

from .clusters import DEGRADED, kill_node, running, until
from .commands import run, start, subscriber

pytestmark = pytest.mark.slow


def told(*words: str) -> str:
    code, output, errors = run("ctl", *words)
    assert code == 0, (words, errors)
    return output.decode()


def refused(*words: str) -> str:
    code, _, errors = run("ctl", *words)
    assert code == 2, (words, errors)
    return errors


def test_streams_metrics_storage_and_live_messages_of_a_broker(tmp_path: Path) -> None:
    listeners = ("--listen", "mqtt://127.0.0.1:0", "--listen", "http://127.0.0.1:0")
    words = ("serve", "--name", "one", "--data-dir", str(tmp_path / "one"), *listeners)
    with running(tmp_path / "log", *words) as broker:
        mqtt, at = broker.urls[0], ("--url", broker.urls[1])
        assert (
            told("stream", "create", "plant", "-t", "plant/#", "-t", "site/#", *at) == "plant keeps plant/#, site/#\n"
        )
        assert told("stream", "create", "all", "-t", "#", "--everywhere", *at) == "all: done at one\n"
        tail = start("ctl", "tail", "plant/#", "-C", "1", "--json", *at)
        trace = start("ctl", "trace", "--topic", "plant/#", "-C", "1", *at)
        while tail.process.poll() is None or trace.process.poll() is None:  # each begins when it is ready
            assert run("pub", "-L", mqtt, "-t", "plant/1", "-m", "grüße", "-q", "1")[0] == 0
        code, output, errors = tail.finish()
        message = json.loads(output)
        assert (code, message["topic"], message["payload"], message["node"]) == (0, "plant/1", "grüße", "one"), errors
        code, output, errors = trace.finish()
        assert code == 0 and b" one accepted from " in output and b" plant/1 (QoS 1)" in output, errors
        assert told("stream", "show", "plant", *at).startswith("topics         plant/#, site/#\nretention ")
        (plant,) = [
            one for one in json.loads(told("stream", "list", "--json", *at))["streams"] if one["name"] == "plant"
        ]
        assert plant["messages"] == plant["next"] >= 1
        trimmed = told("stream", "trim", "plant", "--all", *at)
        assert trimmed == f"{plant['next']:,} messages deleted; plant now starts at {plant['next']:,}\n"
        assert told("stream", "delete", "plant", *at) == "plant was deleted\n"
        assert "one has no stream named plant" in refused("stream", "show", "plant", *at)
        metric = told("metrics", "starlingmq_clients_conn", *at).splitlines()
        assert metric[-1] == "starlingmq_clients_connected 0.0" and metric[0].startswith("# HELP ")
        assert told("storage", "stats", *at).startswith("state          ok, a broker is running\n")
        assert told("storage", "check", *at).endswith(": whole\n")
        assert " before, " in told("storage", "compact", *at)
        assert "an operator on one asked for storage.check" in (tmp_path / "log").read_text()
        follower = start("ctl", "tail", "plant/#", *at)
        assert follower.process.stdout is not None
        while not select.select([follower.process.stdout], [], [], 0.2)[0]:
            assert run("pub", "-L", mqtt, "-t", "plant/2", "-m", "x")[0] == 0
        code, _, errors = run("backup", str(tmp_path / "copy"), "--data-dir", broker.urls[1])
        assert code == 2 and "needs a data directory" in errors
    code, _, errors = follower.finish()
    assert (code, errors) == (2, f"error: {broker.urls[1]}: the broker ended the connection\n")


@pytest.mark.long(
    kept="tests/cli/test_cluster_commands.py::test_a_node_that_was_killed_comes_back_and_one_that_is_gone_is_forgotten"
)
def test_a_lost_node_is_forgotten_and_another_one_leaves(tmp_path: Path) -> None:
    words = (
        "cluster",
        "up",
        "--nodes",
        "3",
        "--dir",
        str(tmp_path / "c"),
        "--base-port",
        "0",
        "--no-nats",
        "--no-streams",
    )
    with running(tmp_path / "log", *words) as command:
        mqtt, http = command.urls[::2], command.urls[1::2]
        first, third = ("--url", http[0]), ("--url", http[2])
        until(lambda: run("ctl", "cluster", "copies", *first)[0] == 0)
        assert "n2 is online; let it leave, or stop it" in refused("cluster", "forget", "n2", *first)
        subscriber(mqtt[2], "-t", "kept", "-i", "stays", "-c", "-q", "1", "-E").finish()
        assert told("drain", *third).startswith("n3 is drained: ")
        assert told("drain", "--cancel", *third) == "n3 accepts clients again\n"
        assert told("rebalance", *first).splitlines()[0].startswith("n1: 0 clients before, ")
        kill_node(command, "n2")
        until(lambda: run("ctl", "cluster", "status", *first)[0] == DEGRADED)
        until(lambda: run("ctl", "cluster", "forget", "n2", *first)[0] == 0)
        names = [one["name"] for one in json.loads(told("cluster", "members", "--json", *first))["members"]]
        assert names == ["n1", "n3"]
        assert "removed 'n2' from the cluster" in (tmp_path / "log").read_text()
        until(lambda: run("ctl", "cluster", "copies", *first)[0] == 0)
        assert told("cluster", "leave", *third) == "n3 has handed over everything and no longer answers\n"
        until(lambda: "n3 ended with exit status 0" in (tmp_path / "log").read_text())
        assert run("pub", "-L", f"{mqtt[0]}/kept", "-m", "found", "-q", "1")[0] == 0
        found = subscriber(mqtt[0], "-t", "kept", "-i", "stays", "-c", "-q", "1", "-C", "1").finish()
        assert found[1] == b"found\n"
        assert "only member of its cluster" in refused("cluster", "leave", *first)
