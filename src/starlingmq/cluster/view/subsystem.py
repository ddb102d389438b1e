"""The interface of the subsystems of a cluster.

``ClusterState`` keeps them in one ordered tuple and calls each method below for all of them, in that order. A method
that a subsystem does not override costs nothing: ``overriding`` leaves it out of the loop.

::

    enter         once, when the number of this node is known      set_members   when the members have changed
    begin_turn    in each whole turn, even before ``enter``        registered    next, while this node is a member
    look          next: take the input from other nodes            turn          next: decide, and publish
    finish        next: take what was published                    take_frames   next: frames to other nodes
    take_requests at the end: requests to etcd

A turn is whole when there is work: ``has_input``, ``is_busy``, ``is_pending`` and ``wake_at`` tell
(cluster.view.pending_work).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from starlingmq.cluster.etcd.etcd_requests import Answer, Request
from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.cluster.links.peer_frames import Body


class NodeLife:
    """The start of an incarnation of this node, as its subsystems need it."""

    me: MemberInfo
    revision: int  # of the first membership with this incarnation
    renumbered: bool  # this node has joined under another number than its previous incarnation

    def __init__(self, me: MemberInfo, revision: int, facts: dict[bytes, bytes]) -> None:
        self.me = me
        self.revision = revision
        self.renumbered = False
        self._facts = facts

    def facts(self, prefix: bytes) -> dict[bytes, bytes]:
        """The facts that an earlier incarnation has stored under keys with this prefix."""
        return {key: value for key, value in self._facts.items() if key.startswith(prefix)}


class Subsystem:
    fact_prefix: bytes = b""
    """Prefix of the keys of its stored facts; b"": it stores none."""

    # Events

    def enter(self, life: NodeLife, now: float) -> None:
        """The number of this node is known."""

    def enter_again(self, me: MemberInfo) -> None:
        """This node joins once more as another incarnation, before it was registered."""

    def set_members(self, numbers: dict[int, None]) -> None:
        """``numbers``: all nodes, including joining ones and this one."""

    def connected(self, node: int) -> None:
        """There is a new stream to that node."""

    def node_restarted(self, node: int) -> None:
        """That node has restarted."""

    def answered(self, answer: Answer, now: float) -> None:
        """etcd has answered, or reports changes. Every subsystem gets all answers, and ignores those to others."""

    # A whole turn

    def begin_turn(self, now: float) -> None:
        """The first call of a turn, also before the number of this node is known."""

    def registered(self, now: float) -> None:
        """This node is a registered member."""

    def look(self, now: float) -> None:
        """Takes the input from other nodes. Subscriptions of this node may change."""

    def turn(self, now: float) -> None:
        """To be called once the subscriptions of this turn are final."""

    def finish(self, now: float) -> None:
        """To be called after everything that publishes in this turn."""

    def take_frames(self) -> Sequence[tuple[int | None, Body]]:
        """Frames to other nodes, and their targets (None: all nodes)."""
        return ()

    def take_notices(self) -> list[str]:
        """Warnings for the operator."""
        return []

    def take_requests(self, now: float) -> Sequence[Request]:
        """Requests to etcd. The frames of this turn were passed to their transports: durable state may be announced."""
        return ()

    # Whether another turn is needed

    def has_input(self) -> bool:
        """Whether the core or an operator has left input here. Called in each turn, so it only looks at attributes."""
        return False

    def is_busy(self) -> bool:
        """Whether a whole turn has left work for the next one, even without an event."""
        return False

    def is_pending(self) -> bool:
        """Whether the next turn has work that does not wait for anything."""
        return False

    def wake_at(self, now: float) -> float:
        """When a turn has work without an event; ``inf``: never."""
        return inf


def sooner(one: float, other: float) -> float:
    """The earlier of two times; 0.0 is never."""
    if one == 0.0 or 0.0 < other < one:
        return other
    return one


def overriding(subsystems: Sequence[Subsystem], method: Callable[[type[Subsystem]], object]) -> tuple[Subsystem, ...]:
    """The subsystems that override a method, in order. ``method`` takes the method from a class."""
    default = method(Subsystem)
    return tuple([each for each in subsystems if method(type(each)) is not default])
