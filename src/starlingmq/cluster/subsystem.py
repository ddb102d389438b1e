"""What the subsystems of a cluster have in common.

``ClusterState`` keeps them in one ordered tuple and calls each method below for all of them, in that order. A method
that a subsystem does not have does nothing, and costs nothing: ``overriding`` leaves it out of the loop.

::

    enter         once, when the number of this node is known      set_members   when the members have changed
    begin_turn    in each whole turn, even before ``enter``        registered    next, while this node is a member
    look          next: take in what came from other nodes         turn          next: decide, and publish
    finish        next: take in what was published                 take_frames   next: what goes to other nodes
    take_requests at the end: what goes to etcd

A turn is whole when there is something to do: ``has_input``, ``is_busy``, ``is_pending`` and ``wake_at`` tell
(cluster.pending_work).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from starlingmq.cluster.etcd.etcd_requests import Answer, Request
from starlingmq.cluster.links.peer_frames import Body, MemberInfo


class NodeLife:
    """A life of this node begins: what its subsystems start from."""

    me: MemberInfo
    revision: int  # of the membership with this life
    renumbered: bool  # this node has joined under another number than in its earlier life

    def __init__(self, me: MemberInfo, revision: int, facts: dict[bytes, bytes]) -> None:
        self.me = me
        self.revision = revision
        self.renumbered = False
        self._facts = facts

    def facts(self, prefix: bytes) -> dict[bytes, bytes]:
        """What an earlier life has stored under keys that begin with ``prefix``."""
        return {key: value for key, value in self._facts.items() if key.startswith(prefix)}


class Subsystem:
    fact_prefix: bytes = b""
    """What the keys of its stored facts begin with; b"": it stores none."""

    # What happens

    def enter(self, life: NodeLife, now: float) -> None:
        """The number of this node is known."""

    def enter_again(self, me: MemberInfo) -> None:
        """This node joins once more, as another incarnation, without having counted."""

    def set_members(self, numbers: dict[int, None]) -> None:
        """The numbers of all nodes, joining ones and this one included."""

    def connected(self, node: int) -> None:
        """There is a new stream to that node."""

    def reborn(self, node: int) -> None:
        """A new life of that node has begun."""

    def answered(self, answer: Answer, now: float) -> None:
        """etcd has answered, or tells of changes. Answers to others are not looked at."""

    # A whole turn

    def begin_turn(self, now: float) -> None:
        """First, also before the number of this node is known."""

    def registered(self, now: float) -> None:
        """This node is a registered member."""

    def look(self, now: float) -> None:
        """Take in what came from other nodes. Subscriptions of this node may change."""

    def turn(self, now: float) -> None:
        """Once the subscriptions of this node are what they are in this turn."""

    def finish(self, now: float) -> None:
        """After all that publishes something in this turn."""

    def take_frames(self) -> Sequence[tuple[int | None, Body]]:
        """What goes to other nodes, and to which (None: to all)."""
        return ()

    def take_notices(self) -> list[str]:
        """What an operator may have to look after."""
        return []

    def take_requests(self, now: float) -> Sequence[Request]:
        """What goes to etcd. The frames of this turn were handed to their transports: what is stored may be told."""
        return ()

    # Whether there is another one

    def has_input(self) -> bool:
        """Whether the core or an operator has put something here. Asked in each turn: only attributes are looked at."""
        return False

    def is_busy(self) -> bool:
        """Whether a whole turn has left something that the next one has to look at, though nothing comes in."""
        return False

    def is_pending(self) -> bool:
        """Whether the next turn has something to do at once."""
        return False

    def wake_at(self, now: float) -> float:
        """When a turn has something to do though nothing comes in; ``inf``: never."""
        return inf


def overriding(subsystems: Sequence[Subsystem], method: Callable[[type[Subsystem]], object]) -> tuple[Subsystem, ...]:
    """Those that have a method of their own, in their order. ``method`` takes it from a class."""
    default = method(Subsystem)
    return tuple([each for each in subsystems if method(type(each)) is not default])
