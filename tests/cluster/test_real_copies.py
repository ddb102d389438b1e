"""Copies in real processes: what was acknowledged survives the loss of a disk, and is served by another node."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from unittest.mock import ANY

import pytest
import yaml
from tests.cluster.chaos_streams import keep_stream, stream_rows
from tests.cluster.real import AwayError, Cluster, Node
from tests.patience import slowness, within

from starlingmq.client import Client, ClientError
from starlingmq.client.options import QOS

SECONDS = 30.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]


def session(node: Node) -> Client:
    return Client(node.url, client_id="sleeper", clean_start=False, session_expiry=3600)


async def subscribe(node: Node, topic: str, qos: int) -> None:
    async with session(node) as client, within(SECONDS):
        assert await client.subscribe(topic, QOS[qos]) == [qos]


async def found(node: Node, count: int) -> list[int]:
    """The numbers that wait for the sleeper, as that node gives them once it has its session."""
    numbers: list[int] = []
    async with within(SECONDS):
        while len(numbers) < count:
            with suppress(ClientError, OSError, TimeoutError):
                async with session(node) as client, asyncio.timeout(2.0):
                    async for message in client.messages():
                        numbers.append(int(message.payload))
    return numbers


def in_step_of(node: Node) -> list[str]:
    """The nodes that have everything that it acknowledges, in order. Raises AwayError."""
    own = next(each for each in node.ask("cluster.copies")["nodes"] if each["node"] == node.name)
    return list(own["in_step"])


def is_copied(node: Node, copies: int) -> bool:
    """Whether that many nodes have everything that it acknowledges."""
    try:
        return len(in_step_of(node)) >= copies
    except AwayError:
        return False


async def forget(cluster: Cluster, lost: Node, at: Node) -> None:
    """Once the lease of the lost node has expired."""

    def is_forgotten() -> bool:
        with suppress(AwayError):
            return bool(at.ask("cluster.forget", name=lost.name) == {"forgot": lost.name})
        return False

    await cluster.until(is_forgotten, f"{lost.name} is forgotten", SECONDS)


async def copied(cluster: Cluster, copies: int) -> None:
    await cluster.until(lambda: all(is_copied(node, copies) for node in cluster.nodes), "all nodes have copies")


@pytest.mark.long(
    kept="tests/cluster/test_real_copies.py"
    "::test_a_cluster_without_copies_gets_them_while_one_node_after_the_other_restarts"
)
@pytest.mark.parametrize(("copies", "qos"), [(2, 1), (3, 2)])
async def test_what_waits_for_a_client_survives_the_disk_of_its_node(tmp_path: Path, copies: int, qos: int) -> None:
    with Cluster(tmp_path, 3, {"copies": copies}, proxies=False) as cluster:
        await cluster.whole()
        await copied(cluster, copies)
        one, two, three = cluster.nodes
        await subscribe(three, "to/sleeper", qos)
        async with Client(three.url) as client, within(SECONDS):
            for number in range(50):
                await client.publish("to/sleeper", b"%d" % number, qos=QOS[qos])
        three.kill()
        shutil.rmtree(three.data_dir)
        async with session(
            two
        ) as client:  # at once: its CONNECT waits until another node serves the data of the lost one
            assert client.session_present
        assert await found(two, 50) == list(range(50))
        await subscribe(one, "to/sleeper", qos)
        three.start()
        await cluster.whole()
        async with Client(three.url) as client, within(SECONDS):
            await client.publish("to/sleeper", b"50", qos=QOS[qos])
        assert await found(three, 1) == [50]
        assert not cluster.complaints()


@pytest.mark.long(kept="tests/cluster/test_copies_worlds.py")
async def test_nothing_is_acknowledged_that_its_follower_does_not_have(tmp_path: Path) -> None:
    with Cluster(tmp_path, 2, {"copies": 2, "min_copies": 2}, proxies=False) as cluster:
        await cluster.whole()
        await copied(cluster, 2)
        one, two = cluster.nodes
        await subscribe(one, "to/sleeper", 1)
        async with Client(one.url, client_id="publisher") as client, within(SECONDS):
            await client.publish("to/sleeper", b"0", qos=1)
            two.freeze()
            with pytest.raises((ClientError, TimeoutError)):
                async with asyncio.timeout(2.0):
                    await client.publish("to/sleeper", b"1", qos=1)
            two.thaw()
        await cluster.until(lambda: is_copied(one, 2), "the follower is in step again")


@pytest.mark.long(kept="tests/storage/test_copies.py")
async def test_a_node_without_a_follower_says_that_it_is_not_ready(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, {"copies": 3, "min_copies": 3}, proxies=False) as cluster:
        await cluster.whole()
        await copied(cluster, 3)
        one, two, three = cluster.nodes
        three.kill()
        await subscribe_refused(cluster, one)
        assert two.serves()
        three.start()
        await cluster.whole()
        await copied(cluster, 3)
        await subscribe(one, "to/sleeper", 1)


@pytest.mark.long(kept="tests/cluster/test_leaving_nodes.py")
async def test_a_drain_waits_until_other_nodes_have_copies(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, {"copies": 2, "lease_ttl": 3, "drain_copy_timeout": "2s"}, proxies=False) as cluster:
        await cluster.whole()
        await copied(cluster, 2)
        one, two, three = cluster.nodes
        own = next(each for each in one.ask("cluster.copies")["nodes"] if each["node"] == one.name)
        follower = cluster[own["followers"][0]["node"]]
        assert one.ask("cluster.drain")["only_here"] == []
        one.ask("drain.cancel")
        follower.stop()  # a killed one would be replaced at once

        def is_alone() -> bool:
            (other,) = {two, three} - {follower}
            found = one.ask("cluster.drain", no_wait="yes")
            return other.is_ready() and one.name in found["only_here"] and found["waits_for_copies"]

        await cluster.until(is_alone, "no other node has the data")
        found = await asyncio.to_thread(one.ask, "cluster.drain")  # it waits until the time is over
        assert one.name in found["only_here"] and not found["waits_for_copies"]
        one.ask("drain.cancel")
        follower.start()
        found = await asyncio.to_thread(one.ask, "cluster.drain")
        await cluster.whole()
        await cluster.until(lambda: not one.ask("cluster.drain")["only_here"], "the follower has its copy again")


@pytest.mark.long(kept="tests/cluster/test_gone_nodes.py")
async def test_the_health_names_missing_copies_and_the_node_that_serves_the_data_of_a_lost_one(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, {"copies": 2, "lease_ttl": 3}, proxies=False) as cluster:
        await cluster.whole()
        await copied(cluster, 2)
        one = cluster.nodes[0]
        assert one.status()["health"]["status"] == "healthy"
        own = next(each for each in one.ask("cluster.copies")["nodes"] if each["node"] == one.name)
        lost = cluster[own["followers"][0]["node"]]
        lost.kill()

        def is_named() -> bool:
            health = one.status()["health"]
            return health["status"] == "degraded" and f"whole copy of the data of {one.name}" in health["summary"]

        await cluster.until(is_named, "the missing copy is named")

        def is_served_elsewhere() -> bool:
            health = one.status()["health"]
            (gone,) = health["gone"]
            return bool(gone["served_by"])

        await cluster.until(is_served_elsewhere, "another node serves its data")
        health = one.status()["health"]
        (gone,) = health["gone"]
        assert health["status"] == "degraded" and health["reachable"] == 2 and health["members"] == 3
        assert f"2 of 3 nodes reachable; {lost.name} gone since " in health["summary"]
        assert f"{gone['served_by']} serves its data" in health["summary"] and gone["seconds"] > 0
        assert f"forget {lost.name}" in health["next"]
        listed = {each["name"]: each for each in one.status()["members"]}
        assert {name for name, each in listed.items() if each["gone"]} == {lost.name}
        assert listed[lost.name]["served_by"] and listed[lost.name]["gone_since"] == gone["since"]
        lost.start()
        await cluster.whole()
        await cluster.until(lambda: one.status()["health"]["status"] == "healthy", "it is back")


@pytest.mark.long(kept="tests/cluster/test_lost_node_reports.py")
async def test_a_node_is_gone_as_soon_as_another_one_serves_its_data(tmp_path: Path) -> None:
    """Also while its lease in etcd lasts, and although no copy is missing."""
    with Cluster(tmp_path, 3, {"copies": 3, "lease_ttl": 30}, proxies=False) as cluster:
        await cluster.whole()
        await copied(cluster, 3)
        one, _, lost = cluster.nodes
        lost.kill()

        def server() -> str:
            views = one.ask("cluster.copies")["nodes"]
            return str(next(view["server"] for view in views if view["node"] == lost.name))

        await cluster.until(lambda: server() != lost.name, "another node serves its data")
        health = one.status()["health"]
        assert health["status"] == "degraded" and health["reachable"] == 2
        assert [(gone["name"], gone["served_by"]) for gone in health["gone"]] == [(lost.name, server())]


async def subscribe_refused(cluster: Cluster, node: Node) -> None:
    async def refused() -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(3.0):
                try:
                    async with session(node) as client:
                        return await client.subscribe("to/sleeper", 1) == [0x97]
                except ClientError as error:
                    return "0x97" in str(error) or "quota" in str(error).lower()
        return False

    async with within(SECONDS):
        while not await refused():
            await asyncio.sleep(0.1)


@pytest.mark.long(kept="tests/cluster/test_copies_worlds.py")
async def test_all_nodes_of_a_cluster_with_copies_restart_with_their_disks(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, {"copies": 2}, proxies=False) as cluster:
        await cluster.whole()
        await copied(cluster, 2)
        await subscribe(cluster.nodes[0], "to/sleeper", 1)
        async with Client(cluster.nodes[1].url) as client, within(SECONDS):
            for number in range(50):
                await client.publish("to/sleeper", b"%d" % number, qos=1)
        for node in cluster.nodes:
            node.kill()
        for node in cluster.nodes:
            node.start()
        await cluster.whole()
        assert await found(cluster.nodes[2], 50) == list(range(50))
        await copied(cluster, 2)
        assert not cluster.complaints()


@pytest.mark.long(kept="tests/cluster/test_copy_roles.py")
async def test_an_older_copy_is_kept_and_served_once_an_operator_gives_up_the_lost_disk(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, {"copies": 2, "lease_ttl": 3}, proxies=False) as cluster:
        await cluster.whole()
        await copied(cluster, 2)
        views = cluster.nodes[0].ask("cluster.copies")["nodes"]
        followers = {view["node"]: view["followers"][0]["node"] for view in views}
        # The follower's own data must not be lost with this disk, too: the third node has a copy of it.
        lost = next(node for node in cluster.nodes if followers[followers[node.name]] != node.name)
        follower = cluster[followers[lost.name]]
        (other,) = [node for node in cluster.nodes if node not in (lost, follower)]
        await subscribe(lost, "to/sleeper", 1)
        async with Client(lost.url, client_id="dozer", clean_start=False, session_expiry=3600):
            pass
        async with Client(lost.url) as client, within(SECONDS):
            for number in range(50):
                await client.publish("to/sleeper", b"%d" % number, qos=1)
            follower.kill()
            for number in range(50, 53):  # these are acknowledged without the follower
                await client.publish("to/sleeper", b"%d" % number, qos=1)
        lost.kill()
        shutil.rmtree(lost.data_dir)
        follower.start()
        lost.start()

        def waits(node: Node) -> bool:
            with suppress(AwayError):
                views = node.ask("cluster.copies")["nodes"]
                return any(each["node"] == lost.name and "give-up" in each["unserved"] for each in views)
            return False

        await cluster.until(lambda: waits(lost) and waits(other), "both say that no node serves the data")
        await cluster.until(lambda: "not serving yet: only this node had" in lost.said(), "the log says so, too")
        await cluster.until(lambda: follower.serves(), "the follower is back")
        assert not lost.is_ready()
        async with Client(other.url, client_id="dozer", clean_start=False) as client:
            assert not client.session_present  # no node waits for the one that waits for an operator
        with pytest.raises(AwayError, match="add --force"):
            other.ask("cluster.give_up", name=lost.name)
        assert await asyncio.to_thread(other.ask, "cluster.give_up", name=lost.name, force="yes") == {
            "node": lost.name,
            "server": follower.name,
            "lost": ANY,
        }
        await cluster.whole()
        assert await found(lost, 50) == list(range(50))
        await copied(cluster, 2)


@pytest.mark.long(kept="tests/cluster/test_copy_roles.py")
async def test_a_node_with_a_new_disk_does_not_start_without_the_copies_that_it_had(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, {"copies": 2}, proxies=False) as cluster:
        await cluster.whole()
        await copied(cluster, 2)
        three = cluster.nodes[2]
        three.stop()
        shutil.rmtree(three.data_dir)
        three.configure(lambda settings: settings["cluster"].update(copies=1))
        before = three.said_bytes()
        three.start()
        await cluster.until(lambda: "etcd lists copies of the data of n3" in three.said(), "the node says why it ends")
        assert "\nready " not in three.said(before)
        three.stop()
        three.configure(lambda settings: settings["cluster"].update(copies=2))
        three.start()
        await cluster.whole()
        await copied(cluster, 2)


@pytest.mark.long(kept="tests/cluster/test_copy_roles.py")
async def test_nobody_serves_the_data_of_a_node_that_has_left(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, {"copies": 2, "lease_ttl": 3, "copy_timeout": "5s"}, proxies=False) as cluster:
        await cluster.whole()
        await copied(cluster, 2)
        one, two, three = cluster.nodes
        assert one.status()["health"]["status"] == "healthy"
        await asyncio.to_thread(three.ask, "cluster.leave", force="yes")
        assert {each["node"] for each in one.ask("cluster.copies")["nodes"]} == {"n1", "n2"}

        def is_alone() -> bool:
            views = one.ask("cluster.copies")["nodes"]
            return all(each["in_step"] == ["n1", "n2"] for each in views)

        await cluster.until(is_alone, "the lease of the node is over, and the others have each other's data")
        assert {each["name"] for each in one.status()["members"]} == {"n1", "n2"}
        assert "taking over the data of n3" not in one.said() + two.said()


@pytest.mark.long(kept="tests/cluster/test_copy_roles.py")
async def test_a_lost_node_that_is_forgotten_is_handed_over_first_and_returns_without_its_old_data(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, 3, {"copies": 2, "lease_ttl": 3}, proxies=False) as cluster:
        await cluster.whole()
        await copied(cluster, 2)
        one, two, three = cluster.nodes
        await subscribe(three, "to/sleeper", 2)
        async with Client(three.url) as client, within(SECONDS):
            for number in range(50):
                await client.publish("to/sleeper", b"%d" % number, qos=2)
        three.kill()
        await forget(cluster, three, one)
        assert {each["node"] for each in one.ask("cluster.copies")["nodes"]} == {"n1", "n2"}
        assert await found(two, 50) == list(range(50))
        await cluster.until(
            lambda: not any((node.data_dir / "copies" / three.name).exists() for node in (one, two)),
            "the copies of its data are deleted",
        )
        shutil.rmtree(three.data_dir / "etcd")  # as its error says
        three.configure(lambda settings: settings["cluster"]["etcd"].update(join=etcd_of(one), initial_members=[]))
        three.start()
        await cluster.whole()
        assert "begins without data" in three.said() and (three.data_dir / "aside-1" / "journal").is_dir()
        await copied(cluster, 2)
        await subscribe(three, "to/sleeper", 2)
        async with Client(one.url) as client, within(SECONDS):
            await client.publish("to/sleeper", b"50", qos=2)
        assert await found(three, 1) == [50]  # and nothing that its old disk had
        with pytest.raises(AwayError):
            one.ask("cluster.forget", name="n9")


async def test_a_cluster_without_copies_gets_them_while_one_node_after_the_other_restarts(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, proxies=False) as cluster:
        await cluster.whole()
        one, two, three = cluster.nodes
        await subscribe(three, "to/sleeper", 1)
        async with Client(one.url) as client, within(SECONDS):
            for number in range(50):
                await client.publish("to/sleeper", b"%d" % number, qos=1)
        for node in cluster.nodes:
            node.stop()
            node.configure(lambda settings: settings["cluster"].update(copies=2))
            node.start()
            await cluster.whole()
        await copied(cluster, 2)
        three.kill()
        shutil.rmtree(three.data_dir)
        async with session(two) as client:  # its CONNECT waits until another node serves the data of the lost one
            assert client.session_present
        assert await found(two, 50) == list(range(50))
        await subscribe(one, "to/sleeper", 1)
        three.start()
        await cluster.whole()
        async with Client(three.url) as client, within(SECONDS):
            await client.publish("to/sleeper", b"50", qos=1)
        assert await found(three, 1) == [50]
        assert not cluster.complaints()


def etcd_of(node: Node) -> list[str]:
    settings = yaml.safe_load(node.settings.read_text())
    return [f"127.0.0.1:{settings['cluster']['etcd']['client_port']}"]


@pytest.mark.long(kept="tests/storage/test_copies.py")
async def test_the_stream_of_a_lost_node_is_read_with_the_same_offsets(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    cluster = Cluster(tmp_path, 3, {"copies": 2}, proxies=False)
    for node in cluster.nodes:
        node.configure(keep_stream)
    with cluster:
        await cluster.whole()
        await copied(cluster, 2)
        one, _, three = cluster.nodes
        async with Client(three.url) as client, within(SECONDS):
            for number in range(100):
                await client.publish("readings/a", b"%d" % number, qos=1)
        before = await asyncio.to_thread(stream_rows, one, three.name)
        assert [payload for _, payload in before[1]] == [b"%d" % number for number in range(100)]
        three.kill()
        shutil.rmtree(three.data_dir)
        assert await asyncio.to_thread(stream_rows, one, three.name) == before
        three.start()
        await cluster.whole()
        async with Client(three.url) as client, within(SECONDS):
            await client.publish("readings/a", b"100", qos=1)
        id, rows = await asyncio.to_thread(stream_rows, one, three.name)
        assert id == before[0]
        assert rows == [*before[1], (before[1][-1][0] + 1, b"100")]


@pytest.mark.long(kept="tests/storage/test_copy_directory.py")
async def test_two_disks_that_were_swapped_are_refused_and_nothing_is_replaced(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, {"copies": 2, "lease_ttl": 3}, proxies=False) as cluster:
        await cluster.whole()
        await copied(cluster, 2)
        one, two, three = cluster.nodes
        await subscribe(two, "to/sleeper", 1)
        async with Client(one.url) as client, within(SECONDS):
            for number in range(20):
                await client.publish("to/sleeper", b"%d" % number, qos=1)
        aside = tmp_path / "aside"

        def swap() -> None:
            two.data_dir.rename(aside)
            three.data_dir.rename(two.data_dir)
            aside.rename(three.data_dir)

        for node in (two, three):
            node.kill()
        swap()
        for node, owner in ((two, "n3"), (three, "n2")):
            node.start()
            assert node.process is not None
            assert await asyncio.to_thread(node.process.wait, SECONDS * slowness()) == 2
            assert f"has the data of {owner}, and this node is {node.name}" in node.said()
        swap()
        for node in (two, three):
            node.start()
        await cluster.whole()
        await copied(cluster, 2)
        assert await found(two, 20) == list(range(20))
        assert not cluster.complaints()


@pytest.mark.long(kept="tests/cluster/test_process_presence.py")
async def test_a_node_whose_follower_was_forgotten_gets_another_follower(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, {"copies": 2, "lease_ttl": 3}, proxies=False) as cluster:
        await cluster.whole()
        await copied(cluster, 2)
        one = cluster.nodes[0]
        (follower,) = set(in_step_of(one)) - {one.name}
        lost = cluster[follower]
        lost.kill()
        await forget(cluster, lost, one)
        (other,) = set(cluster.nodes) - {one, lost}
        wanted = [one.name, other.name]
        await cluster.until(lambda: in_step_of(one) == wanted, "another node has it, long before copy_timeout")


@pytest.mark.long(alone="the answer comes after the time that a real node gives members of groups")
async def test_a_node_whose_messages_wait_for_a_group_is_not_forgotten_and_the_answer_says_so(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, {"copies": 2, "lease_ttl": 3}, proxies=False) as cluster:
        await cluster.whole()
        await copied(cluster, 2)
        one, _, three = cluster.nodes
        await subscribe(three, "$share/crew/to/crew", 1)
        async with Client(three.url) as client, within(SECONDS):
            for number in range(3):
                await client.publish("to/crew", b"%d" % number, qos=1)
        three.kill()

        def answer() -> str:
            try:
                return str(one.ask("cluster.forget", name=three.name))
            except AwayError as error:
                return str(error)

        told: list[str] = []

        def says_so() -> bool:
            told.append(answer())
            return "wait at n3 for members of shared groups" in told[-1]

        await cluster.until(says_so, f"the reason: {told}", 120.0)
