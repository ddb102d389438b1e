"""Mistakes made on purpose, one for each hazard that is known: the checkers have to find every one of them.

Each is a patch of the code that ships, for as long as its world runs. ``recorded/NAME.txt`` is a world that finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from math import inf
from typing import Any
from unittest.mock import patch

from tests.sim import planted_copies, planted_retained
from tests.sim.commits import Commits, Ticket

from starlingmq.cluster.groups import group_pull
from starlingmq.cluster.groups.group_primaries import GroupPrimaries
from starlingmq.cluster.links import peer_transport
from starlingmq.cluster.links.control_frames import RouteSnapshot
from starlingmq.cluster.links.peer_frames import Envelope, RouteRecords
from starlingmq.cluster.links.peer_link import PeerLink
from starlingmq.cluster.links.peer_transport import PeerTransport
from starlingmq.cluster.membership.quorum import Quorum, QuorumPeer
from starlingmq.cluster.membership.relay import Relay
from starlingmq.cluster.peers.publishers import Publishers
from starlingmq.cluster.routes.peer_routes import PeerRoutes
from starlingmq.cluster.routes.route_table import RouteTable
from starlingmq.core.conditions.storage_failure import StorageFailure
from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import RETAINED_PUT
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.delivery.forward_batch import ForwardReader, count_tracked
from starlingmq.core.delivery.group_engine import GroupEngine
from starlingmq.core.peers.peer_receivers import PeerReceivers
from starlingmq.core.retained.retained_store import RetainedTree
from starlingmq.core.session.session import Client

Mistake = Callable[[], AbstractContextManager[Any]]


def suback_does_not_wait() -> Any:
    return patch.object(RouteTable, "applied_by", lambda self, nodes: self._own.version)


def suback_does_not_wait_for_nodes_lost_recently() -> Any:
    def publishers(self: Any, quorum: Quorum, now: float) -> list[int]:
        return [number for number in self._view.transports if quorum.is_connected(number)]

    return patch.object(Publishers, "others", publishers)


def one_node_alone_declares_another_dead() -> Any:
    return patch.object(Quorum, "_is_missed_by_all", lambda self, peer: True)


def a_node_that_finds_all_others_gone_keeps_serving() -> Any:
    def supports(self: Quorum, peer: QuorumPeer) -> bool:
        return peer.connected and peer.number in self._registered

    return patch.object(Quorum, "_supports", supports)


def suback_ignores_the_nodes_that_others_reach() -> Any:
    return patch.object(Quorum, "is_connected_to_others", lambda self, number: False)


@contextmanager
def taken_is_said_before_it_is_stored() -> Iterator[None]:
    """And at once: most disks of this world are done while an acknowledgement waits for another one."""
    send_stored = Context.send_stored

    def at_once(self: Context, client: Client, frame: bytes) -> None:
        (self.send if client.link else lambda *_: send_stored(self, client, frame))(client, frame)

    with patch.object(Context, "send_stored", at_once), patch.object(peer_transport, "ACK_SECONDS", 0.0):
        yield


def what_was_seen_is_forgotten_at_a_restart() -> Any:
    restore = PeerReceivers.restore
    return patch.object(PeerReceivers, "restore", lambda self, highest, facts: restore(self, {}, facts))


def what_was_seen_is_not_looked_at() -> Any:
    receive = PeerReceivers.receive

    def blind(self: PeerReceivers, peer: Any, reader: Any, frame: int) -> Any:
        peer.highest = 0
        return receive(self, peer, reader, frame)

    return patch.object(PeerReceivers, "receive", blind)


@contextmanager
def a_node_that_is_heard_but_deaf_counts() -> Iterator[None]:
    look = Quorum._look

    def trusting(self: Quorum, peer: QuorumPeer, now: float) -> None:
        peer.rests_on = max(peer.rests_on, peer.direct_at, peer.relayed_at)
        look(self, peer, now)

    with patch.object(Quorum, "_is_heard_by", lambda self, peer: True), patch.object(Quorum, "_look", trusting):
        yield


def nobody_has_to_be_there() -> Any:
    return patch.object(Quorum, "enough", lambda self: True)


def what_others_have_of_third_nodes_does_not_matter() -> Any:
    return patch.object(RouteTable, "_has", lambda self, number, state: True)


def records_are_applied_over_a_gap() -> Any:
    def careless(self: PeerRoutes, body: RouteRecords, changes: Any, facts: Any) -> None:
        for record in body.records:
            self._set(record, changes, facts)
        self._reached((body.epoch, body.first + len(body.records) - 1))

    return patch.object(PeerRoutes, "_apply", careless)


def a_snapshot_adds_and_takes_nothing_away() -> Any:
    received = PeerRoutes.received_piece

    def adding(self: PeerRoutes, body: RouteSnapshot, giver: int = 0) -> bool:
        wanted = received(self, body, giver)
        if self._ready is not None:
            self._ready = {**self.table, **self._ready}
        return wanted

    return patch.object(PeerRoutes, "received_piece", adding)


@contextmanager
def the_cursor_moves_when_it_is_sent() -> Iterator[None]:
    send, acknowledged = PeerTransport.send, PeerLink.acknowledged

    def moving(self: PeerTransport, data: bytes) -> None:
        send(self, data)
        self.acknowledged(count_tracked(data), self._broker.ctx.now)

    def silent(self: PeerLink, *arguments: Any) -> int:
        acknowledged(self, *arguments)
        return 0

    with patch.object(PeerTransport, "send", moving), patch.object(PeerLink, "acknowledged", silent):
        yield


def nothing_is_passed_on() -> Any:
    """No world of drawn faults is held to serve while they last: ``test_sim`` has one that is."""
    return patch.object(Relay, "pass_on", lambda self, envelope: None)


def nothing_is_sent_again() -> Any:
    def forget(self: PeerLink) -> None:
        self._deadline = inf

    return patch.object(PeerLink, "resend", forget)


@contextmanager
def qos_2_is_forwarded_before_it_is_committed() -> Iterator[None]:
    forward = Delivery.forward

    def at_once(self: Delivery, message: Any, subscription: Any, publisher: Any) -> None:
        client = subscription.session.client
        before = -1 if client is None else client.stored_from
        forward(self, message, subscription, publisher)
        if client is not None and message.qos == 2 and client.waiting == 0:
            client.stored_from = before

    with patch.object(Delivery, "forward", at_once):
        yield


def a_joining_member_counts() -> Any:
    def enough(self: Quorum) -> bool:
        return self._number in self._registered and len(self.connected()) >= len(self._registered) // 2

    return patch.object(Quorum, "enough", enough)


@contextmanager
def a_link_delivers_duplicates() -> Iterator[None]:
    """And the receiver ignores the ids in it."""
    received = PeerLink.received

    def again(self: PeerLink, data: Any, source: int, target: int) -> bytes | None:
        blob = received(self, data, source, target)
        if blob is None and source == self.source_incarnation and 0 < data.sequence <= self._delivered:
            return bytes(data.blob)
        return blob

    with patch.object(PeerLink, "received", again), what_was_seen_is_not_looked_at():
        yield


@contextmanager
def frames_of_an_earlier_life_are_taken() -> Iterator[None]:
    took, received, acknowledged = Quorum.took, PeerLink.received, PeerLink.acknowledged

    def any_life(self: Quorum, envelope: Any, now: float) -> bool:
        peer = self._peers.get(envelope.source)
        if peer is not None and envelope.incarnation < peer.incarnation:
            target, to, body, relayed = (
                envelope.target,
                envelope.target_incarnation,
                envelope.body,
                envelope.relayed,
            )
            envelope = Envelope(envelope.source, peer.incarnation, target, to, body, relayed)
        return took(self, envelope, now)

    def from_any(self: PeerLink, data: Any, source: int, target: int) -> bytes | None:
        return received(self, data, max(source, self.source_incarnation), self._incarnation)

    def by_any(self: PeerLink, ack: Any, source: int, target: int, now: float) -> int:
        return acknowledged(self, ack, self.target_incarnation, self._incarnation, now)

    with (
        patch.object(Quorum, "took", any_life),
        patch.object(PeerLink, "received", from_any),
        patch.object(PeerLink, "acknowledged", by_any),
    ):
        yield


def what_is_retained_is_not_stored() -> Any:
    write = Context.write

    def forgetful(self: Context, entry: Any) -> None:
        if entry.kind != RETAINED_PUT:
            write(self, entry)

    return patch.object(Context, "write", forgetful)


def the_last_retained_message_is_not_kept() -> Any:
    put = RetainedTree.put

    def first(self: RetainedTree, message: Any) -> Any:
        return None if self.get(message.topic) is not None else put(self, message)

    return patch.object(RetainedTree, "put", first)


def a_group_without_members_here_loses_messages() -> Any:
    line_up = GroupEngine.line_up

    def here_alone(self: GroupEngine, group: Any, message: Any, publisher: Any, promised: bool = False) -> bool:
        return line_up(self, group, message, publisher, promised) if group.members or message.origin == 0 else False

    return patch.object(GroupEngine, "line_up", here_alone)


def each_node_with_members_gets_messages_of_the_group() -> Any:
    def all_of_them(self: Delivery, message: Any, session: Any, key: bytes, stored: bool) -> None:
        for link in self.ctx.cluster.links.values():
            forward(self, message, link, key, stored)

    forward = Delivery.forward_to_member
    return patch.object(Delivery, "forward_to_member", all_of_them)


def a_primary_that_is_gone_is_not_replaced() -> Any:
    apply = GroupPrimaries._apply

    def for_ever(self: GroupPrimaries, key: bytes, value: bytes | None, created: int) -> None:
        if value is not None:
            apply(self, key, value, created)

    return patch.object(GroupPrimaries, "_apply", for_ever)


def a_pull_is_asked_for_once() -> Any:
    return patch.object(group_pull, "RESEND_SECONDS", 1e9)


def messages_of_a_lost_member_go_to_no_other_member() -> Any:
    def settle(self: GroupEngine, outgoing: Any) -> bool:
        self.settle(outgoing)
        return True

    return patch.object(GroupEngine, "give_back", settle)


def messages_lent_at_the_death_of_a_node_stay_lent() -> Any:
    return patch.object(GroupEngine, "restored", lambda self: None)


def messages_that_are_handed_over_are_kept_too() -> Any:
    hand_over = GroupEngine._hand_over
    kept: set[bytes] = set()

    def both(self: GroupEngine, group: Any, member: Any, message: Any, lent: Any, publisher: Any) -> bool:
        done = hand_over(self, group, member, message, lent, publisher)
        if member.session.node != 0 and message.payload not in kept:
            kept.add(message.payload)
            self.line_up(group, message.copy(), None)
        return done

    return patch.object(GroupEngine, "_hand_over", both)


def what_goes_at_once_is_kept_nowhere() -> Any:
    """By a standing allotment: it is in no line, so it seems to need no storing before its publisher is told."""
    take, forward = GroupEngine.take, Delivery.forward_to_member

    def unkept(self: Delivery, message: Any, session: Any, key: bytes, stored: bool) -> None:
        forward(self, message, session, key, False)

    def taken(self: GroupEngine, group: Any, message: Any, publisher: Any) -> bool:
        if not group.standing:
            return take(self, group, message, publisher)
        with patch.object(Delivery, "forward_to_member", unkept):
            return take(self, group, message, publisher)

    return patch.object(GroupEngine, "take", taken)


def a_group_is_over_when_the_node_of_its_last_member_is_back() -> Any:
    return patch.object(GroupEngine, "lost", lambda self, share: None)


@contextmanager
def what_follows_a_refused_commit_overtakes_it() -> Iterator[None]:
    """The tickets of the driver have a twin here, and it is that one that makes the mistake. The frames of a link wait
    for those that were refused; that hides it, so they do not here."""
    stored = Commits._stored

    def alone(self: Commits, ticket: Ticket, done: Any) -> None:
        before = [(later, later.refused) for later in self._tickets if later is not ticket]
        settle, self.settle = self.settle, lambda: None  # type: ignore[method-assign]
        stored(self, ticket, done)
        for later, refused in before:
            self.refusal.refused_turns -= later.refused and not refused
            later.refused = refused
        self.settle = settle  # type: ignore[method-assign]
        settle()

    def released(self: StorageFailure, client: Client, frames: bytes) -> bytes:
        if any(postponed is client for postponed, _ in self.delivery.links_postponed):
            self._go_on()
        return frames

    with patch.object(Commits, "_stored", alone), patch.object(StorageFailure, "released", released):
        yield


def frames_on_the_way_when_a_cut_began_count_as_new() -> Any:
    """The queue of a session may drop what is new."""

    def received(self: PeerTransport, blob: bytes, life: int, sequence: int, made_at: float, kept: bool) -> None:
        reader = ForwardReader(blob, self.peer.number, made_at)
        reader.kept = kept
        self._inbox.append((reader, life << peer_transport._SEQUENCE_BITS | sequence))

    return patch.object(PeerTransport, "received", received)


def messages_that_waited_for_a_node_count_as_new() -> Any:
    return patch.object(PeerTransport, "keep", lambda self, seconds: None)


MISTAKES: dict[str, Mistake] = {
    name: value
    for module in (globals(), vars(planted_retained), vars(planted_copies))
    for name, value in module.items()
    if getattr(value, "__module__", "") == module["__name__"]
}
"""By name: all functions of these modules."""
