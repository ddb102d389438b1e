"""Mirrors and sources over crashes of both streams; and mistakes that this finds."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from tests.core.streams.test_sequenced_stream import NOW, Broker, policy_of
from tests.few import drawn, few
from tests.planting import FAILURES, Plant, around, first_to_find

from starlingmq.core.messages.message import Message
from starlingmq.core.streams.policies import DISCARD_NEW
from starlingmq.core.streams.sequenced_stream import GAP_MAX, SequencedStream
from starlingmq.core.streams.source_settings import SourceSettings
from starlingmq.core.streams.sourcing import Sourcing
from starlingmq.wire.nats_headers import carried

SEEDS_MAX = 60
SOURCE, MIRROR = "source", "mirror"


class World:
    """``written``: all that the target has ever stored, also what has gone."""

    written: list[Message | None]

    def __init__(self, seed: int, kind: str) -> None:
        self.chance = random.Random(seed)
        self.kind = kind
        self.settings = SourceSettings("S", b"S > >", kind == MIRROR)
        self.settings.filters = self.chance.choice(([], [b"a/#"]))
        self.origin = Broker(policy_of())
        limit = self.chance.choice((-1, 20)) if kind == SOURCE else -1
        self.target = Broker(policy_of(sources=[self.settings], max_messages=limit, discard=DISCARD_NEW))
        self.number = 0
        self.jumped = False
        self.written = []
        self.attach()

    def attach(self) -> None:
        for each in (self.origin, self.target):
            each.stream.apply(each.policy, b"{}")
        self.active: dict[Sourcing, None] = {}
        self.sourcing = Sourcing(self.settings, self.target.stream, self.active)
        self.sourcing.attach(self.origin.stream)

    def step(self) -> None:
        match self.chance.randrange(11):
            case 0 | 1 | 2:
                self.number += 1
                self.origin.publish(self.chance.choice((b"a/1", b"a/2", b"b")), b"%d" % self.number)
            case 3:
                self.store_origin()
            case 4:
                self.store_target()
            case 5 | 6:
                self.fill(self.chance.randrange(1, 6))
            case 7 if self.kind == SOURCE:
                self.target.publish(b"own", b"own")
            case 7 if not self.jumped and self.chance.random() < 0.1:
                self.jump()
            case 8:
                self.target.stream.remove(self.chance.randint(1, self.target.stream.index.last + 1))
            case 9:
                self.crash()
            case 10 if self.chance.random() < 0.2:
                self.store_target()
                self.note()
                self.forget_record(self.target.stream.released())  # it may give back any time

    def store_origin(self) -> None:
        stored = self.origin.stream.end()
        self.origin.turn()
        for seq in range(stored + 1, self.origin.stream.end() + 1):
            for watcher in self.origin.stream.watchers_of(self.origin.stream.index.topic_of(seq) or b""):
                watcher.wake()

    def jump(self) -> None:
        """As after a purge up to a sequence that was not given yet: a gap that has no empty records."""
        self.jumped = True
        self.store_origin()
        stream = self.origin.stream
        seq = stream.index.last + GAP_MAX + self.chance.randrange(3)
        self.origin.log.go_on_at(seq)
        stream.index.skip(seq - 1)

    def store_target(self) -> None:
        self.target.turn()
        self.sourcing.wake()  # as the hub does it

    def fill(self, budget: int) -> None:
        """If it has something to do, as the hub does it."""
        if self.sourcing in self.active:
            del self.active[self.sourcing]
            if not self.sourcing.fill(budget, NOW):
                self.active[self.sourcing] = None

    def note(self) -> None:
        self.written += self.target.log.messages[len(self.written) :]

    def forget_record(self, released: int) -> None:
        """Of a message that was removed: the log gives its room back."""
        stored = self.target.log.messages[:released]
        removed = [at for at, _ in enumerate(stored, 1) if not self.target.stream.index.has(at)]
        if removed and self.kind == SOURCE:
            self.target.log.messages[removed[-1] - 1] = None

    def crash(self) -> None:
        """Everything that no turn has ended with is lost."""
        self.origin.restart()
        self.target.restart()
        self.attach()

    def copies(self) -> list[tuple[int, bytes]]:
        """Sequences of the origin, and payloads."""
        found = []
        for seq, message in enumerate(self.written, 1):
            if message is None or message.topic == b"own":
                continue
            if self.kind == MIRROR:
                found.append((seq, message.payload))
                continue
            [line] = [each for each in carried(message.properties).headers.split(b"\r\n") if b"Stream-Source" in each]
            found.append((int(line.split(b" ")[2]), message.payload))
        return found

    def finish(self) -> None:
        self.target.stream.policy.max_messages = -1
        for _ in range(200):
            self.store_origin()
            self.fill(50)
            self.store_target()


def run(seed: int, kind: str) -> None:
    world = World(seed, kind)
    for _ in range(200):
        world.step()
        world.note()
    world.finish()
    world.note()
    selection = [b"a/1", b"a/2"] if world.settings.filters else [b"a/1", b"a/2", b"b"]
    expected = [
        (seq, message.payload)
        for seq, message in enumerate(world.origin.log.messages, 1)
        if message is not None and message.topic in selection
    ]
    assert world.copies() == expected
    assert world.sourcing.lag() == 0


@drawn(20, 500)
@pytest.mark.parametrize("kind", [SOURCE, MIRROR])
def test_each_message_is_copied_once(kind: str, examples: int) -> None:
    for seed in range(examples):
        try:
            run(seed, kind)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def _asleep(sound: object, self: Sourcing) -> None:
    pass


def _before_it_is_stored(sound: object, self: SequencedStream) -> int:
    return self.index.last


def _at(add: int, sound: Callable[..., None], self: Sourcing, origin: SequencedStream) -> None:
    first = self.next == 0
    sound(self, origin)
    if first and self.next > 1:
        self.next += add


def _from_the_start(sound: Callable[..., None], self: Sourcing, origin: SequencedStream) -> None:
    sound(self, origin)
    self.next = 1


def _refused_is_lost(sound: Callable[..., bool], self: SequencedStream, message: Message) -> bool:
    sound(self, message)
    return True


def _without_gaps(sound: Callable[..., bool], self: SequencedStream, message: Message, seq: int) -> bool:
    return sound(self, message, self.index.last + 1)


def _without_a_wide_gap(sound: object, self: SequencedStream, seq: int) -> None:
    pass


def _at_once(sound: object, self: SequencedStream, seq: int) -> bool:
    return False


def _own_place(sound: object, self: SequencedStream) -> int:
    return self.index.last


def _before_it_is_told(sound: Callable[..., int], self: SequencedStream) -> int:
    sound(self)
    return self.index.last


MISTAKES: dict[str, tuple[Callable[[], Plant], str]] = {
    "copied before it is stored": (partial(around, SequencedStream, "end", _before_it_is_stored), SOURCE),
    "mirrored before it is stored": (partial(around, SequencedStream, "end", _before_it_is_stored), MIRROR),
    "it is not woken": (partial(around, Sourcing, "wake", _asleep), MIRROR),
    "the last one again": (partial(around, Sourcing, "attach", partial(_at, -1)), SOURCE),
    "one left out": (partial(around, Sourcing, "attach", partial(_at, 1)), SOURCE),
    "from the start after a crash": (partial(around, Sourcing, "attach", _from_the_start), SOURCE),
    "no room, and it is lost": (partial(around, SequencedStream, "take_sourced", _refused_is_lost), SOURCE),
    "a mirror without gaps": (partial(around, SequencedStream, "take_mirrored", _without_gaps), MIRROR),
    "a mirror without wide gaps": (partial(around, SequencedStream, "_go_on_at", _without_a_wide_gap), MIRROR),
    "a wide gap before its log is written": (partial(around, SequencedStream, "is_behind", _at_once), MIRROR),
    "the place goes with its message": (partial(around, SequencedStream, "released", _own_place), SOURCE),
    "the place goes before it is told": (partial(around, SequencedStream, "released", _before_it_is_told), SOURCE),
}


@pytest.mark.interpreted_only("what is compiled cannot be patched")
@pytest.mark.parametrize("name", few(MISTAKES, "copied before it is stored", "the last one again"))
def test_each_mistake_is_found(name: str) -> None:
    plant, kind = MISTAKES[name]
    found = first_to_find(range(SEEDS_MAX), plant, partial(run, kind=kind), FAILURES)
    assert found >= 0, f"no seed below {SEEDS_MAX} finds it"
