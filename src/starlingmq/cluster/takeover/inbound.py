"""One session that moves to this node: its sources, their answers, and the cut markers that have arrived.

``inbound_states`` defines its states and every transition between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlingmq.cluster.takeover.inbound_states import (
    INBOUND_TABLE,
    RESET_TABLE,
    SOURCE_TABLE,
    InboundAction,
    InboundEvent,
    InboundState,
    ResetAction,
    ResetEvent,
    ResetState,
    SourceAction,
    SourceEvent,
    SourceState,
)
from starlingmq.cluster.takeover.transfer_frames import (
    CANCELLED,
    UNREPORTED,
    Head,
    InboundSessionValue,
    Parts,
    Takeover,
)
from starlingmq.core.session.migration_state import MARKED, OPEN, UNMARKED
from starlingmq.core.session.session import Session
from starlingmq.core.topics.topics import OF_STREAMS

UNVERSIONED: Final = -1
NOT_ROUTED: Final = (b"$share/", *OF_STREAMS)  # filters that begin so are not for routes
ASK_SECONDS: Final = 5.0  # until a connected source whose answer is missing is asked again; twice as long each time
ASK_SECONDS_MAX: Final = 80.0


class Source:
    """A node that may have state of the session."""

    state: SourceState
    epoch: int  # of the source's owner key
    whole: bool  # its inflight window is here completely: no CONNECT waits for it any more
    late: bool  # the source is not connected, so nothing waits for it
    filters_unknown: bool  # the source does not know all filters of former owners
    passed: dict[int, None]  # nodes whose messages before their cut markers the source has handed over completely

    def __init__(
        self, epoch: int, state: SourceState = SourceState.ASKED, whole: bool = False, late: bool = False
    ) -> None:
        self.state = state
        self.epoch = epoch
        self.whole = whole
        self.late = late
        self.filters_unknown = False
        self.passed = {}


class EarlierWills:
    """Wills that the client left at other nodes. A CONNECT waits until all of them are settled."""

    reported: dict[int, int]  # node that may have a will -> its ``Head.will``, or UNREPORTED
    settled: dict[int, None]  # nodes that may not publish the will any more
    # node with a will and no other state -> epoch of the owner key to delete once the will is settled
    unreleased: dict[int, int]

    def __init__(self) -> None:
        self.reported = {}
        self.settled = {}
        self.unreleased = {}

    def expect(self, nodes: Iterable[int], will: int = 0) -> None:
        for node in nodes:
            self.reported.setdefault(node, will)

    def answered(self, node: int, kept: bool) -> None:
        """The node reports no will. ``kept``: it keeps the session, and so does not tell."""
        if self.reported.get(node) == UNREPORTED:
            self.reported[node] = 0 if kept else CANCELLED


class InboundSession:
    client_id: str
    epoch: int  # of the claim by which this node asked the sources
    owned: int  # the newest epoch by which this node has owned the client id since then
    state: InboundState
    sources: dict[int, Source]  # by node, without GONE ones; ASKED ones first, then in the order of their answers
    best: int  # the node whose session the client gets; 0: none so far, or the session was at this node
    best_held: int  # the epoch of that session at its source
    wills: EarlierWills
    # version of this node's routes that a node must have applied before its cut marker; UNVERSIONED: not decided yet
    version: int
    marks: dict[int, None]  # nodes whose cut marker has arrived
    later: dict[int, int]  # nodes whose cut marker for a later owner has arrived -> its epoch
    newest: tuple[int, int]  # (node, epoch) of the previous owner
    removed: dict[int, int]  # nodes that are no longer members and had the session, or may have had it -> epoch
    former_filters: dict[bytes, None]  # filters of former owners, without shared groups
    holders: dict[int, None]  # nodes that may have state of earlier sessions of the client, as far as it is known
    passed_on: dict[int, int]  # nodes that said that they pass the session on, and keep their owner keys -> epoch
    unheard: dict[int, None]  # nodes that have not said which others may have such state; 0: no node can say it
    discarded: bool  # the session is not wanted: clean start, or it belongs to another user
    since: float  # the time of the last CONNECT; 0.0: there is none
    user: str | None  # the user who connected; None: no client has connected, or sessions are not bound to users
    session: Session | None  # None until this node has one
    served: bool  # a client has had the session, so no source can provide another one
    kept: list[tuple[int, Parts]]  # (node, messages) of sources that have not described the session
    reset: ResetState
    reset_until: float  # while PENDING: when cut markers that are missing are late
    ask_at: float  # when sources whose answer is missing are asked again; 0.0: no answer is missing
    ask_seconds: float  # from the last request to that time

    def __init__(
        self, client_id: str, epoch: int, others: dict[int, int], state: InboundState = InboundState.WAITING
    ) -> None:
        self.client_id = client_id
        self.epoch = self.owned = epoch
        self.state = state
        self.sources = {node: Source(held) for node, held in others.items()}
        self.best = 0
        self.best_held = 0
        self.wills = EarlierWills()
        self.version = UNVERSIONED
        self.marks = {}
        self.later = {}
        self.newest = (0, 0)
        self.removed = {}
        self.former_filters = {}
        self.holders = dict.fromkeys(others)
        self.passed_on = {}
        self.unheard = dict.fromkeys(others)
        self.discarded = False
        self.since = 0.0
        self.user = None
        self.session = None
        self.served = False
        self.kept = []
        self.reset = ResetState.NONE
        self.reset_until = 0.0
        self.ask_at = 0.0
        self.ask_seconds = ASK_SECONDS

    # Transitions

    def step(self, event: InboundEvent) -> tuple[InboundAction, ...]:
        row = INBOUND_TABLE.step(self.state, event)
        self.state = row.next
        return row.actions

    def step_reset(self, event: ResetEvent) -> tuple[ResetAction, ...]:
        row = RESET_TABLE.step(self.reset, event)
        self.reset = row.next
        return row.actions

    def step_source(self, node: int, event: SourceEvent) -> tuple[SourceAction, ...]:
        source = self.sources.get(node)
        row = SOURCE_TABLE.step(SourceState.GONE if source is None else source.state, event)
        if source is not None and row.next is not source.state:
            if source.state is SourceState.ASKED or row.next is SourceState.GONE:
                del self.sources[node]
            source.state = row.next
            if row.next is not SourceState.GONE:
                self.sources[node] = source
        return row.actions

    # Derived from the state

    @property
    def finished(self) -> bool:
        """Whether no other node has any state of the session left."""
        return self.state is InboundState.FINISHED

    @property
    def open(self) -> bool:
        """Whether no CONNECT waits for this session."""
        return self.state in (InboundState.OPEN, InboundState.ABANDONED)

    @property
    def whole(self) -> bool:
        """Whether the inflight window of the client's session is complete."""
        if self.best == 0:
            return False
        source = self.sources.get(self.best)
        return source is None or source.whole

    def asked(self) -> dict[int, int]:
        """Sources that have not answered -> their epoch."""
        return {node: source.epoch for node, source in self.sources.items() if source.state is SourceState.ASKED}

    def unanswered(self) -> list[int]:
        """Sources whose answer, or a part of it that the CONNECT needs, is missing."""
        return [node for node, source in self.sources.items() if not source.whole]

    def silent(self, now: float) -> list[int]:
        """Those of ``unanswered`` that are to be asked again now. Sets the next time."""
        missing = self.unanswered()
        if not missing:
            self.ask_at, self.ask_seconds = 0.0, ASK_SECONDS
            return []
        if now < self.ask_at:
            return []
        due = missing if self.ask_at else []
        if due:
            self.ask_seconds = min(2 * self.ask_seconds, ASK_SECONDS_MAX)
        self.ask_at = now + self.ask_seconds
        return due

    def streaming(self) -> dict[int, int]:
        """Sources that hand over -> their epoch."""
        return {node: source.epoch for node, source in self.sources.items() if source.state is SourceState.HANDING}

    def epoch_of(self, node: int) -> int:
        """The epoch of that node's owner key; 0 if the node is not a source."""
        source = self.sources.get(node)
        return 0 if source is None else source.epoch

    def late(self) -> list[int]:
        return [node for node, source in self.sources.items() if source.late]

    def all_late(self) -> bool:
        return all(source.late for source in self.sources.values())

    def unknown(self) -> bool:
        """Whether a source may know filters that are missing in ``former_filters``."""
        return any(source.filters_unknown or source.state is SourceState.ASKED for source in self.sources.values())

    def awaited(self) -> bool:
        """Whether the client has to wait for a source."""
        for source in self.sources.values():
            if source.state is SourceState.ASKED and not source.late:
                return True
        best = self.sources.get(self.best)
        return best is not None and not best.whole and not best.late

    def wanted(self) -> bool:
        """Whether a later owner has to wait until the session could be served here, before this node hands it over."""
        return not self.discarded and self.awaited()

    def needs_marks(self) -> bool:
        """Whether cut markers matter: a source receives, or may receive, messages from before the markers."""
        session = self.session
        if self.discarded or (session is not None and session.ended):
            return len(self.sources) != 0
        if session is None:
            return False  # no session here receives the messages after the markers
        if session.needs_reset and not session.reset_confirmed:
            return False  # the client still relies on the messages that the sources receive
        if self.former_filters:
            return True
        return any(source.late or source.state is SourceState.HANDING for source in self.sources.values())

    def is_unmarked(self) -> bool:
        """Whether no cut marker was requested."""
        return self.version == UNVERSIONED and not self.marks

    def marked_by(self, nodes: Iterable[int]) -> bool:
        return all(node in self.marks for node in nodes)

    def over(self, members: Iterable[int]) -> bool:
        """Whether no source has any state left, and no message for a former owner can be mistaken for one of this
        node."""
        if self.sources:
            return False
        return self.session is None or self.session.ended or len(self.former_filters) == 0 or self.marked_by(members)

    def ordered(self, node: int) -> bool:
        """Whether all messages of ``node`` from before its cut marker are here. Late sources do not count."""
        return all(source.late or node in source.passed for source in self.sources.values())

    def stage(self, node: int) -> int:
        """The delivery stage of messages that enter the cluster at ``node``, for this session."""
        if node in self.marks:
            return OPEN if self.ordered(node) else MARKED
        return UNMARKED if self.sources or self.former_filters else OPEN

    # Messages of the sources

    def asking(self) -> Takeover:
        """The request to send to a source once more."""
        return Takeover(self.client_id, self.epoch, self.discarded, False, self.user)

    def learn(self, node: int, head: Head) -> None:
        """Adds the filters of this source, and of former owners whose messages still go to it."""
        for granted in head.granted:
            if not granted.whole.startswith(NOT_ROUTED):
                self.former_filters[granted.whole] = None
        self.former_filters.update(dict.fromkeys(head.former_filters))
        self.sources[node].filters_unknown = head.unknown

    def learn_holders(self, node: int, head: Head) -> None:
        self.holders[node] = None
        if head.holders is None:
            self.unheard[node] = None
        else:
            self.unheard.pop(node, None)
            self.holders.update(dict.fromkeys(head.holders))

    def take_kept(self, node: int) -> list[Parts]:
        """The messages of that source that were kept."""
        taken = [said for source, said in self.kept if source == node]
        self.kept = [(source, said) for source, said in self.kept if source != node]
        return taken

    # Storing

    def value(self) -> InboundSessionValue:
        return InboundSessionValue(
            self.client_id,
            self.epoch,
            self.asked(),
            self.streaming(),
            list(self.marks),
            self.best,
            self.best_held,
            self.owned,
            0 if self.session is None else self.session.number,
            self.state is InboundState.OPEN,
            list(self.former_filters),
            [node for node, source in self.sources.items() if source.filters_unknown],
            self.discarded,
            self.later,
            self.user,
            self.whole,
        )

    @staticmethod
    def restored(value: InboundSessionValue, sessions: dict[int, Session]) -> InboundSession:
        """The inbound session as of the stored value, after a restart. ``sessions``: all sessions of this node by
        number."""
        session = sessions.get(value.session)
        opened = value.open and session is not None  # otherwise no client has received a CONNACK for it
        state = InboundState.OPEN if opened or (value.open and value.discarded) else InboundState.WAITING
        if value.discarded and not value.open:
            state = InboundState.ABANDONED
        inbound = InboundSession(value.client_id, value.epoch, value.waiting, state)
        for node, held in value.streaming.items():
            whole = node == value.best and (inbound.open or value.whole)
            inbound.sources[node] = Source(held, SourceState.HANDING, whole)
        for node, source in inbound.sources.items():
            source.late = opened
            source.filters_unknown = node in value.filters_unknown
        inbound.session = session
        inbound.served = opened
        inbound.marks = dict.fromkeys(value.marks)
        inbound.best, inbound.best_held, inbound.owned = value.best, value.best_held, value.owned
        inbound.discarded = value.discarded
        inbound.later = value.later
        inbound.user = value.user
        inbound.wills.expect(inbound.sources)
        inbound.former_filters = dict.fromkeys(value.former_filters)
        inbound.unheard[0] = None  # the answers were not stored
        inbound.newest = (0, value.owned)  # the owners in between were not stored
        return inbound
