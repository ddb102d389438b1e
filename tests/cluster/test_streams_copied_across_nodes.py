"""Mirrors and sources of streams of other nodes: each message once and in order, whatever is lost on the way."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
from tests.cluster.stream_disk import DiskFleet
from tests.cluster.stream_fleet import JetStreamPeer
from tests.cluster.test_streams_across_nodes import seen_by_all
from tests.core.streams.test_sequenced_stream import Log
from tests.few import drawn, few
from tests.planting import FAILURES, around, first_to_find

from starlingmq.cluster.streams.cluster_streams import ClusterStreams
from starlingmq.core.jetstream.far_sources import AGAIN_SECONDS, COUNT, FarSources
from starlingmq.core.messages.message import Message
from starlingmq.core.streams.far_read import ReadTold
from starlingmq.core.streams.sequenced_stream import GAP_MAX
from starlingmq.wire.nats_headers import carried

SEEDS_MAX = 20
KINDS = ("mirror", "sources")
SECONDS = 3 * AGAIN_SECONDS  # until all that was lost was asked for again


def config_of(kind: str, **origin: Any) -> dict[str, Any]:
    source = {"name": "S", **origin}
    return {"subjects": [], "storage": "file", kind: source if kind == "mirror" else [source]}


def stored(fleet: DiskFleet, name: str) -> list[Message | None]:
    """By sequence, from 1 on."""
    [found] = [each for disk in fleet.disks.values() for each in disk.streams.values() if each.name == name]
    return found.log.messages


def copied(fleet: DiskFleet, kind: str) -> list[tuple[int, bytes]]:
    """Sequences of the origin, and payloads."""
    found = []
    for seq, message in enumerate(stored(fleet, "COPY"), 1):
        if message is not None and kind == "mirror":
            found.append((seq, message.payload))
        elif message is not None:
            [line] = [each for each in carried(message.properties).headers.split(b"\r\n") if b"Stream-Source" in each]
            found.append((int(line.split(b" ")[2]), message.payload))
    return found


def info(peer: JetStreamPeer, kind: str) -> Any:
    found = peer.api("STREAM.INFO.COPY")[kind]
    return found if kind == "mirror" else found[0]


def origin(fleet: DiskFleet, count: int) -> tuple[JetStreamPeer, JetStreamPeer]:
    """Clients at its home, and at the node of the copy."""
    home, other = (JetStreamPeer(fleet, place) for place in range(2))
    assert "error" not in home.make("S", "s.>", storage="file")
    seen_by_all(fleet, "S")
    for number in range(1, count + 1):
        home.peer.pub(f"s.{'ab'[number % 2]}", b"%d" % number)
    fleet.advance(0.5)
    return home, other


def expected(fleet: DiskFleet, topics: tuple[bytes, ...] = (b"s/a", b"s/b"), first: int = 1) -> list[tuple[int, bytes]]:
    messages = enumerate(stored(fleet, "S"), 1)
    return [(seq, each.payload) for seq, each in messages if each is not None and each.topic in topics and seq >= first]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_there_and_what_comes_is_copied(kind: str) -> None:
    fleet = DiskFleet(3)
    home, other = origin(fleet, COUNT + 10)
    made = other.make("COPY", **config_of(kind))
    assert made["cluster"]["leader"] == "n2"
    fleet.advance(2.0)
    home.peer.pub("s.a", b"later")
    fleet.advance(2.0)
    assert copied(fleet, kind) == expected(fleet) and len(expected(fleet)) == COUNT + 11
    for peer in (home, other):
        found = info(peer, kind)
        assert (found["name"], found["lag"], "error" in found) == ("S", 0, False)
    times = [each.published_at for each in stored(fleet, "S") if each is not None]
    if kind == "mirror":
        assert [each.published_at for each in stored(fleet, "COPY") if each is not None] == times


@pytest.mark.parametrize("kind", KINDS)
def test_filters_and_a_start_hold_at_another_node(kind: str) -> None:
    fleet = DiskFleet(3)
    _, other = origin(fleet, 20)
    other.make("COPY", **config_of(kind, opt_start_seq=7, filter_subject="s.a"))
    fleet.advance(2.0)
    assert copied(fleet, kind) == expected(fleet, (b"s/a",), 7)


def test_several_filters_are_compared_at_the_node_of_the_copy() -> None:
    fleet = DiskFleet(3)
    _, other = origin(fleet, 20)
    mappings = [{"src": "s.a", "dest": "x.a"}, {"src": "s.c", "dest": "x.c"}]
    other.make("COPY", **config_of("sources", subject_transforms=mappings))
    fleet.advance(2.0)
    assert copied(fleet, "sources") == expected(fleet, (b"s/a",))
    assert {each.topic for each in stored(fleet, "COPY") if each is not None} == {b"x/a"}


def test_a_mirror_of_another_node_has_its_wide_gaps() -> None:
    fleet = DiskFleet(3)
    home, other = origin(fleet, 2)
    other.make("COPY", **config_of("mirror"))
    fleet.advance(2.0)
    far = 2 * GAP_MAX
    home.api("STREAM.PURGE.S", {"seq": far})
    home.peer.pub("s.a", b"far")
    fleet.advance(3.0)
    assert copied(fleet, "mirror") == [(1, b"1"), (2, b"2"), (far, b"far")]


@pytest.mark.parametrize("kind", KINDS)
def test_an_origin_that_comes_later_is_copied(kind: str) -> None:
    fleet = DiskFleet(3)
    other = JetStreamPeer(fleet, 1)
    other.make("COPY", **config_of(kind))
    fleet.advance(2.0)
    assert info(other, kind)["error"]["err_code"] == 10059
    origin(fleet, 5)
    fleet.advance(2.0)
    assert copied(fleet, kind) == expected(fleet)


def test_an_origin_that_was_made_again_is_copied_from_its_start() -> None:
    fleet = DiskFleet(3)
    home, other = origin(fleet, 5)
    other.make("COPY", **config_of("sources"))
    fleet.advance(2.0)
    first = expected(fleet)
    assert home.api("STREAM.DELETE.S")["success"]
    fleet.advance(2.0)
    assert info(other, "sources")["error"]["err_code"] == 10059
    home.make("S", "s.>", storage="file")
    for number in range(3):
        home.peer.pub("s.a", b"new %d" % number)
    fleet.advance(SECONDS)
    assert copied(fleet, "sources") == [*first, *expected(fleet)] and len(expected(fleet)) == 3


def test_a_copy_without_room_goes_on_when_it_has_some() -> None:
    fleet = DiskFleet(3)
    _, other = origin(fleet, 5)
    config = config_of("sources") | {"discard": "new", "max_msgs": 3}
    other.make("COPY", **config)
    fleet.advance(3.0)
    assert len(copied(fleet, "sources")) == 3
    other.api("STREAM.UPDATE.COPY", config | {"name": "COPY", "max_msgs": 10})
    fleet.advance(3.0)
    assert copied(fleet, "sources") == expected(fleet)


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_beyond_the_end_is_waited_for(kind: str) -> None:
    """Also after the request has been made again."""
    fleet = DiskFleet(3)
    home, other = origin(fleet, 5)
    other.make("COPY", **config_of(kind, opt_start_seq=10, opt_start_time="2000-01-01T00:00:00Z"))
    fleet.advance(AGAIN_SECONDS + 2.0)
    for number in range(6, 15):
        home.peer.pub("s.a", b"%d" % number)
    fleet.advance(AGAIN_SECONDS + 2.0)
    assert copied(fleet, kind) == expected(fleet, first=10) and len(copied(fleet, kind)) == 5


@pytest.mark.interpreted_only("what is compiled can not be patched")
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_answer_that_comes_again_repeats_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sound, first = FarSources.told, list[ReadTold]()

    def doubling(self: FarSources, told: ReadTold) -> bool:
        if told.message is None and told.after == 0:
            first.append(told)
        goes_on = sound(self, told)
        return sound(self, first[0]) if told.sequence == 3 else goes_on

    monkeypatch.setattr(FarSources, "told", doubling)
    fleet = DiskFleet(3)
    _, other = origin(fleet, 5)
    other.make("COPY", **config_of(kind))
    fleet.advance(SECONDS)
    assert copied(fleet, kind) == expected(fleet) and len(first) == 1


def test_a_disk_that_fails_under_a_wide_gap_costs_no_frame_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = DiskFleet(3)
    home, other = origin(fleet, 2)
    other.make("COPY", **config_of("mirror"))
    fleet.advance(2.0)
    home.api("STREAM.PURGE.S", {"seq": (far := 2 * GAP_MAX)})
    fleet.advance(2.0)
    sound, tries = Log.go_on_at, list[int]()

    def failing(self: Log, seq: int) -> None:
        tries.append(seq)
        if len(tries) < 3:
            raise OSError("no space left")
        sound(self, seq)

    monkeypatch.setattr(Log, "go_on_at", failing)
    home.peer.pub("s.a", b"far")
    fleet.advance(5.0)
    assert copied(fleet, "mirror") == [(1, b"1"), (2, b"2"), (far, b"far")] and tries == [far] * 3


def test_a_mirror_becomes_a_stream_of_its_own() -> None:
    """As at nats-server since 2.12: when its origin is lost."""
    fleet = DiskFleet(3)
    home, other = origin(fleet, 5)
    other.make("COPY", **config_of("mirror"))
    fleet.advance(2.0)
    assert "error" not in other.api("STREAM.UPDATE.COPY", {"name": "COPY", "subjects": ["c.>"], "storage": "file"})
    fleet.advance(2.0)
    home.peer.pub("s.a", b"no more")
    assert home.ask("c.1", b"own")["seq"] == 6
    fleet.advance(2.0)
    fleet.kill("n2")
    fleet.serve("n2")
    fleet.advance(SECONDS)
    assert home.ask("c.1", b"own")["seq"] == 7
    fleet.advance(2.0)
    assert [payload for _, payload in copied(fleet, "mirror")] == [b"1", b"2", b"3", b"4", b"5", b"own", b"own"]
    assert "mirror" not in home.api("STREAM.INFO.COPY")


@pytest.mark.interpreted_only("what is compiled can not be patched")
def test_a_purge_beyond_the_end_does_not_overtake_what_has_just_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """That would come behind the gap in the log, and the log would have other sequences than the stream."""
    fleet = DiskFleet(3)
    home, other = origin(fleet, 3)
    sound = ClusterStreams.take

    def together(self: ClusterStreams, node: int, payload: bytes) -> None:
        if self.name == "n1" and b"STREAM.PURGE.S" in payload:
            home.peer.pub("s.a", b"same turn")
        sound(self, node, payload)

    monkeypatch.setattr(ClusterStreams, "take", together)
    refused = other.api("STREAM.PURGE.S", {"seq": 100})["error"]
    assert refused["description"] == "messages have just come: try again"
    monkeypatch.setattr(ClusterStreams, "take", sound)
    assert other.api("STREAM.PURGE.S", {"seq": 100})["purged"] == 4
    home.peer.pub("s.a", b"next")
    fleet.advance(0.5)
    found = {seq: each.payload for seq, each in enumerate(stored(fleet, "S"), 1) if each is not None}
    assert found == {1: b"1", 2: b"2", 3: b"3", 4: b"same turn", 100: b"next"}


def run(seed: int, kind: str) -> None:
    """Connections are cut, and nodes killed, while messages come and go."""
    chance = random.Random(seed)
    fleet = DiskFleet(3)
    origin(fleet, chance.randrange(5))
    JetStreamPeer(fleet, 1).make("COPY", **config_of(kind))
    gone: dict[tuple[int, bytes], None] = {}
    number = 100
    for _ in range(60):
        match chance.randrange(8):
            case 0 | 1 | 2 if (home := fleet.named("n1")) is not None and not home.state.ctx.isolated:
                peer = JetStreamPeer(fleet, fleet.nodes.index(home))
                for _ in range(chance.choice((1, 3, 20))):
                    number += 1
                    peer.peer.pub(chance.choice(("s.a", "s.b")), b"%d" % number)
            case 3 if (home := fleet.named("n1")) is not None:
                stream = home.state.jetstream.streams["S"]
                seq = chance.randint(1, stream.index.last + 1)
                message = stream.message(seq)
                if stream.remove(seq) and message is not None:
                    gone[seq, message.payload] = None
            case 4:
                fleet.cut(1, 2)
            case 5:
                fleet.heal()
            case 6:
                name = chance.choice(("n1", "n2"))
                if fleet.named(name) is not None:
                    fleet.kill(name)
                    fleet.advance(chance.random())
                    fleet.serve(name)
        fleet.advance(chance.choice((0.01, 0.1, 1.0)))
    fleet.heal()
    fleet.advance(2 * SECONDS)
    found = copied(fleet, kind)
    assert [each for each in expected(fleet) if each not in gone] == [each for each in found if each not in gone]
    assert found == sorted(set(found)), "once, and in order"


@drawn(2, 50)
@pytest.mark.parametrize("kind", KINDS)
def test_each_message_is_copied_once_whatever_is_lost(kind: str, examples: int) -> None:
    for seed in range(examples):
        try:
            run(seed, kind)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def _never_again(sound: Any, self: FarSources, sourcing: Any, far: Any) -> None:
    source = self._sources.get(sourcing)
    if source is None or source.left == 0:
        sound(self, sourcing, far)


def _whatever_it_follows(sound: Any, self: FarSources, told: ReadTold) -> bool:
    source = self.by_number[told.reader]
    if told.number == source.asked and told.message is not None:
        told.after = source.follows
    return bool(sound(self, told))


MISTAKES: dict[str, tuple[Any, str]] = {
    "what is lost is not asked for again": (partial(around, FarSources, "ask", _never_again), "sources"),
    "what is missing is not noticed": (partial(around, FarSources, "told", _whatever_it_follows), "mirror"),
}


@pytest.mark.interpreted_only("what is compiled cannot be patched")
@pytest.mark.parametrize("name", few(MISTAKES, "what is lost is not asked for again"))
def test_each_mistake_is_found(name: str) -> None:
    plant, kind = MISTAKES[name]
    found = first_to_find(range(SEEDS_MAX), plant, partial(run, kind=kind), FAILURES)
    assert found >= 0, f"no seed below {SEEDS_MAX} finds it"
