"""The log says that a node is gone, what is kept for it, and what it received when it was back; and little else."""

from __future__ import annotations

from tests.cluster.fleet import Fleet

from starlingmq.cluster.links.peer_backlog import PeerBacklog
from starlingmq.cluster.peers.lost_node_reports import PAUSE_FIRST
from starlingmq.config.settings import ClusterConfig
from starlingmq.wire.mqtt import Publish, Subscribe, SubscribeRequest

NOTICED = ClusterConfig().member_timeout + 1.0  # seconds until the other nodes know that a node is gone


def part(fleet: Fleet, number: int) -> None:
    for other in (1, 2, 3):
        if other != number:
            fleet.cut(number, other)


def about(fleet: Fleet, name: str) -> list[str]:
    return [line for line in (*fleet[0].said, *fleet[0].news) if f"node {name} " in line]


def test_one_line_says_that_a_node_is_gone_and_one_what_it_received_when_it_was_back() -> None:
    fleet = Fleet(3)
    reader = fleet.connect(2, "reader", clean_start=False, properties={17: 3600})
    reader.send(Subscribe(1, [SubscribeRequest(b"t", 1)]))
    fleet.advance(1.0)
    assert about(fleet, "n3") == []
    part(fleet, 3)
    fleet.advance(NOTICED)
    (gone,) = about(fleet, "n3")
    assert gone.startswith(
        "node n3 is gone: it is not heard any more; clients that were connected to it: 1; the quorum holds"
    )
    assert "ctl cluster forget n3" in gone
    assert 0 < fleet.now - fleet[0].cluster.reports.gone_since(3) < NOTICED
    author = fleet.connect(0, "author")
    for number in range(7):
        author.send(Publish(b"t", b"m", 1, packet_id=number + 1))
    fleet.advance(1.0)
    waiting = fleet[0].cluster.status()[1].queued
    assert waiting >= 7
    fleet.heal()
    fleet.advance(NOTICED)
    (_, back) = about(fleet, "n3")
    assert back.startswith("node n3 is back after ") and back.endswith(
        f"; the {waiting} messages that waited for it were passed on"
    )
    assert fleet[0].cluster.reports.gone_since(3) == 0.0


def test_what_a_node_has_stored_before_it_is_connected_again_counts_as_passed_on() -> None:
    """Frames that were on their way when the node died are sent again as soon as the node is heard."""
    backlog = PeerBacklog()
    backlog.lose(100, 1)
    backlog.begin(5, 107, 2)
    assert (backlog.total, backlog.passed_on, backlog.dropped, backlog.left) == (13, 7, 1, 5)
    backlog.follow(0, 112, 2)
    assert (backlog.total, backlog.passed_on, backlog.dropped, backlog.left) == (13, 12, 1, 0)
    backlog.follow(0, 120, 3)
    backlog.lose(120, 3)
    assert (backlog.all_passed_on, backlog.all_dropped) == (12, 1)


def test_what_is_passed_on_without_a_data_directory_is_counted() -> None:
    """Then no message is in the window of its node."""
    fleet = Fleet(3)
    reader = fleet.connect(2, "reader", clean_start=False, properties={17: 3600})
    reader.send(Subscribe(1, [SubscribeRequest(b"t", 1)]))
    author = fleet.connect(0, "author")
    fleet.advance(1.0)
    part(fleet, 3)
    fleet.advance(NOTICED)
    for number in range(7):
        author.send(Publish(b"t", b"m", 1, packet_id=number + 1))
    fleet.heal()
    fleet.advance(NOTICED)
    backlog = fleet[0].cluster.transports[3].backlog()
    assert (backlog.total, backlog.passed_on, backlog.dropped, backlog.left) == (7, 7, 0, 0)


def test_messages_that_were_sent_to_a_node_that_is_gone_count_as_waiting() -> None:
    """They were on their way, or in its process, when it ended."""
    fleet = Fleet(3)
    reader = fleet.connect(2, "reader", clean_start=False, properties={17: 3600})
    reader.send(Subscribe(1, [SubscribeRequest(b"t", 1)]))
    fleet.advance(1.0)
    part(fleet, 3)
    author = fleet.connect(0, "author")
    for number in range(7):
        author.send(Publish(b"t", b"m", 1, packet_id=number + 1))
    fleet.advance(NOTICED)
    status = fleet[0].cluster.status()[1]
    assert status.member.name == "n3" and not status.connected and status.queued == 7


def test_another_node_that_serves_the_data_of_a_lost_one_is_named_and_the_way_back_is_no_loss() -> None:
    fleet = Fleet(3)
    servers = {"n3": "n3"}
    fleet[0].cluster.reports.server_of = lambda name: servers.get(name, "")
    fleet.advance(1.0)
    part(fleet, 3)
    fleet.advance(NOTICED)
    servers["n3"] = "n2"
    fleet.heal()
    fleet.advance(NOTICED)
    lost, served = about(fleet, "n3")
    assert "until it is back, or another node serves its data" in lost
    assert served.startswith("n2 serves the data of node n3 after ") and "is back" not in served
    servers["n3"] = "n3"
    part(fleet, 3)
    fleet.advance(NOTICED + PAUSE_FIRST)
    fleet.heal()
    fleet.advance(NOTICED + 2 * PAUSE_FIRST)
    assert len(fleet[0].said) == 1, "data that goes back to its node is no loss"
    (_, moving, again) = [line for line in fleet[0].news if "node n3 " in line]
    assert moving.startswith("node n3 takes its data back from n2; messages for its sessions wait here")
    assert again.startswith("node n3 serves its data again after ")


def test_the_loss_of_a_node_that_serves_the_data_of_another_one_names_it() -> None:
    fleet = Fleet(3)
    servers = {"n3": "n3"}
    fleet[0].cluster.reports.server_of = lambda name: servers.get(name, "")
    fleet.advance(1.0)
    part(fleet, 3)
    fleet.advance(NOTICED)
    lost_at = fleet[0].cluster.reports.last_lost_at(3)
    assert fleet.now - NOTICED < lost_at < fleet.now
    servers["n3"] = "n2"
    fleet.heal()
    fleet.advance(NOTICED)
    part(fleet, 3)
    fleet.advance(NOTICED + 2 * PAUSE_FIRST)
    assert fleet[0].cluster.reports.gone_since(3) > lost_at == fleet[0].cluster.reports.last_lost_at(3)
    assert fleet[0].said[-1].startswith("node n3 is gone: n2, which served its data, is not heard any more")


def test_a_node_that_flaps_does_not_flood_the_log_and_is_reported_when_it_stays_away() -> None:
    fleet = Fleet(3)
    for _ in range(40):
        part(fleet, 3)
        fleet.advance(NOTICED, 0.05)
        fleet.heal()
        fleet.advance(1.0, 0.05)
    lines = about(fleet, "n3")
    assert len([line for line in lines if "times since the last report" in line or "time since" in line]) > 0
    assert 2 <= len(lines) <= 14
    fleet[0].said.clear()
    part(fleet, 3)
    fleet.advance(300.0, 0.25)
    assert len([line for line in fleet[0].said if line.startswith("node n3 is gone")]) == 1


def test_a_member_that_is_away_when_a_node_starts_is_reported() -> None:
    fleet = Fleet(3)
    fleet.end(2)
    fleet.advance(NOTICED)
    fleet.restart(0)
    fleet.advance(20.0)
    assert fleet[0].cluster.serving
    (gone,) = about(fleet, "n3")
    assert "it has not been connected since this node started" in gone


def test_a_node_that_drained_before_its_end_has_stopped_and_is_no_warning() -> None:
    fleet = Fleet(3)
    fleet[2].cluster.begin_drain(fleet.now)
    fleet.advance(1.0)
    fleet.end(2)
    fleet.advance(NOTICED)
    assert [line for line in fleet[0].said if "n3" in line] == []
    assert [line for line in fleet[0].news if "n3" in line] == [
        "node n3 has stopped; messages for its sessions are kept here until it is back (0 now)"
    ]


def test_a_node_that_is_heard_through_another_one_only_is_reported_once() -> None:
    fleet = Fleet(3)
    fleet.cut(1, 3)
    fleet[0].cluster.disconnected(3, fleet.now)
    fleet.advance(10.0)
    relayed, moment = about(fleet, "n3")
    assert relayed.startswith("no direct connection to node n3 for ") and "relayed by other nodes" in relayed
    assert moment.startswith("node n3 was disconnected for 0.") and moment.endswith("; no messages waited for it")
    fleet.heal()
    fleet[0].cluster.connected(3, fleet.now)
    fleet.advance(1.0)
    assert fleet[0].news[-1] == "directly connected to node n3 again"
