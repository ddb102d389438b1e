"""Each row of the takeover's tables is taken by hand here; ``tests.cluster.takeover_rows`` says which worlds take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.takeover_rows import TABLES, counting, taken_in
from tests.cluster.test_takeover import lasting
from tests.few import few

from starlingmq.cluster.shares.share_table import VERSION_SHIFT
from starlingmq.cluster.takeover.claim_decisions import CLAIM_TABLE, REQUEST_TABLE, RequestAction, RequestDecision
from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.cluster.takeover.inbound_states import (
    INBOUND_TABLE,
    RESET_TABLE,
    SOURCE_TABLE,
    InboundAction,
    InboundEvent,
    InboundState,
    ResetEvent,
    ResetState,
    SourceEvent,
    SourceState,
)
from starlingmq.cluster.takeover.outbound import OutboundSession
from starlingmq.cluster.takeover.outbound_states import (
    OUTBOUND_TABLE,
    OutboundAction,
    OutboundEvent,
    OutboundState,
)
from starlingmq.cluster.takeover.transfer_frames import (
    NOTHING,
    OVERTAKEN,
    Head,
    Part,
    Parts,
    Passed,
    SubscriptionFrame,
    Takeover,
    TransferFrame,
    Whole,
    encode,
    pack,
)
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import PUBLISHED, Outgoing
from starlingmq.core.session.session_user import REFUSE
from starlingmq.core.structures.state_table import NoTransition, Row, StateTable

pytestmark = pytest.mark.interpreted_only("compiled code takes no stand-ins")

SourceRow = Row[SourceState, SourceEvent, Any]
EPOCH, HELD = 50 << VERSION_SHIFT, 40 << VERSION_SHIFT
GRANTED = SubscriptionFrame(b"t", 1, False, False, b"")
PART = Part(b"t", b"x", b"", "p", (1, False, 0.0), -1.0, 1, False, b"", 0, 0)


def name(row: Row[Any, Any, Any]) -> str:
    return f"{row.state.name}-{row.event.name}"


def of(table: StateTable[Any, Any, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", [pytest.param(row, id=name(row)) for row in table.rows.values()])


class Target:
    """A node with an inbound session of client "c" whose one source is another node, which this test speaks for."""

    def __init__(self, state: SourceState, whole: bool = False) -> None:
        self.fleet = Fleet(2)
        self.node = self.fleet[0]
        self.source = self.fleet[1].cluster.number
        self.takeovers = self.node.cluster.takeovers
        self.migrations = self.takeovers.migrations
        self.target = self.takeovers._target
        self.inbound = InboundSession("c", EPOCH, {self.source: HELD})
        self.migrations.add(self.inbound)
        if state is SourceState.GONE:
            self.hear(Head("c", EPOCH, HELD, granted=[GRANTED]), Passed("c", EPOCH, [], True))
        elif state is not SourceState.ASKED:
            self.hear(Head("c", EPOCH, HELD, granted=[GRANTED]))
        if whole:
            self.hear(Whole("c", EPOCH))
        assert self.state() is state
        self.migrations.store()

    def hear(self, *said: TransferFrame) -> None:
        self.takeovers.take(self.source, pack([encode(each) for each in said]))

    def state(self) -> SourceState:
        source = self.inbound.sources.get(self.source)
        return SourceState.GONE if source is None else source.state

    def waiting(self) -> int:
        """Messages that are here for the session."""
        session = self.node.state.ctx.sessions["c"]
        return 0 if session.queue is None else len(session.queue)

    def asks(self) -> bool:
        """Whether the source is asked again in this turn."""
        return encode(self.inbound.asking()) in self.migrations._outbox.get(self.source, [])

    def releases(self) -> bool:
        """Whether the owner key of the source is to be deleted."""
        return any(node == self.source for _, node, _ in self.node.cluster.ownership._releases)


EVENTS: Final[dict[SourceEvent, Callable[[Target], None]]] = {
    SourceEvent.HEAD: lambda at: at.hear(Head("c", EPOCH, HELD, granted=[GRANTED], former_filters=[b"u"])),
    SourceEvent.NOTHING: lambda at: at.hear(Head("c", EPOCH, NOTHING)),
    SourceEvent.OVERTAKEN: lambda at: at.hear(Head("c", EPOCH, OVERTAKEN)),
    SourceEvent.PARTS: lambda at: at.hear(Parts("c", EPOCH, [PART])),
    SourceEvent.WHOLE: lambda at: at.hear(Whole("c", EPOCH)),
    SourceEvent.PASSED: lambda at: at.hear(Passed("c", EPOCH, [at.source], False)),
    SourceEvent.DONE: lambda at: at.hear(Passed("c", EPOCH, [], True)),
    SourceEvent.SILENT: lambda at: at.target._step_source(at.inbound, at.source, SourceEvent.SILENT),
    SourceEvent.UNREACHABLE: lambda at: at.target.late(at.inbound, at.source),
    SourceEvent.REACHABLE: lambda at: at.target._step_source(at.inbound, at.source, SourceEvent.REACHABLE),
    SourceEvent.REMOVED: lambda at: at.takeovers.set_members([at.migrations.me]),
    SourceEvent.DROPPED: lambda at: at.target._step_source(at.inbound, at.source, SourceEvent.DROPPED),
}


def outcome(at: Target, row: SourceRow) -> bool:
    """The effect of each event, seen from outside of the table."""
    before = row.state is not SourceState.GONE
    if row.event is SourceEvent.HEAD:
        return (b"u" in at.inbound.former_filters) == before
    if row.event is SourceEvent.PARTS and row.state is SourceState.ASKED:
        return at.inbound.kept == [(at.source, Parts("c", EPOCH, [PART]))]
    if row.event is SourceEvent.PARTS:
        return at.waiting() == 1
    if row.event is SourceEvent.WHOLE:
        return at.inbound.whole == (row.state is not SourceState.ASKED)
    if row.event is SourceEvent.PASSED:
        return not before or at.inbound.ordered(at.source)
    if row.event is SourceEvent.SILENT:
        return at.asks() == (not row.ignored)
    if row.event is SourceEvent.UNREACHABLE:
        return at.inbound.late() == [at.source] and not at.inbound.awaited()
    if row.event is SourceEvent.REACHABLE:
        return at.inbound.late() == []
    if row.event is SourceEvent.REMOVED and row.state is SourceState.ASKED:
        return not at.inbound.sources and at.inbound.removed == {at.source: HELD}  # its key is deleted with a session
    if row.event in (SourceEvent.NOTHING, SourceEvent.DONE, SourceEvent.REMOVED):
        return not at.inbound.sources and at.releases()
    return not at.inbound.sources  # OVERTAKEN, DROPPED: the key is a later owner's, or this node's


@of(SOURCE_TABLE)
def test_an_event_of_a_source_leads_to_the_state_of_its_row(row: SourceRow) -> None:
    at = Target(row.state)
    if row.event is SourceEvent.REACHABLE:
        at.target.late(at.inbound, at.source)
    with counting() as taken:
        EVENTS[row.event](at)
    assert taken[row] == 1, f"taken: {[name(each) for each in taken]}"
    assert at.state() is row.next
    assert outcome(at, row)
    assert not at.takeovers.take_notices()


@pytest.mark.parametrize("whole", [False, True])
def test_a_source_is_asked_again_and_waited_for_until_its_window_is_whole(whole: bool) -> None:
    at = Target(SourceState.HANDING, whole)
    assert at.inbound.whole == whole
    for now in (1.0, 100.0):
        at.target._ask_again(at.inbound, now)
    assert at.asks() == (not whole)
    at.target.late(at.inbound, at.source)
    at.target.reconsider(at.inbound)
    assert at.inbound.late() == [at.source] * whole


@pytest.mark.parametrize("event", [SourceEvent.DONE])
def test_a_message_without_a_row_is_ignored_and_the_notice_names_state_and_event(event: SourceEvent) -> None:
    at = Target(SourceState.ASKED)
    EVENTS[event](at)
    (notice,) = at.takeovers.take_notices()
    assert f"no transition from ASKED on {event.name}" in notice
    assert at.state() is SourceState.ASKED


@of(INBOUND_TABLE)
def test_an_event_of_an_inbound_session_leads_to_the_state_of_its_row(
    row: Row[InboundState, InboundEvent, InboundAction],
) -> None:
    at = Target(SourceState.HANDING, True)
    inbound, migrations = at.inbound, at.migrations
    inbound.state = row.state
    if row.state is InboundState.SETTLING:
        migrations.settling[inbound] = None
    with counting() as taken:
        at.target.step(inbound, row.event)
    assert taken[row] == 1
    assert inbound.state is row.next
    assert (inbound in migrations.settling) == (row.next is InboundState.SETTLING)
    assert (inbound in migrations.of("c")) == (row.next is not InboundState.FINISHED)
    assert (inbound in migrations._changed) == (InboundAction.STORE in row.actions)
    assert (at.source in inbound.wills.reported) == (InboundAction.EXPECT_WILLS in row.actions)


@of(RESET_TABLE)
def test_an_event_of_a_session_reset_leads_to_the_state_of_its_row(row: Row[ResetState, ResetEvent, Any]) -> None:
    at = Target(SourceState.HANDING, True)
    inbound, connects = at.inbound, at.takeovers._connects
    session = inbound.session
    assert session is not None
    session.require_reset()
    if row.state is ResetState.PENDING:
        connects.noticed(session, 1.0)
    with counting() as taken:
        if row.event is ResetEvent.NOTICED:
            connects.noticed(session, 2.0)
        elif row.event is ResetEvent.LATE:
            connects.look_at_reset(inbound, False, inbound.reset_until)
        else:
            connects.look_at_reset(inbound, True, 2.0)
    assert taken[row] == 1
    assert inbound.reset is row.next
    assert (inbound in at.migrations.resetting()) == (row.next is ResetState.PENDING)
    if row.event is ResetEvent.NOTICED:
        assert inbound.reset_until == 2.0 + at.migrations.limit


class Home:
    """A node whose session "c" another node has requested, which this test speaks for."""

    def __init__(self, state: OutboundState, newer: bool) -> None:
        self.fleet = Fleet(2)
        self.node = self.fleet[0]
        self.target = self.fleet[1].cluster.number
        lasting(self.fleet, 0).drop()
        self.takeovers = self.node.cluster.takeovers
        self.takeovers.set_members([self.takeovers.migrations.me, self.target])
        self.takeovers.take(self.target, pack([encode(Takeover("c", EPOCH, False))]))
        (self.outbound,) = self.takeovers.migrations.outbound_sessions.values()
        if newer:
            session = self.node.state.mover.arrive("c", EPOCH + 10, 60, 60.0, [], 0, False, False, None)
            assert session.epoch > EPOCH
        if state is OutboundState.QUEUE:
            self.takeovers._handover.step(self.outbound, OutboundEvent.WINDOW_EMPTY)

    def here(self) -> bool:
        """Whether client "c" has the session that was to be handed over."""
        return self.node.state.ctx.sessions.get("c") is self.outbound.session


@of(OUTBOUND_TABLE)
def test_an_event_of_an_outbound_session_leads_to_the_state_of_its_row(
    row: Row[OutboundState, OutboundEvent, OutboundAction],
) -> None:
    at = Home(row.state, newer=row.event is OutboundEvent.TARGET_GONE_OWED)
    outbound, migrations = at.outbound, at.takeovers.migrations
    assert outbound.state is row.state
    with counting() as taken:
        if row.event in (OutboundEvent.TARGET_GONE, OutboundEvent.TARGET_GONE_OWED):
            at.takeovers.set_members([migrations.me])
        elif row.event is OutboundEvent.TARGET_RESTARTED:
            at.takeovers.node_restarted(at.target)
        elif row.event is OutboundEvent.MESSAGES:
            at.takeovers._handover.step(outbound, row.event, parts=[PART])
        else:
            at.takeovers._handover.step(outbound, row.event, nodes=[at.target])
    assert taken[row] == 1
    assert outbound.state is row.next
    removed = outbound not in migrations.outbound_sessions.values()
    assert removed == (OutboundAction.REMOVE in row.actions)
    assert at.here() == (row.next is OutboundState.HERE)
    if row.next is OutboundState.OWED:
        assert [each.target for each in migrations.outbound_of["c"]] == [migrations.me]
    if OutboundAction.END in row.actions:
        assert outbound.session.ended


@pytest.mark.parametrize("decisions", [REQUEST_TABLE, CLAIM_TABLE], ids=["request", "claim"])
def test_each_decision_has_a_row_and_each_action_is_taken(decisions: dict[Any, Any]) -> None:
    kind: Any = type(next(iter(decisions)))
    assert list(decisions) == list(kind), "in the order in which the conditions are looked at"
    actions = [action for row in decisions.values() for action in row]
    every: Any = type(actions[0])
    assert set(actions) == set(every)


@pytest.mark.parametrize("decision", RequestDecision)
def test_a_request_is_decided_by_the_first_condition_that_holds(decision: RequestDecision) -> None:
    fleet = Fleet(2)
    node, other = fleet[0], fleet[1].cluster.number
    client = lasting(fleet, 0)
    if decision is not RequestDecision.RETURNED:
        client.drop()
    takeovers, session = node.cluster.takeovers, node.state.ctx.sessions["c"]
    members = [takeovers.migrations.me, other]
    takeovers.set_members(members[:1] if decision is RequestDecision.NO_MEMBER else members)
    clean, offered = decision is RequestDecision.DISCARDED, decision is RequestDecision.RETURNED
    requested = Takeover("c", EPOCH, clean, offered, session.owner)
    if decision is RequestDecision.REPEATED:
        takeovers.migrations.outbound_sessions["c", EPOCH] = OutboundSession(session, other, EPOCH, "c")
    elif decision is RequestDecision.RESERVED:
        node.state.ctx.session_owner, session.owner = REFUSE, "another user"
    elif decision is RequestDecision.OLDER:
        session.epoch = EPOCH + 1
    elif decision is RequestDecision.INCOMPLETE:
        takeovers.migrations.add(InboundSession("c", EPOCH - 1, {other: HELD}))
    elif decision is RequestDecision.LINK_FULL:
        node.state.mover.put_window(session, 1, PUBLISHED, Outgoing(Message.at(3), 1, False, b"", None))
        takeovers.migrations.queue_pace.hand_over(other, 1 << 30)
    source = takeovers._source
    assert source.decide(other, requested) is decision
    if decision not in (RequestDecision.NO_MEMBER, RequestDecision.REPEATED, RequestDecision.AVAILABLE):
        takeovers.take(other, pack([encode(requested)]))
        refused = RequestAction.REFUSE in REQUEST_TABLE[decision]
        assert takeovers.refused == refused
        assert ("c" in takeovers.migrations.deferred) == (RequestAction.DEFER in REQUEST_TABLE[decision])


def test_a_table_has_no_row_twice_each_ignored_event_says_why_and_each_action_is_taken() -> None:
    for table in TABLES:
        for row in table.rows.values():
            assert bool(row.ignored) == (row.next is row.state and not row.actions), name(row)
        taken = [action for row in table.rows.values() for action in row.actions]
        every: Any = type(taken[0])
        assert set(taken) == set(every), "an action that no row takes"
    with pytest.raises(ValueError, match="ASKED on HEAD"):
        StateTable("source", [*SOURCE_TABLE.rows.values(), SOURCE_TABLE.rows[SourceState.ASKED, SourceEvent.HEAD]])


def test_a_pair_without_a_row_is_an_error_that_names_both() -> None:
    with pytest.raises(NoTransition, match="inbound session: no transition from FINISHED on READY"):
        INBOUND_TABLE.step(InboundState.FINISHED, InboundEvent.READY)


@pytest.mark.parametrize("worlds", few([1, 3], 1))
def test_worlds_take_the_way_of_a_takeover(worlds: int) -> None:
    """The rows without faults: the rarer ones are counted by ``tests.cluster.takeover_rows``."""
    taken = taken_in(range(worlds))
    for state, event in [
        (SourceState.ASKED, SourceEvent.HEAD),
        (SourceState.ASKED, SourceEvent.NOTHING),
        (SourceState.HANDING, SourceEvent.WHOLE),
        (SourceState.HANDING, SourceEvent.PARTS),
        (SourceState.HANDING, SourceEvent.PASSED),
        (SourceState.HANDING, SourceEvent.DONE),
    ]:
        assert taken[SOURCE_TABLE.rows[state, event]] > 0, f"{state.name} on {event.name}"
    assert taken[INBOUND_TABLE.rows[InboundState.WAITING, InboundEvent.READY]] > 0
    assert taken[INBOUND_TABLE.rows[InboundState.OPEN, InboundEvent.COMPLETE]] > 0
