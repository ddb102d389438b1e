"""``ctl cluster`` at a cluster of three nodes with real etcds, as a user runs it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .clusters import BARE, DEGRADED, Running, control, health_in, kill_node, member_of, running, said, until
from .commands import run, subscriber

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Running]]:
    """Three nodes, begun by ``cluster up``; the directory, and the command. The last test of the file breaks it."""
    directory = tmp_path_factory.mktemp("cluster")
    words = ("cluster", "up", "--nodes", "3", "--dir", str(directory), "--base-port", "0", *BARE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STARLINGMQ_CLUSTER__COPIES", "1")  # else another node serves the data of a lost one
        with running(directory / "log", *words) as command:
            yield directory, command


def test_a_message_published_at_one_node_arrives_at_another(cluster: tuple[Path, Running]) -> None:
    _, command = cluster
    subscription = subscriber(command.urls[1], "-t", "over/#", "-q", "2", "-C", "3", "-v")
    for qos in "012":
        code, _, errors = run("pub", "-L", f"{command.urls[0]}/over/{qos}", "-m", f"at {qos}", "-q", qos)
        assert code == 0, errors
    code, output, errors = subscription.finish()
    assert code == 0, errors
    assert output.splitlines() == [b"over/0 at 0", b"over/1 at 1", b"over/2 at 2"]


def test_status_tells_of_all_members_for_people_and_for_programs(cluster: tuple[Path, Running]) -> None:
    directory, _ = cluster
    found = control(directory, "n1", "status")
    assert found["serving"] and found["node"] == "n1" and found["etcd"]["own"]
    assert [member["name"] for member in found["members"]] == ["n1", "n2", "n3"]
    assert all(member["state"] == "registered" and member["connected"] for member in found["members"])
    code, output, _ = run("ctl", "cluster", "status", "-c", str(directory / "n2" / "starlingmq.yaml"))
    healthy = "HEALTHY: 3 of 3 nodes reachable; quorum holds."
    assert code == 0 and health_in(output) == healthy and b"this node  n2: serves" in output
    code, output, _ = run("ctl", "health", "--cluster", "-c", str(directory / "n2" / "starlingmq.yaml"))
    assert (code, health_in(output)) == (0, healthy)
    assert control(directory, "n3", "members")["members"][0]["name"] == "n1"


def test_routes_are_the_same_wherever_one_looks(cluster: tuple[Path, Running]) -> None:
    directory, command = cluster
    one = subscriber(command.urls[0], "-t", "routes/a", "-t", "$share/g/routes/b")
    two = subscriber(command.urls[1], "-t", "routes/c/+", "-i", "keeps", "-c", "-q", "1")
    try:
        wanted = [
            [{"filter": "routes/a", "durable": False}],
            [{"filter": "routes/c/+", "durable": True}],
            [],
        ]
        for node in ("n1", "n2", "n3"):  # a SUBACK was the promise that all of them know
            found = control(directory, node, "routes", "routes/")
            assert [each["listed"] for each in found["nodes"]] == wanted
        groups = control(directory, "n3", "routes", "$share/", "--node", "n1")["nodes"]
        assert [each["listed"] for each in groups] == [[{"filter": "$share/g/routes/b", "members": 1}]]
    finally:
        one.interrupt()
        two.interrupt()
        one.finish()
        two.finish()
    code, output, _ = run("ctl", "cluster", "routes", "routes/c", "--data-dir", str(directory / "n3" / "data"))
    assert code == 0 and b"persistent sessions" in output
    code, _, errors = run("ctl", "cluster", "routes", "--node", "n9", "--data-dir", str(directory / "n3" / "data"))
    assert code == 2 and "there is no node n9; the members are n1, n2, n3" in errors


def test_a_connected_node_cannot_be_forgotten(cluster: tuple[Path, Running]) -> None:
    directory, _ = cluster
    code, _, errors = run("ctl", "cluster", "forget", "n3", "--data-dir", str(directory / "n1" / "data"))
    assert (
        code == 2
        and errors == "error: n3 is online; let it leave, or stop it (after a crash: wait until its lease expires)\n"
    )
    code, _, errors = run("ctl", "cluster", "forget", "n7", "--data-dir", str(directory / "n1" / "data"))
    assert code == 2 and errors == "error: there is no member n7\n"


def test_a_node_that_drains_hands_its_sessions_over_and_serves_again_when_told(cluster: tuple[Path, Running]) -> None:
    directory, command = cluster
    data = str(directory / "n3" / "data")
    kept = ("-t", "kept", "-i", "stays", "-c", "-q", "1")
    subscriber(command.urls[2], *kept, "-E").finish()
    watching = subscriber(command.urls[2], "-t", "watched", "-i", "watching", "-c", "-q", "1", "-C", "1")
    code, output, errors = run("ctl", "drain", "--data-dir", data)
    assert code == 0, errors
    assert output.startswith(b"n3 is drained: 1 clients redirected, 0 closed, 1 sessions handed over")
    assert "redirecting clients: " in errors
    assert run("pub", "-L", f"{command.urls[0]}/watched", "-m", "elsewhere", "-q", "1")[0] == 0
    assert watching.finish()[1] == b"elsewhere\n"  # it went where it was told
    assert member_of(control(directory, "n3", "members"), "n3")["draining"]
    until(lambda: member_of(control(directory, "n1", "status"), "n3")["draining"])
    unavailable = "UNAVAILABLE: 3 of 3 nodes reachable; quorum holds; this node is draining."
    for words in (("cluster", "status"), ("health", "--cluster"), ("status",)):
        code, output, _ = run("ctl", *words, "--data-dir", data)
        assert (code, health_in(output)) == (1, unavailable), "1: this node does not serve"
    output = run("ctl", "cluster", "status", "--data-dir", data)[1]
    assert b"does not serve clients, because it is drained" in output and b"registered, draining" in output
    assert run("pub", "-L", f"{command.urls[0]}/kept", "-m", "for it", "-q", "1")[0] == 0
    assert subscriber(command.urls[0], *kept, "-C", "1").finish()[1] == b"for it\n"
    assert run("pub", "-L", f"{command.urls[2]}/kept", "-m", "nobody listens")[0] != 0
    code, output, _ = run("ctl", "drain", "--cancel", "--data-dir", data, "--json")
    assert code == 0 and not json.loads(output)["draining"]
    assert run("pub", "-L", f"{command.urls[2]}/kept", "-m", "again")[0] == 0
    until(lambda: not member_of(control(directory, "n1", "status"), "n3")["draining"])


def test_clients_are_spread_over_the_nodes_again(cluster: tuple[Path, Running]) -> None:
    directory, command = cluster
    crowd = [subscriber(command.urls[0], "-t", "crowd") for _ in range(3)]
    for name, clients in (("n1", 3), ("n2", 0), ("n3", 0)):  # those of earlier tests are gone, too
        until(lambda: member_of(control(directory, "n2", "status"), name)["clients"] == clients)  # noqa: B023
    code, output, errors = run("ctl", "rebalance", "--data-dir", str(directory / "n2" / "data"), "--json")
    assert code == 0, errors
    found = json.loads(output)
    assert found["before"] == {"n1": 3, "n2": 0, "n3": 0}
    for name in ("n1", "n2", "n3"):
        until(lambda: member_of(control(directory, "n2", "status"), name)["clients"] == 1)  # noqa: B023
    for each in crowd:
        each.interrupt()
        each.finish()


def check_that_it_is_told_everywhere(directory: Path) -> None:
    """n2 was killed."""
    data = str(directory / "n1" / "data")
    told = re.compile(
        r"DEGRADED: 2 of 3 nodes reachable; n2 gone since \d\d:\d\d:\d\d \(\d+ s\); [\d,]+ messages wait for it; "
        r"quorum holds. Next: start n2 again, or check the network; .*`starlingmq ctl cluster forget n2`"
    )
    for words in (("cluster", "status"), ("health", "--cluster")):
        code, output, errors = run("ctl", *words, "--data-dir", data)
        assert code == DEGRADED, errors
        assert told.fullmatch(health_in(output)), output
    assert re.search(
        r"^n2 +gone +gone for \d+s", run("ctl", "cluster", "members", "--data-dir", data)[1].decode(), re.M
    )
    assert run("ctl", "health", "--data-dir", data)[:2] == (0, b"ok\n"), "clients are served"


def check_the_log(log: Path) -> None:
    """One line of each other node says that n2 was gone, one that it is back, and none is gRPC's."""
    lines = log.read_text().splitlines()
    for name in ("n1", "n3"):
        own = [line for line in lines if line.startswith(f"{name} |")]
        assert len([line for line in own if "node n2 is gone: " in line]) == 1
        assert len([line for line in own if "node n2 is back after " in line or "n2 was disconnected" in line]) <= 2
    assert not re.search("Internal error from Core|Stream removed|Socket closed|grpc", log.read_text(), re.I)


def is_forgotten(directory: Path, name: str) -> bool:
    """False: the etcd that n1 used was that of the node, and it uses another one next time."""
    try:
        return bool(control(directory, "n1", "forget", name) == {"forgot": name})
    except AssertionError as error:
        assert "etcd cannot be reached" in str(error)
        return False


def test_a_node_that_was_killed_comes_back_and_one_that_is_gone_is_forgotten(cluster: tuple[Path, Running]) -> None:
    directory, command = cluster
    settings = directory / "n2" / "starlingmq.yaml"
    kill_node(command, "n2")
    until(lambda: "n2 was ended by signal 9" in (directory / "log").read_text())
    until(lambda: control(directory, "n1", "status")["health"]["status"] == "degraded")
    until(lambda: "etcd" not in control(directory, "n1", "status")["health"]["summary"])  # n2 may have led it
    check_that_it_is_told_everywhere(directory)
    code, _, errors = run("ctl", "cluster", "restart", "--rolling", "--data-dir", str(directory / "n1" / "data"))
    assert code == 2 and errors.startswith("error: no node was restarted: 2 of 3 nodes reachable; n2 gone since ")
    told = re.search(r"restart it with: starlingmq (.*)", said(directory))
    assert told is not None and told[1].split() == ["serve", "-c", str(settings)]
    with running(directory / "log2", *told[1].split()):
        assert control(directory, "n1", "status")["serving"]
        until(lambda: "node n2 is back after " in (directory / "log").read_text())
    check_the_log(directory / "log")
    until(lambda: not member_of(control(directory, "n1", "status"), "n2")["online"])
    until(lambda: is_forgotten(directory, "n2"))
    assert [each["name"] for each in control(directory, "n3", "members")["members"]] == ["n1", "n3"]
    kept = ("-t", "kept", "-i", "outlives", "-c", "-q", "1")
    subscriber(command.urls[2], *kept, "-E").finish()
    assert control(directory, "n3", "leave") == {"left": "n3"}
    until(lambda: "n3 ended with exit status 0" in (directory / "log").read_text())
    alone = control(directory, "n1", "status")
    assert alone["serving"] and [each["name"] for each in alone["members"]] == ["n1"]
    assert run("pub", "-L", f"{command.urls[0]}/kept", "-m", "found", "-q", "1")[0] == 0
    assert subscriber(command.urls[0], *kept, "-C", "1").finish()[1] == b"found\n"
    code, _, errors = run("serve", "-c", str(directory / "n3" / "starlingmq.yaml"))
    assert code == 2 and "has left: delete it, so that the node joins again as a new member" in errors
