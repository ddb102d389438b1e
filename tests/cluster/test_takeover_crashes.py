"""A session goes to another node, and the source or the target dies after each step: nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import pytest
from tests.cluster.takeover_world import Roamer, RoamingWorld
from tests.few import few
from tests.sim.clients import Publisher
from tests.sim.network import End, Network
from tests.sim.node import Node
from tests.sim.world import LIVENESS_MAX, World

from starlingmq.cluster.links.peer_frames import Data, Envelope, ShareFrame
from starlingmq.cluster.shares.share_table import share_of
from starlingmq.cluster.takeover.owner_store import OwnerKey
from starlingmq.core.peers.session_transfer import SessionTransfer
from starlingmq.core.session.session import Session
from starlingmq.wire.reasons import ProtocolError

pytestmark = pytest.mark.slow

STEPS = 14  # appends, batches and frames after which a node dies


def made(nodes: int = 3) -> RoamingWorld:
    """So many nodes that keep what they store and serve, without clients."""
    for seed in range(1000):
        world = RoamingWorld(seed)
        plan = world.plan
        if not plan.faulty and plan.nodes == nodes and plan.settings.keeps and plan.settings.span != 3:
            plan.faulty = True  # as far as the checkers go: a session may not be found while its node is down
            world.form()
            return world
    raise AssertionError("no seed draws such a world")


def clients_of(world: RoamingWorld, home: Node, other: Node, messages: int) -> tuple[Roamer, Publisher]:
    """A roamer that is at home, has subscribed to a/#, and will go; and a publisher of so many messages."""
    roamer = Roamer(world.books, world.random, home, "roamer", 5, True)
    publisher = Publisher(world.books, world.random, other, "publisher", 5, True)
    world.subscribers, world.publishers, world.people = [roamer], [publisher], [roamer, publisher]
    roamer.left, publisher.left = 1, messages
    roamer.homes = [home]
    roamer.come()
    publisher.come()
    roamer.subscribe(b"a/#", 2)
    world.pass_time(1.0)
    return roamer, publisher


Way = tuple[Node, Node]  # source, target


def mute(world: World, messages: Sequence[Way] = (), everything: Sequence[Way] = ()) -> None:
    """From now on messages are lost on some ways, and everything is on others, by whichever nodes it goes, but what
    concerns owners of client ids; then no node says that it hears another one, as if more ways were cut."""
    network = world.network
    say_nothing(world, bool(everything))

    def send(source: End, number: int, envelope: Envelope) -> None:
        nodes = {node.process.cluster.number: node for node in world.nodes if node.process is not None}
        way = nodes.get(envelope.source), nodes.get(envelope.target)
        lost = way in everything or (way in messages and isinstance(envelope.body, Data))
        if not lost or isinstance(envelope.body, ShareFrame):
            Network.send(network, source, number, envelope)

    network.send = send  # type: ignore[method-assign]


def say_nothing(world: World, nothing: bool) -> None:
    """Whether the nodes that run now do not hear from the others which nodes these hear."""
    for node in world.nodes:
        if node.process is not None:
            cluster = node.process.cluster
            heard = cluster.view.is_heard_elsewhere
            cluster.takeovers.migrations.ports.heard_elsewhere = (lambda number: False) if nothing else heard


def session_of(node: Node) -> Session | None:
    assert node.process is not None
    return node.process.state.ctx.sessions.get("roamer")


def got(world: RoamingWorld) -> list[int]:
    """How often each message came."""
    return [count for (name, _), each in world.books.got.items() if name == "roamer" for count in each.values()]


def begin_elsewhere(world: RoamingWorld, roamer: Roamer, node: Node) -> None:
    roamer.homes = [node]
    roamer.ending = False
    roamer.come()
    world._wait(lambda: roamer.online, 2.0, "it is not served")


def test_marks_hold_after_a_crash() -> None:
    """A session has not arrived in full when its client starts a new one at a node that cannot be reached from there. A
    third node's cut marker for that node is here; then this node crashes. It may not deliver messages after the marker.
    The marker is stored twice, with the inbound and with the outbound migration; either is enough.
    """
    world = made(5)
    home, between, new, third, fifth = world.nodes
    roamer, publisher = clients_of(world, home, third, 0)
    slow = [(fifth, home), (fifth, between)]  # the nodes whose cut markers are awaited
    apart = [way for node in (home, between) for way in ((new, node), (node, new))]
    mute(world, slow)
    roamer.cut()
    begin_elsewhere(world, roamer, between)
    roamer.ending = True
    roamer.cut()
    mute(world, slow, apart)
    world.pass_time(1.1)
    begin_elsewhere(world, roamer, new)
    world.pass_time(0.5)
    assert between.process is not None and third.process is not None
    outbound_of = between.process.cluster.takeovers.migrations.outbound_of["roamer"]
    assert [outbound.marks() for outbound in outbound_of] == [[third.process.cluster.number]], (
        "the mark is not there when it crashes"
    )
    between.crash(False)
    world.start_if_wanted(between)
    world.pass_time(0.5)
    mute(world, slow)
    world._wait(world._all_serve, 10.0, "not all serve")
    world.pass_time(1.0)
    roamer.left, publisher.left = 1, 1
    roamer.subscribe(b"a/#", 2)
    world._wait(lambda: roamer.left == 0 and roamer.finished(), 5.0, "it is not subscribed")
    publisher.publish(b"a/1", 2)
    world.pass_time(1.0)
    mute(world)
    world._wait(world._balanced, LIVENESS_MAX, "something is lost")
    world._wait(lambda: not world.unsettled(), LIVENESS_MAX, "sessions are not where they belong")
    assert got(world) == [1]


def test_marks_of_a_session_that_leaves_hold_after_a_crash() -> None:
    """As above, but the session was all there, so its marks are stored with the migration from there and nowhere else.
    A message of the third node that it took in spite of the mark would be delivered twice."""
    world = made(5)
    home, new, third, fourth, fifth = world.nodes
    roamer, publisher = clients_of(world, home, third, 0)
    slow = [(fifth, home), (fourth, home)]  # the nodes whose cut markers are awaited
    mute(world, slow, [(new, home), (home, new)])
    roamer.ending = True
    roamer.cut()
    world.pass_time(1.1)
    begin_elsewhere(world, roamer, new)
    world.pass_time(0.5)
    assert home.process is not None and third.process is not None
    (outbound,) = home.process.cluster.takeovers.migrations.outbound_of["roamer"]
    assert third.process.cluster.number in outbound.marks(), "the mark is not there when it crashes"
    home.crash(False)
    world.start_if_wanted(home)
    world.pass_time(0.5)
    mute(world, slow)
    world._wait(world._all_serve, 10.0, "not all serve")
    world.pass_time(1.0)
    roamer.left, publisher.left = 1, 1
    roamer.subscribe(b"a/#", 2)
    world._wait(lambda: roamer.left == 0 and roamer.finished(), 5.0, "it is not subscribed")
    publisher.publish(b"a/1", 2)
    world.pass_time(1.0)
    mute(world)
    world._wait(world._balanced, LIVENESS_MAX, "something is lost")
    world._wait(lambda: not world.unsettled(), LIVENESS_MAX, "sessions are not where they belong")
    assert got(world) == [1]


def test_a_node_that_waits_only_for_a_marker_does_so_after_a_crash() -> None:
    """All of a session has come, with what a third node had sent before its mark. The mark, and what came before it,
    are still on their way from there to the new owner, which crashes."""
    world = made()
    home, new, third = world.nodes
    roamer, publisher = clients_of(world, home, third, 0)
    mute(world, [(third, new), (new, third)])
    roamer.cut()
    begin_elsewhere(world, roamer, new)
    world.pass_time(0.3)
    publisher.left = 1
    publisher.publish(b"a/1", 2)
    world.pass_time(0.3)
    mute(world, [(third, new)])
    world._wait(lambda: got(world) == [1], 5.0, "it does not come")
    roamer.ending = True
    roamer.cut()
    session = session_of(new)
    assert session is not None and session.moving is not None and session.moving.former_filters, "it is over too early"
    new.crash(False)
    world.start_if_wanted(new)
    world.pass_time(0.5)
    mute(world)
    roamer.ending = False
    roamer.come()
    world._wait(lambda: not world.unsettled(), LIVENESS_MAX, "sessions are not where they belong")
    world._wait(world._balanced, LIVENESS_MAX, "something is lost")
    assert got(world) == [1]


def test_a_window_that_was_whole_before_a_crash_is_whole_after_it() -> None:
    """The target has the session, and still waits for a third node that may have a later one, when it crashes. The
    source does not say again that the window is complete. The third node cannot be reached then.
    """
    world = made()
    home, new, third = world.nodes
    roamer, publisher = clients_of(world, home, third, 0)
    assert new.process is not None and third.process is not None
    for node in world.nodes:  # a claim of the third node
        book = None if node.process is None else node.process.cluster.shares.books.books.get(share_of("roamer"))
        if book is not None:
            epoch = book.counter + 1
            book.put("roamer", OwnerKey(third.process.cluster.number, epoch, epoch, 1))
    mute(world, [(third, new), (third, home)])
    roamer.ending = True
    roamer.cut()
    roamer.ending, roamer.homes = False, [new]
    roamer.come()
    world.pass_time(0.5)
    (inbound,) = new.process.cluster.takeovers.migrations.of("roamer")
    assert inbound.whole and not inbound.open
    roamer.ending = True
    new.crash(False)
    mute(world, [(third, home)], [(third, new), (new, third)])
    world.pass_time(1.5)
    world.start_if_wanted(new)
    say_nothing(world, True)
    world.pass_time(1.5)
    begin_elsewhere(world, roamer, new)
    mute(world)
    world._wait(world._all_serve, 10.0, "not all serve")
    roamer.left, publisher.left = 1, 1
    roamer.subscribe(b"a/#", 2)
    world._wait(lambda: roamer.left == 0 and roamer.finished(), 5.0, "it is not subscribed")
    publisher.publish(b"a/1", 2)
    world._wait(lambda: not world.unsettled(), LIVENESS_MAX, "sessions are not where they belong")
    world._wait(world._balanced, LIVENESS_MAX, "something is lost")
    assert got(world) == [1]


def test_a_clean_start_holds_after_a_crash() -> None:
    """The earlier session was still on its way to the node that crashes."""
    world = made()
    home, new, other = world.nodes
    roamer, publisher = clients_of(world, home, other, 0)
    roamer.ending = True
    roamer.cut()
    publisher.left = 1
    publisher.publish(b"a/1", 2)
    world.pass_time(0.5)
    mute(world, [(home, new), (other, home)])
    roamer.ending, roamer.homes = False, [new]
    roamer.come()
    world.pass_time(0.5)
    roamer.ending = True
    roamer.cut()
    clean = Roamer(world.books, world.random, new, "roamer", 5, False)
    begin_elsewhere(world, clean, new)
    clean.ending = True
    clean.cut()
    world.pass_time(0.2)
    new.crash(False)
    mute(world, [(other, home)])
    world.start_if_wanted(new)
    world.pass_time(2.0)
    mute(world)
    world.pass_time(2.0)
    assert [session_of(node) for node in world.nodes] == [None, None, None], "it is back"
    begin_elsewhere(world, roamer, new)
    world.pass_time(1.0)
    assert got(world) == []
    world._wait(lambda: not world.unsettled(), LIVENESS_MAX, "sessions are not where they belong")


@pytest.mark.parametrize("victim", ["former owner", "new owner"])
@pytest.mark.parametrize("apart", few([1, 3], 3))
def test_a_crash_at_each_step(victim: str, apart: int) -> None:
    """Or at one step of three."""
    for step in range(0, STEPS, apart):
        crash_at(step, victim)


def crash_at(step: int, victim: str) -> None:
    world = made()
    here, there, other = world.nodes
    roamer, publisher = clients_of(world, here, other, 10)
    roamer.homes = [there]
    roamer.cut()
    for number in range(6):
        publisher.publish(b"a/1", 1 + number % 2)
    world.pass_time(0.04)
    dies = here if victim == "former owner" else there
    dies.machine.fuse = step
    world.pass_time(1.0)
    dies.machine.fuse = 1 << 60
    if dies.process is not None:
        dies.crash(False)
    world.pass_time(0.5)
    world.start_if_wanted(dies)
    roamer.homes = []
    for number in range(4):
        publisher.publish(b"a/1", 1 + number % 2)
    world._wait(world._balanced, LIVENESS_MAX, f"step {step}")
    world._wait(lambda: not world.unsettled(), LIVENESS_MAX, f"step {step}")
    got = {payload for (name, _), each in world.books.got.items() if name == "roamer" for payload in each}
    assert len(got) == 10, f"step {step}: {len(got)} of 10 messages came"


def ask_for_a_window(step: int) -> None:
    """The source has been restarted, so that of a window it has the places of its messages on the disk. It crashes at
    this step of the takeover: perhaps when it has asked for the messages, before they are here."""
    world = made()
    home, new, third = world.nodes
    roamer, publisher = clients_of(world, home, third, 3)
    with patch.object(roamer, "_answer", lambda packet: None):
        for _ in range(3):
            publisher.publish(b"a/1", 1)
        world.pass_time(0.5)
        roamer.ending = True
        roamer.cut()
    home.crash(False)
    world.pass_time(0.5)
    world.start_if_wanted(home)
    world._wait(world._all_serve, 10.0, "not all serve")
    world.pass_time(0.5)
    roamer.ending, roamer.homes = False, [new]
    home.machine.fuse = step
    roamer.come()
    world.pass_time(0.5)
    home.machine.fuse = 1 << 60
    if home.process is not None:
        home.crash(False)
    world.pass_time(0.5)
    world.start_if_wanted(home)
    world._wait(world._balanced, LIVENESS_MAX, f"step {step}")
    world._wait(lambda: not world.unsettled(), LIVENESS_MAX, f"step {step}")
    assert set(got(world)) <= {1, 2} and sum(got(world)) == 6, f"step {step}"


def test_a_window_is_read_back_before_it_is_handed_over() -> None:
    """Each message comes, and once more at the new node, since the first time was not acknowledged."""
    for step in range(9):
        ask_for_a_window(step)


@pytest.mark.interpreted_only("what is compiled can not be patched")
def test_a_window_that_is_handed_over_without_being_read_back_is_found() -> None:
    with (
        patch.object(SessionTransfer, "go_on_leaving", lambda self, session: None),
        pytest.raises(ProtocolError, match="without a topic"),
    ):
        test_a_window_is_read_back_before_it_is_handed_over()
