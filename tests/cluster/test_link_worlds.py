"""Links in worlds of faults, drawn from seeds; and bugs planted into them, each of which the worlds must find."""

from __future__ import annotations

from collections.abc import Callable
from operator import gt, lt
from typing import Any

import pytest
from tests.cluster import link_world
from tests.few import few
from tests.planting import Plant, around, during, first_to_find, nothing

from starlingmq.cluster.links.peer_frames import Data, DataAck
from starlingmq.cluster.links.peer_link import PeerLink

Sound = Callable[..., Any]


def with_any_mark(stored: Sound, link: Any, mark: tuple[int, int]) -> Any:
    for sequence in range(link._stored + 1, mark[1] + 1):
        link._sizes.setdefault(sequence, 0)
    return stored(link, (link.source_incarnation, mark[1]))


def taken_as_next(is_taken: Callable[[int, int], bool]) -> Plant:
    """A frame is taken as the next one, if its number compares so with that of the next one."""

    def received(sound: Sound, link: Any, data: Data, source: int, target: int) -> Any:
        following = 1 if source > link.source_incarnation else link._delivered + 1
        if is_taken(data.sequence, following):
            data = Data(following, data.count, data.blob)
        return sound(link, data, source, target)

    return around(PeerLink, "received", received)


def from_any_life(received: Sound, link: Any, data: Data, source: int, target: int) -> Any:
    if source < link.source_incarnation:
        link.source_incarnation = 0
    return received(link, data, source, target)


def of_whatever_was_sent(acknowledged: Sound, link: Any, ack: DataAck, source: int, target: int, now: float) -> Any:
    sent, link._sent = link._sent, max(link._sent, ack.sequence)
    count = acknowledged(link, ack, link.target_incarnation, target, now)
    link._sent = sent
    return count


def with_the_old_numbers(reset: Sound, link: Any, target: int) -> None:
    before, acknowledged = link.target_incarnation, link._acknowledged
    reset(link, target)
    if target != before:
        link._acknowledged = acknowledged
        link.resend()


def silent(received: Sound, link: Any, *frame: Any) -> Any:
    due = link.ack_due
    blob = received(link, *frame)
    if blob is None:
        link.ack_due = due
    return blob


BUGS: dict[str, Plant] = {
    "acknowledged before it is stored": around(
        PeerLink, "stored", lambda stored, link, mark: stored(link, (mark[0], link._delivered))
    ),
    "a mark of another pair counts": around(PeerLink, "stored", with_any_mark),
    "taken twice": taken_as_next(lt),
    "taken over a gap": taken_as_next(gt),
    "a frame for the life before": around(
        PeerLink,
        "received",
        lambda received, link, data, source, target: received(link, data, source, link._incarnation),
    ),
    "a frame of the life before": around(PeerLink, "received", from_any_life),
    "an acknowledgement of the life before": around(
        PeerLink, "acknowledged", lambda sound, link, ack, source, *to: sound(link, ack, link.target_incarnation, *to)
    ),
    "an acknowledgement for the life before": around(
        PeerLink,
        "acknowledged",
        lambda sound, link, ack, source, target, now: sound(link, ack, source, link._incarnation, now),
    ),
    "an acknowledgement of what was never sent": around(PeerLink, "acknowledged", of_whatever_was_sent),
    "not numbered anew": around(PeerLink, "reset_sender", with_the_old_numbers),
    "a new receiver gets only what is new": during(PeerLink, "reset_sender", PeerLink, "resend", nothing),
    "never sent again": during(PeerLink, "take", PeerLink, "resend", nothing),
    "nobody asks for room": around(
        PeerLink, "_may_send", lambda may, link: may(link) and (link._on_the_way > 0 or link._room > 0)
    ),
    "the window is not looked at": around(
        PeerLink,
        "_may_send",
        lambda may, link: may(link) or (link._next in link._frames and link._on_the_way > 0),
    ),
    "a lost acknowledgement is not repeated": around(PeerLink, "received", silent),
}


@pytest.mark.parametrize("seeds", [80, pytest.param(400, marks=pytest.mark.long)])
def test_worlds(seeds: int) -> None:
    for seed in range(seeds):
        link_world.run(seed)


@pytest.mark.interpreted_only("what is compiled cannot be patched")
@pytest.mark.parametrize(
    "bug",
    few(
        BUGS,
        "not numbered anew",
        "never sent again",
        "the window is not looked at",
        "a lost acknowledgement is not repeated",
    ),
)
def test_planted_bugs_are_found(bug: str) -> None:
    assert first_to_find(range(1000), lambda: BUGS[bug], link_world.run) >= 0, f"no world of 1000 finds this: {bug}"
