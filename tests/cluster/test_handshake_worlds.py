"""Publishers that hop in the middle of their handshakes, in worlds drawn from seeds; and mistakes made on purpose, one
for each hazard, each of which shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from tests.cluster import test_handshakes
from tests.cluster.handshake_world import FIGURES, run
from tests.sim.seen import Seen

from starlingmq.cluster.qos2 import qos2_adapter, qos2_lookup
from starlingmq.cluster.qos2.qos2_adapter import Qos2Adapter
from starlingmq.cluster.qos2.qos2_lookup import Qos2Lookup
from starlingmq.cluster.qos2.qos2_store import Qos2Store
from starlingmq.core.context.context import Context
from starlingmq.core.context.remote_qos2 import RemoteQos2
from starlingmq.core.publish.publishing import Publishing

RARE = ("clients/timed_out", "answers/later")  # the former because everybody is reached in the end


@pytest.mark.parametrize("worlds", [5, pytest.param(18, marks=pytest.mark.long)])
def test_worlds(worlds: int) -> None:
    seen = Seen()
    for seed in range(worlds):
        world = run(seed)
        seen.update(world.figures())
        seen["hops"] += world.hopped
    assert seen["hops"] > 10 * worlds, "hardly anybody went anywhere"
    never = [name for name in FIGURES if not seen[name] and name not in RARE]
    assert worlds < 18 or not never, "what never happened was not tested"


Mistake = Callable[[], AbstractContextManager[Any]]


def the_first_node_that_holds_it_releases_it() -> Any:
    """An older handshake with the same packet id, abandoned by its client, goes its way too, or instead."""
    return patch.object(qos2_lookup, "LOOK", 1)


def the_lowest_epoch_wins() -> Any:
    return patch.object(qos2_lookup, "_epoch", lambda item: -item[1][1] if item[1][1] else -(1 << 60))


def completed_handshakes_are_forgotten() -> Any:
    """PUBCOMP is lost, and PUBREL comes again at a third node."""
    release = Qos2Store.release

    def forgetful(self: Qos2Store, client_id: str, packet_id: int, before: int, *arguments: Any) -> Any:
        answer = release(self, client_id, packet_id, before, *arguments)
        self.cancel(client_id, packet_id, before)
        return answer

    return patch.object(Qos2Store, "release", forgetful)


def handshakes_completed_elsewhere_are_not_recorded_here() -> Any:
    """Nor by the one who asked."""
    answer = Publishing._answer_pubrel

    def unnoted(self: Publishing, client: Any, session: Any, inbound: Any, packet_id: int, outcome: int) -> None:
        answer(self, client, session, inbound, packet_id, outcome)
        inbound.entries.pop(packet_id, None)

    @contextmanager
    def both() -> Iterator[None]:
        with patch.object(Publishing, "_answer_pubrel", unnoted), completed_handshakes_are_forgotten():
            yield

    return both()


def remaining_handshakes_are_not_stored() -> Any:
    """The node that completes it dies."""
    return patch.object(Qos2Adapter, "_fact", lambda *_: None)


@contextmanager
def a_reply_does_not_wait_for_the_store() -> Iterator[None]:
    """A window split by a crash: what the reply says of half of it is gone, though clients have heard it."""
    send_stored = Context.send_stored

    def at_once(self: Context, client: Any, frame: bytes) -> None:
        (self.send if client.client_id == "$handshakes" else lambda *_: send_stored(self, client, frame))(client, frame)

    with patch.object(Context, "send_stored", at_once):
        yield


@contextmanager
def an_answer_is_given_to_the_current_connection() -> Iterator[None]:
    """Answers that cross a takeover."""
    tell = Qos2Adapter._tell_clients

    def to_anybody(self: Qos2Adapter) -> None:
        for question, _ in self.lookup.resolved:
            assert question.asked is not None
            session = self._ctx.sessions.get(question.client_id)
            if session is not None and session.client is not None:
                question.asked.session, question.asked.client = session, session.client
        tell(self)

    with ExitStack() as stack:
        stack.enter_context(patch.object(Qos2Adapter, "_tell_clients", to_anybody))
        stack.enter_context(patch.object(Qos2Lookup, "_idle", lambda *_: False))
        yield


def a_question_is_answered_before_the_session_has_left() -> Any:
    return patch.object(qos2_adapter, "LATER", 0)


pure = pytest.mark.interpreted_only("what is compiled can not be patched")


def repeated_publishes_cancel_nothing() -> Any:
    return patch.object(RemoteQos2, "defer", lambda *_: False)


def unreachable_nodes_are_not_waited_for() -> Any:
    def without_them(self: Qos2Lookup, node: int, questions: Any, now: float) -> Any:
        for question in questions:
            if not self._connected(node):
                question.waiting.pop(node, None)
                self._decide(question, now)
        return call(self, node, questions, now)

    call = Qos2Lookup._call
    return patch.object(Qos2Lookup, "_call", without_them)


def a_clean_start_is_not_told() -> Any:
    find = Qos2Store._find
    return patch.object(
        Qos2Store,
        "_find",
        lambda self, client_id, packet_id, before, _, user: find(self, client_id, packet_id, before, 0, user),
    )


abandoned = test_handshakes.test_an_abandoned_handshake_that_only_all_together_can_tell
repeated = test_handshakes.test_a_pubrel_repeated_at_a_third_node_is_answered_truly
routed = test_handshakes.test_the_node_that_has_routed_a_message_says_so_to_the_next_node_that_asks
crashed = test_handshakes.test_handshakes_that_stayed_here_survive_a_crash
stored = test_handshakes.test_a_reply_waits_until_its_content_is_stored
gone = test_handshakes.test_an_answer_for_a_lost_connection_is_not_given_to_the_next_one
staying = test_handshakes.test_a_node_that_has_not_heard_of_the_takeover_answers_later
again = test_handshakes.test_a_repeated_publish_cancels_the_handshake_at_another_node
away = test_handshakes.test_an_older_handshake_is_not_released_while_a_node_that_may_have_a_newer_one_is_away
anew = test_handshakes.test_handshakes_from_before_a_clean_start_do_not_count

SHOWN_BY: tuple[tuple[Mistake, Callable[[], None]], ...] = (
    (the_first_node_that_holds_it_releases_it, abandoned),
    (the_lowest_epoch_wins, abandoned),
    (completed_handshakes_are_forgotten, routed),
    (handshakes_completed_elsewhere_are_not_recorded_here, repeated),
    (remaining_handshakes_are_not_stored, crashed),
    (a_reply_does_not_wait_for_the_store, stored),
    (an_answer_is_given_to_the_current_connection, gone),
    (a_question_is_answered_before_the_session_has_left, staying),
    (repeated_publishes_cancel_nothing, again),
    (unreachable_nodes_are_not_waited_for, away),
    (a_clean_start_is_not_told, anew),
)
"""And the world made by hand that shows it. Drawn worlds show most of them too, one in fifty or so."""


@pure
@pytest.mark.parametrize(("mistake", "test"), SHOWN_BY, ids=lambda each: getattr(each, "__name__", None))
def test_mistakes_show(mistake: Mistake, test: Callable[[], None]) -> None:
    with mistake(), pytest.raises(AssertionError):
        test()
