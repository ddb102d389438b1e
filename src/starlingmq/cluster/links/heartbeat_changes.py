"""Heartbeats that tell a node only what has changed, instead of the whole state.

The state of a heartbeat is what it says of each node, the membership, and the sender's listeners. A heartbeat with
``since`` contains those parts that have changed after the heartbeat of that number, each with its present value. Nodes
report the newest heartbeat that they have received of each other (``Heartbeat.taken``), so ``since`` is a number that
the target has confirmed; without one, the heartbeat is whole.

Law: the target reads a heartbeat if it has read one of the number ``since`` or a later one, and no later one than this.
Then it has the sender's state as of this heartbeat. Why: it has the state as of some heartbeat between the two. All
that has changed after that one has changed after ``since``, and is here with its present value. So heartbeats may be
lost, doubled and late; the sender repeats each change until the target has confirmed a heartbeat with it.

1. A target that was restarted, or has forgotten the sender, has confirmed nothing: it gets a whole heartbeat.
2. A number that an earlier incarnation of the sender has used counts only if the target hears the present incarnation
   (``Quorum.taken_by``). If the target has confirmed that number to the earlier incarnation, and hears the present one
   since: it cannot read the heartbeat, ignores it, and confirms nothing until it gets a whole one.
3. A heartbeat that cannot be read, or that comes after a later one, proves that its sender lives, and nothing else.
4. A node that relays a heartbeat for another one does not read it.
"""

from __future__ import annotations

from typing import Final, TypeVar

from msgspec import structs

from starlingmq.cluster.links.control_frames import Heartbeat, Membership

LISTENERS: Final = 0  # in place of the number of a node: the listeners of the sender have changed
FORGOTTEN_MAX: Final = 64  # nodes of which nothing is said any more, and of which this has to be told

Said = tuple[tuple[int, int] | None, int, int, bool, int]
NOTHING: Final[Said] = (None, 0, 0, False, 0)
V = TypeVar("V")


def of_node(beat: Heartbeat, node: int) -> Said:
    """The statements about a node: state of its routes, heard directly, heard relayed, connected, gone."""
    return (
        beat.vector.get(node),
        beat.heard.get(node, 0),
        beat.relayed.get(node, 0),
        node in beat.connected,
        beat.gone.get(node, 0),
    )


def named(beat: Heartbeat) -> dict[int, None]:
    """The nodes that a heartbeat says anything of."""
    return dict.fromkeys([*beat.vector, *beat.heard, *beat.relayed, *sorted(beat.connected), *beat.gone])


class HeartbeatWriter:
    """``source``: the number of this node, whose own routes are in each heartbeat."""

    def __init__(self, source: int) -> None:
        self._source = source
        self._beat: Heartbeat | None = None
        self._said: dict[int, Said] = {}
        self._changed: dict[int, int] = {}  # node -> the heartbeat in which it changed last, in this order
        self._membership_at = 0
        self._listeners_at = 0
        self._first = 0  # a target that has confirmed no later heartbeat than this gets a whole one

    def write(self, beat: Heartbeat) -> None:
        """The next heartbeat, whole."""
        last, self._beat = self._beat, beat
        if last is None or last.membership.revision != beat.membership.revision:
            self._membership_at = beat.number
        if last is None or last.listeners != beat.listeners:
            self._listeners_at = beat.number
        for node in {**self._said, **named(beat)}:
            said = of_node(beat, node)
            if node == self._source or said == self._said.get(node, NOTHING):
                continue
            self._changed.pop(node, None)
            self._changed[node] = beat.number
            if said == NOTHING:
                self._said.pop(node, None)
            else:
                self._said[node] = said
        if len(self._changed) > len(self._said) + FORGOTTEN_MAX:
            forgotten = [node for node in self._changed if node not in self._said]
            for node in forgotten[: FORGOTTEN_MAX // 2]:
                self._first = self._changed.pop(node)

    def to(self, target: int, taken: int) -> Heartbeat:
        """That heartbeat, for a node that has confirmed the one of the number ``taken`` (0: none)."""
        beat = self._beat
        assert beat is not None
        confirmed = {target: beat.taken[target]} if target in beat.taken else {}
        if not self._first < taken < beat.number:
            return structs.replace(beat, taken=confirmed)
        changed: list[int] = []
        for node in reversed(self._changed):
            if self._changed[node] <= taken:
                break
            changed.append(node)
        changed.reverse()
        if self._listeners_at > taken:
            changed.append(LISTENERS)
        known = self._membership_at <= taken
        return structs.replace(
            beat,
            vector={node: beat.vector[node] for node in changed if node in beat.vector},
            heard={node: beat.heard[node] for node in changed if node in beat.heard},
            relayed={node: beat.relayed[node] for node in changed if node in beat.relayed},
            connected=frozenset([node for node in changed if node in beat.connected]),
            gone={node: beat.gone[node] for node in changed if node in beat.gone},
            membership=Membership(beat.membership.revision, ()) if known else beat.membership,
            listeners=beat.listeners if self._listeners_at > taken else (),
            taken=confirmed,
            since=taken,
            changed=tuple(changed),
        )


class HeartbeatReader:
    def __init__(self) -> None:
        self._read: dict[int, tuple[int, Heartbeat]] = {}  # node -> its incarnation, its newest heartbeat, whole

    def read(self, source: int, incarnation: int, beat: Heartbeat) -> Heartbeat:
        """The heartbeat, whole. ``since`` is not 0: it says nothing, because it cannot be read or was overtaken."""
        known = self._read.get(source)
        last = None if known is None or known[0] < incarnation else known[1]
        overtaken = last is not None and beat.number <= last.number
        if overtaken or (known is not None and known[0] > incarnation):
            return structs.replace(beat, since=beat.number)
        if beat.since != 0:
            if last is None or last.number < beat.since:
                return beat
            beat = _merged(source, last, beat)
        self._read[source] = incarnation, beat
        return beat

    def keep(self, members: dict[int, None]) -> None:
        """Forgets all nodes but these."""
        self._read = {node: read for node, read in self._read.items() if node in members}


def _merged(source: int, last: Heartbeat, beat: Heartbeat) -> Heartbeat:
    """``last`` with the changes of ``beat``."""
    changed = dict.fromkeys(beat.changed)
    known = beat.membership.revision == last.membership.revision and not beat.membership.members
    return structs.replace(
        beat,
        vector=_with(last.vector, beat.vector, changed) | {source: (beat.epoch, beat.version)},
        heard=_with(last.heard, beat.heard, changed),
        relayed=_with(last.relayed, beat.relayed, changed),
        connected=frozenset([node for node in last.connected if node not in changed]) | beat.connected,
        gone=_with(last.gone, beat.gone, changed),
        membership=last.membership if known else beat.membership,
        listeners=beat.listeners if LISTENERS in changed else last.listeners,
        since=0,
        changed=(),
    )


def _with(last: dict[int, V], values: dict[int, V], changed: dict[int, None]) -> dict[int, V]:
    """``last`` with these values of the changed nodes, and without those that have none."""
    found = {node: value for node, value in last.items() if node not in changed}
    found.update(values)
    return found
