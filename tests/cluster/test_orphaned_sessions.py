"""A node that was forgotten is started again, with what it had on its disk (docs/SESSIONS.md)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cluster.lone_store import LoneStore
from tests.cluster.return_world import run
from tests.cluster.takeover_world import Roamer, RoamingWorld
from tests.cluster.test_takeover_crashes import clients_of, got, made, mute
from tests.few import few
from tests.harness import World
from tests.sim.network import End, Network
from tests.sim.node import Node
from tests.sim.world import LIVENESS_MAX

from starlingmq.cluster.links.peer_frames import DataAck, Envelope
from starlingmq.cluster.takeover.orphaned_sessions import OrphanedSessions
from starlingmq.cluster.takeover.owner_store import OwnerKey
from starlingmq.cluster.takeover.takeover import Takeovers
from starlingmq.core.context.context import SEQUENCE_SHIFT
from starlingmq.core.publish.publishing import RETURNED


class Story:
    """A subscriber at home, where messages wait for it, and a publisher at another node."""

    def __init__(self) -> None:
        self.world: RoamingWorld = made()
        self.home, self.there, self.other = self.world.nodes
        self.roamer, self.publisher = clients_of(self.world, self.home, self.other, 0)
        self.world._wait(lambda: self.at(self.home), 5.0, "it does not get home")

    def at(self, node: Node) -> bool:
        return node.process is not None and "roamer" in node.process.state.ctx.sessions

    def leave(self) -> None:
        self.roamer.ending = True
        self.roamer.cut()

    def publish(self, count: int) -> None:
        self.publisher.left += count
        for _ in range(count):
            self.publisher.publish(b"a/1", 2)
        self.world.pass_time(1.0)

    def take_out(self) -> None:
        """Home dies, and is forgotten."""
        world = self.world
        self.home.down += 1
        self.home.crash(False)
        self.home.gone = True
        world._forget()
        world._wait(lambda: world.seen["forgets"] > 0, LIVENESS_MAX, "it is not forgotten")

    def start_again(self) -> None:
        self.home.gone = False
        self.home.down = 0
        self.world.start_if_wanted(self.home)

    def joined(self) -> bool:
        return self.world._all_serve()

    def come(self, node: Node, roamer: Roamer) -> None:
        roamer.ending = False
        roamer.homes = [node]
        roamer.come()
        self.world._wait(lambda: roamer.online, 10.0, "it is not served")

    def end(self) -> None:
        world = self.world
        self.roamer.homes = []
        world._wait(world._balanced, LIVENESS_MAX, "something is lost")
        world._wait(lambda: not world.unsettled(), LIVENESS_MAX, "sessions are not where they belong")

    def got(self) -> int:
        books = self.world.books
        return sum(count for (name, _), got in books.got.items() if name == "roamer" for count in got.values())


def an_unclaimed_session_is_back_with_its_node(story: Story) -> None:
    story.leave()
    story.publish(3)
    story.take_out()
    story.start_again()
    story.world._wait(story.joined, 20.0, "it does not join")
    story.publish(3)
    story.come(story.there, story.roamer)
    assert not story.world.books.lost, "its session was there"
    story.end()
    assert story.got() == 6


def a_claimed_session_does_not_come_back_with_its_node(story: Story) -> None:
    """Its client has a new session elsewhere."""
    story.leave()
    story.publish(3)
    story.world._note_who_is_lost(story.home)
    story.take_out()
    story.come(story.there, story.roamer)
    assert story.world.books.lost, "it found a session that is at home"
    story.start_again()
    story.world._wait(story.joined, 20.0, "it does not join")
    story.end()
    assert story.at(story.there) and not story.at(story.home)
    assert story.got() == 0, "what its client was told to be gone came all the same"


def a_session_ended_by_a_clean_start_does_not_come_back(story: Story) -> None:
    """After a clean start elsewhere, no node has a session of that client."""
    story.leave()
    story.publish(1)
    story.world._note_who_is_lost(story.home)
    story.take_out()
    books, random = story.world.books, story.world.random
    clean = Roamer(books, random, story.there, "roamer", 5, False)
    story.come(story.there, clean)
    clean.ending = True
    clean.cut()
    story.world.pass_time(1.0)
    assert not story.at(story.there)
    story.start_again()
    story.world._wait(story.joined, 20.0, "it does not join")
    story.world.pass_time(1.0)
    assert not story.at(story.home), "it is back"
    story.come(story.home, story.roamer)
    story.end()
    assert story.got() == 0


def a_session_that_was_leaving_is_not_at_two_nodes(story: Story) -> None:
    """It was on its way to another node, which did not get all of it."""
    world = story.world
    story.leave()
    story.publish(3)
    mute(world, [(story.home, story.there)])
    world._note_who_is_lost(story.home)
    story.roamer.ending = False
    story.roamer.homes = [story.there]
    story.roamer.come()
    world.pass_time(0.5)
    story.take_out()
    mute(world)
    world._wait(lambda: story.roamer.online, 20.0, "it is not served")
    story.start_again()
    world._wait(story.joined, 20.0, "it does not join")
    story.end()
    assert story.at(story.there) and not story.at(story.home)


STORIES = (
    an_unclaimed_session_is_back_with_its_node,
    a_claimed_session_does_not_come_back_with_its_node,
    a_session_ended_by_a_clean_start_does_not_come_back,
    a_session_that_was_leaving_is_not_at_two_nodes,
)


@pytest.mark.parametrize("story", STORIES)
def test_stories(story: Callable[[Story], None]) -> None:
    story(Story())


@pytest.mark.slow
@pytest.mark.parametrize("step", range(6))
def test_a_node_that_comes_back_may_crash_at_each_step(step: int) -> None:
    story = Story()
    story.leave()
    story.publish(3)
    story.take_out()
    story.start_again()
    story.home.machine.fuse = 3 + 8 * step
    story.world.pass_time(4.0)
    story.home.machine.fuse = 1 << 60
    story.world.start_if_wanted(story.home)
    story.world._wait(story.joined, 20.0, "it does not join")
    story.come(story.there, story.roamer)
    assert not story.world.books.lost, "its session was there"
    story.end()
    assert story.got() == 3


def lose_acknowledgements(world: RoamingWorld, one: Node, other: Node) -> None:
    """Of messages of ``other`` to ``one``, by whichever nodes they go."""

    def send(source: End, number: int, envelope: Envelope) -> None:
        numbers = [node.process.cluster.number for node in (one, other) if node.process is not None]
        if not (isinstance(envelope.body, DataAck) and [envelope.source, envelope.target] == numbers):
            Network.send(world.network, source, number, envelope)

    world.network.send = send  # type: ignore[method-assign]


@pytest.mark.parametrize("receiver", ["stays", "is started again"])
def test_messages_sent_before_a_node_was_forgotten_do_not_come_twice(receiver: str) -> None:
    """It has not heard that the messages arrived, sends them again under its new number, and new ones after them."""
    world = made()
    home, there, _ = world.nodes
    roamer, publisher = clients_of(world, there, home, 0)
    lose_acknowledgements(world, there, home)
    publisher.left = 4
    publisher.publish(b"a/1", 2)
    publisher.publish(b"a/1", 1)
    world._wait(lambda: got(world) == [1, 1], 5.0, "they do not come")
    home.down += 1
    home.crash(False)
    home.gone = True
    world._forget()
    world._wait(lambda: world.seen["forgets"] > 0, LIVENESS_MAX, "it is not forgotten")
    if receiver == "is started again":
        there.crash(False)
        world.start_if_wanted(there)
        world._wait(lambda: roamer.online and world._all_serve(), 20.0, "it does not serve")
        world.pass_time(2.0)
    del world.network.send
    home.gone, home.down = False, 0
    world.start_if_wanted(home)
    world._wait(world._all_serve, 20.0, "it does not join")
    publisher.publish(b"a/1", 2)
    publisher.publish(b"a/1", 1)
    world._wait(world._balanced, LIVENESS_MAX, "something is lost")
    assert got(world) == [1, 1, 1, 1]


def test_a_removed_node_that_joins_again_gives_qos_2_messages_to_sessions_that_have_stayed_alone() -> None:
    """Both nodes with a subscriber are to get the message, and one of them does. Its subscriber moves to the other one
    before that gets it too."""
    world = made()
    home, there, other = world.nodes
    mover, publisher = clients_of(world, there, home, 0)
    stayer = Roamer(world.books, world.random, other, "stayer", 5, True)
    world.subscribers.append(stayer)
    world.people.append(stayer)
    stayer.left, stayer.homes = 1, [other]
    stayer.come()
    stayer.subscribe(b"a/#", 2)
    world.pass_time(1.0)
    mute(world, messages=[(home, other)])
    publisher.left = 1
    publisher.publish(b"a/1", 2)
    world._wait(lambda: got(world) == [1], 5.0, "it does not come")
    home.down += 1
    home.crash(False)
    home.gone = True
    world._forget()
    world._wait(lambda: world.seen["forgets"] > 0, LIVENESS_MAX, "it is not forgotten")
    mover.cut()
    mover.homes = [other]
    world._wait(lambda: mover.online and mover.node is other, 10.0, "it is not served")
    world.pass_time(1.0)
    del world.network.send
    home.gone, home.down = False, 0
    world.start_if_wanted(home)
    world._wait(world._all_serve, 20.0, "it does not join")
    world._wait(world._balanced, LIVENESS_MAX, "something is lost")
    assert {name: list(each.values()) for (name, _), each in world.books.got.items()} == {"roamer": [1], "stayer": [1]}
    assert other.process is not None and other.process.state.ctx.counters.dropped[RETURNED] == 1


def test_messages_of_a_node_that_was_restored_from_a_backup_are_not_taken_for_earlier_ones() -> None:
    """Its incarnations begin again where the backup was made: sequences were used before, for other messages."""
    peers = World().state.peers
    peers.restore({1: 5 << SEQUENCE_SHIFT | 7}, {})
    assert peers.add(4, None, None, first=1, since=5).highest == 0
    assert peers.add(5, None, None, first=1, since=6).highest == 5 << SEQUENCE_SHIFT | 7
    assert peers.last_sequences() == {4: 0, 5: 5 << SEQUENCE_SHIFT | 7, 1: 5 << SEQUENCE_SHIFT | 7}


@pytest.mark.slow
@pytest.mark.parametrize("seed", few(range(5), 0))
def test_worlds(seed: int) -> None:
    run(seed)


def test_a_store_with_lower_epochs_does_not_end_a_session() -> None:
    store = LoneStore()
    strays = OrphanedSessions(store, lambda: {4: None})
    strays.enter((3, 4), {"old": 1000, "new": 5})
    strays.ask()
    for client_id, answered in store.reads:
        answered(client_id, 20, ())
    assert strays.take_decided() == [("old", True), ("new", False)] and not strays


def test_the_members_count_that_there_are_when_an_answer_comes() -> None:
    """A node that came since the question has served the client; one that was removed has lost what it had."""
    store = LoneStore()
    members = {4: None, 5: None}
    strays = OrphanedSessions(store, lambda: members)
    strays.enter((3, 4), {"came": 7, "went": 7})
    strays.ask()
    members = {4: None, 6: None}
    for client_id, answered in store.reads:
        other = 6 if client_id == "came" else 5
        answered(client_id, 9, (OwnerKey(3, 7, 7), OwnerKey(other, 9, 9)))
    assert strays.take_decided() == [("came", False), ("went", True)]


def test_a_session_that_an_earlier_incarnation_has_claimed_is_not_lost_by_a_later_claim() -> None:
    """The node crashed before it had stored its claim; the client came elsewhere, where its key was found."""
    store = LoneStore()
    strays = OrphanedSessions(store, lambda: {4: None, 5: None})
    strays.enter((3, 4), {"claimed": 7, "found": 7})
    strays.ask()
    for client_id, answered in store.reads:
        ours = OwnerKey(4 if client_id == "claimed" else 3, 8, 8, 2)
        answered(client_id, 9, (ours, OwnerKey(5, 9, 9)))
    assert strays.take_decided() == [("claimed", True), ("found", False)]


MISTAKES: dict[str, tuple[type, str, Callable[..., object], Callable[[Story], None]]] = {
    "all of it is its own": (
        OrphanedSessions,
        "_is_ours",
        lambda *_: True,
        a_session_ended_by_a_clean_start_does_not_come_back,
    ),
    "none of it is": (OrphanedSessions, "_is_ours", lambda *_: False, an_unclaimed_session_is_back_with_its_node),
    "it is taken for what it was": (
        Takeovers,
        "_call_off",
        lambda *_: None,
        a_session_that_was_leaving_is_not_at_two_nodes,
    ),
}


@pytest.mark.interpreted_only("what is compiled can not be patched")
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, method, wrong, story = MISTAKES[name]
    monkeypatch.setattr(kind, method, wrong)
    with pytest.raises(AssertionError):
        story(Story())
