"""A consumer of a stream among clients that answer late, twice or not at all; ``python -m
tests.core.streams.consumer_world --seeds N``.

A seed draws the policy of the consumer, what is published and removed, requests, answers, clients that die, and
restarts from the state that was stored last: always the present one, or (``lossy``) often an earlier one. A model that
knows nothing of tables, timers or queues follows what comes out. It goes back to its own earlier state when the
consumer does. Of each message that matches must hold:

- it is delivered until it is acknowledged or terminated, and not again after that;
- no more than ``max_deliver`` times, with the right count, and then one advisory says so;
- not while an earlier delivery may still be acknowledged, and never are more than ``max_ack_pending`` out;
- first deliveries are in the order of the stream, and those that are due again go first;
- requests take turns, get no more than they asked for, and end with the status that says what is missing;
- the counts agree with the model, and what the consumer needs no more is reported once.
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from tests.core.streams.consumer_scene import Shelf, policy_of

from starlingmq.core.streams.acknowledgements import AckSubject, ack_subject
from starlingmq.core.streams.consumer import JetStreamConsumer
from starlingmq.core.streams.consumer_policy import ACK_ALL, ACK_EXPLICIT, ACK_NONE, ALL, LAST_PER_SUBJECT, NEW
from starlingmq.core.streams.effects import Advisory, Deliver, StatusMessage
from starlingmq.core.topics.topics import meet

TOPICS = (b"a/1", b"a/2", b"b", b"c")
ROUNDS_MAX = 3000  # of calm, in which all must be over
HELD_MAX = 60  # deliveries that clients remember, to answer them late
SLACK = 1e-3  # seconds by which a timer of requests may be late
PENDING_HEADERS = re.compile(rb"Nats-Pending-Messages: (-?\d+)\r\nNats-Pending-Bytes: (\d+)\r\n\r\n$")


class Known:
    """The knowledge of the model about a message that was delivered."""

    def __init__(self) -> None:
        self.count = 0
        self.pending = False
        self.due_at = 0.0  # before that it is not delivered again
        self.acknowledged = False
        self.exhausted = False


class Asked:
    def __init__(self, reply: bytes, left: int, octets: int, expires: float, no_wait: bool, requester: object) -> None:
        self.reply = reply
        self.left = left
        self.octets = octets
        self.expires = expires
        self.no_wait = no_wait
        self.requester = requester
        self.heartbeat = 0.0
        self.heard_at = 0.0  # the last message or heartbeat


class Model:
    """The state that survives a restart."""

    def __init__(self) -> None:
        self.known: dict[int, Known] = {}
        self.newest = 0  # the last first delivery, or where the consumer began
        self.number = 0
        self.skip: list[int] = []  # last_per_subject: what is delivered up to ``resume``
        self.resume = 0
        self.skipped_to = 0
        self.done: Counter[int] = Counter()

    def pending(self) -> list[int]:
        return [sequence for sequence, known in self.known.items() if known.pending]


class ConsumerWorld:
    def __init__(self, seed: int, lossy: bool = False, tracing: bool = False, **fixed: Any) -> None:
        """``fixed``: fields of the policy."""
        self.random = random = Random(f"consumers {seed} {lossy}")
        self.lossy = lossy
        self.tracing = tracing
        self.now = 1000.0
        self.shelf = Shelf()
        self.seen: Counter[str] = Counter()
        self.push = fixed.get("deliver_to", random.random() < 0.25)
        self.policy = policy_of(**{**self._fields(), **fixed})
        self.work_queue = random.random() < 0.4
        self.requests: list[Asked] = []
        self.held: list[AckSubject] = []
        self.flows: list[bytes] = []
        self.clients = [object() for _ in range(3)]
        self.replies = 0
        self.model = Model()
        for _ in range(random.randrange(8)):
            self._put()
        self.consumer = self._consumer()
        self.consumer.begin(self.now)
        self._begin()
        self.stored = self.consumer.encode(), copy.deepcopy(self.model)

    def _fields(self) -> dict[str, Any]:
        random = self.random
        fields: dict[str, Any] = {
            "ack": random.choice([ACK_EXPLICIT] * 4 + [ACK_ALL, ACK_NONE]),
            "ack_wait": random.choice([1.0, 5.0, 30.0]),
            "max_deliver": random.choice([0, 0, 1, 2, 4]),
            "max_ack_pending": random.choice([0, 1, 3, 10]),
            "max_waiting": random.choice([1, 3, 512]),
            "deliver": random.choice([ALL, ALL, NEW, LAST_PER_SUBJECT]),
            "filters": random.choice([[], [], [b"a/+"], [b"a/1", b"b"], [b"c"]]),
            "headers_only": random.random() < 0.1,
        }
        if random.random() < 0.3:
            fields["backoff"] = [fields["ack_wait"], 7.0, 3.0]
        if self.push:
            fields |= {
                "deliver_to": b"d",
                "flow_control": random.random() < 0.5,
                "heartbeat": random.choice([0.0, 2.0]),
            }
        return fields

    def _consumer(self) -> JetStreamConsumer:
        consumer = JetStreamConsumer("S", "C", self.policy, self.shelf)
        consumer.reports_done = True
        return consumer

    def _begin(self) -> None:
        if self.policy.deliver == NEW:
            self.model.newest = self.shelf.last
        elif self.policy.deliver == LAST_PER_SUBJECT:
            self.model.skip = self.shelf.last_of_each(self.policy.filters)
            self.model.newest = self.model.resume = self.shelf.last
            self.model.skipped_to = min(self.model.skip, default=1) - 1

    # The expectations of the model

    def matches(self, topic: bytes) -> bool:
        filters = self.policy.filters
        return not filters or any(meet(each, topic) == topic for each in filters)

    def owed(self) -> list[int]:
        """Messages that were never delivered, in order."""
        model, kept = self.model, self.shelf.kept
        new = [each for each in kept if each > model.newest and self.matches(kept[each].topic)]
        return [each for each in model.skip if each in kept] + sorted(new)

    def due(self) -> list[int]:
        return [each for each, known in self.model.known.items() if known.pending and known.due_at <= self.now]

    def wait(self, known: Known) -> float:
        return self.now + self.policy.wait(known.count - 1)

    # The events

    def live(self, acts: int) -> None:
        random = self.random
        kinds: list[Callable[[], None]] = [self.publish] * 4 + [self.answer] * 6 + [self.pass_time] * 3
        kinds += [self.remove, self.restart, self.listen] if self.push else [self.remove, self.restart, self.die]
        kinds += [self.flow] * 2 if self.push else [self.pull] * 4
        kinds += [self.read]
        for _ in range(acts):
            act = random.choice(kinds)
            if act is self.restart and random.random() < 0.6:
                continue
            self.trace(act.__name__)
            act()
            self.settle(random.choice([1, 2, 1000]))
        self.heal()

    def _put(self) -> int:
        size = 300_000 if self.push and self.policy.flow_control else self.random.randrange(20)
        return self.shelf.put(self.random.choice(TOPICS), bytes(size), self.now)

    def publish(self) -> None:
        for _ in range(self.random.choice([1, 1, 3, 12])):
            sequence = self._put()
            if self.random.random() < 0.05:
                self.shelf.unread.add(sequence)

    def read(self) -> None:
        self.shelf.unread.clear()

    def remove(self) -> None:
        kept = list(self.shelf.kept)
        if not kept:
            return
        if self.random.random() < 0.2:
            for sequence in kept[: self.random.randrange(len(kept)) + 1]:
                self._drop(sequence)
            self.consumer.purged()
            return
        sequence = self.random.choice(kept)
        topic = self._drop(sequence)
        self.consumer.removed(sequence, topic if self.random.random() < 0.5 else b"")

    def _drop(self, sequence: int) -> bytes:
        self.shelf.unread.discard(sequence)
        self.model.known.pop(sequence, None)
        return self.shelf.drop(sequence)

    def pull(self) -> None:
        random = self.random
        self.replies += 1
        asked = Asked(
            b"r%d" % self.replies,
            random.choice([1, 1, 2, 10, 0]),
            random.choice([0, 0, 0, 60, 150]),
            random.choice([0.0, 1.0, 4.0, 40.0]),
            random.random() < 0.3,
            random.choice(self.clients),
        )
        heartbeat = asked.expires / 4 if random.random() < 0.2 else 0.0
        self.consumer.pull(
            asked.reply,
            asked.left,
            asked.expires,
            asked.no_wait,
            asked.octets,
            heartbeat,
            asked.requester,
            self.now,
        )
        asked.expires = self.now + asked.expires if asked.expires else 0.0
        asked.heartbeat, asked.heard_at = heartbeat, self.now
        self.requests.append(asked)
        if heartbeat and not self._waits(asked) and not self._told(asked):
            self.requests.remove(asked)  # one with heartbeats is not told that too many wait
        if random.random() < 0.1:
            self.shelf.deaf.add(random.choice(self.requests).reply)

    def _told(self, asked: Asked) -> bool:
        return any(isinstance(each, StatusMessage) and each.to == asked.reply for each in self.consumer.effects)

    def die(self) -> None:
        client = self.random.choice(self.clients)
        self.clients[self.clients.index(client)] = object()
        self.consumer.gone(client)
        self.requests = [each for each in self.requests if each.requester is not client]

    def listen(self) -> None:
        self.consumer.interest(self.random.random() < 0.7, self.now)

    def flow(self) -> None:
        if self.flows and self.random.random() < 0.8:
            self.consumer.flow(self.random.choice(self.flows))
        else:
            self.consumer.flow(b"$JS.FC.S.C.none")

    def answer(self) -> None:
        if not self.held:
            return
        held = self.random.choice(self.held[-12:] if self.random.random() < 0.8 else self.held)
        kind = self.random.choice(["ack"] * 6 + ["nak", "delayed", "progress", "term", "lost"])
        self.seen[kind] += 1
        if kind == "lost":
            self.held.remove(held)
            return
        self.acknowledge(held, kind)

    def acknowledge(self, held: AckSubject, kind: str) -> None:
        consumer, now = self.consumer, self.now
        floor = consumer.floor(), consumer.floor_number()
        payloads = {"ack": b"", "nak": b"-NAK", "delayed": b"-NAK 3s", "progress": b"+WPI", "term": b"+TERM why"}
        consumer.acknowledge(held.sequence, held.number, held.deliveries, payloads[kind], b"", None, now)
        known = self.model.known.get(held.sequence)
        self.trace(f"{kind} {held.sequence} {held.number}")
        if self.policy.ack == ACK_NONE:
            return
        if kind in ("ack", "term"):
            self._acknowledged(held, floor)
        elif known is not None and known.pending and held.number <= self.model.number:
            self._postponed(known, kind)

    def _acknowledged(self, held: AckSubject, floor: tuple[int, int]) -> None:
        if self.policy.ack == ACK_EXPLICIT:
            covered = [held.sequence] if held.sequence in self.model.known else []
        elif self.consumer.next > held.sequence > floor[0] and floor[1] < held.number <= self.model.number:
            covered = [each for each in self.model.known if each <= held.sequence]
        else:
            return
        for each in covered:
            other = self.model.known[each]
            if other.pending or (other.exhausted and each == held.sequence):
                other.acknowledged, other.pending = True, False

    def _postponed(self, known: Known, kind: str) -> None:
        if kind == "progress":
            if known.due_at > self.now:
                known.due_at = self.wait(known)
            return
        if kind == "nak" and known.due_at <= self.now:
            return
        if 0 < self.policy.max_deliver <= known.count:
            return  # an advisory says that it is over
        known.due_at = self.now if kind == "nak" else self.now + 3.0

    def pass_time(self) -> None:
        self.until(self.now + self.random.choice([0.01, 0.5, 2.0, 10.0]))

    def until(self, end: float) -> None:
        while 0.0 < self.consumer.wake_at() <= end:
            self.now = max(self.now, self.consumer.wake_at())
            self.consumer.tick(self.now)
            self.settle(1000)
        self.now = end

    def restart(self) -> None:
        """Requests are lost. Messages wait for their acknowledgement from the beginning."""
        self.seen["restarts"] += 1
        state, model = self.stored if self.lossy else (self.consumer.encode(), self.model)
        self.model = copy.deepcopy(model)
        self.consumer = self._consumer()
        self.consumer.restore(state, self.now)
        self.requests = []
        self.flows = []
        for sequence in list(self.model.known):
            if sequence not in self.shelf.kept:
                del self.model.known[sequence]
        for known in self.model.known.values():
            known.due_at = self.wait(known)
        if self.model.resume != 0:  # selected again, as the stream is now
            last = self.shelf.last_of_each(self.policy.filters)
            self.model.skip = [each for each in last if self.model.skipped_to < each <= self.model.resume]
        if self.push:
            self.consumer.interest(True, self.now)

    # The effects

    def settle(self, budget: int) -> None:
        """The hub's part: time, a filling, and what came out of it."""
        consumer = self.consumer
        if 0.0 < consumer.wake_at() <= self.now:
            consumer.tick(self.now)
        before = consumer.number
        more = consumer.fill(budget, self.now)
        assert consumer.number - before <= budget, "a filling has exceeded its budget"
        self.look()
        if more:
            self.settle(1000)
            return
        self.compare()
        if self.random.random() < 0.3:
            self.stored = consumer.encode(), copy.deepcopy(self.model)

    def look(self) -> None:
        effects, self.consumer.effects = self.consumer.effects, []
        for effect in effects:
            if isinstance(effect, Deliver):
                self.delivered(effect)
            elif isinstance(effect, StatusMessage):
                self.told(effect)
            else:
                assert isinstance(effect, Advisory)
                self.advised(effect)
        done, self.consumer.done = self.consumer.done, []
        for sequence in done:
            self.model.done[sequence] += 1
            assert self.model.done[sequence] == 1, f"{sequence} is done twice"
            known = self.model.known.get(sequence)
            assert known is None or known.acknowledged, f"{sequence} is done, and was not acknowledged"
            if self.work_queue and sequence in self.shelf.kept:
                topic = self.shelf.drop(sequence)
                self.model.known.pop(sequence, None)
                self.consumer.removed(sequence, topic)

    def delivered(self, effect: Deliver) -> None:
        model, sequence = self.model, effect.sequence
        held = ack_subject(effect.reply)
        assert held is not None and held.sequence == sequence
        self.trace(f"  delivers {effect.reply.decode()} to {effect.to.decode()}")
        message = self.shelf.kept[sequence]
        assert effect.message.topic == message.topic and self.matches(message.topic)
        assert (len(effect.message.payload) == 0) == (self.policy.headers_only or not message.payload)
        owed, due = self.owed(), self.due()
        known = model.known.get(sequence)
        if known is None:
            assert owed and owed[0] == sequence, f"{sequence} is delivered, and {owed[:1]} is next"
            assert [each for each in due if each not in self.shelf.unread] == [], "a message that is due has to wait"
            known = model.known[sequence] = Known()
            owed.pop(0)
            if sequence in model.skip:
                model.skip.remove(sequence)
                model.skipped_to = sequence
            else:
                model.newest = sequence
        else:
            self.seen["redelivered"] += 1
            assert not known.acknowledged, f"{sequence} was acknowledged"
            assert sequence in due, f"{sequence} is delivered while it may still be acknowledged"
        known.count += 1
        assert held.deliveries == known.count, f"{sequence} is delivered for the {known.count}. time"
        assert self.policy.max_deliver == 0 or known.count <= self.policy.max_deliver, f"{sequence} is over"
        known.pending = self.policy.ack != ACK_NONE
        known.acknowledged = not known.pending
        known.due_at = self.wait(known)
        room = self.policy.max_ack_pending
        assert room == 0 or len(model.pending()) <= room or known.count > 1, "too many messages are pending"
        assert int(effect.reply.split(b".")[-1]) == len(owed)
        model.number += 1
        assert held.number == model.number
        self.held = [*self.held[-HELD_MAX:], held]
        self.seen["delivered"] += 1
        if not self.push:
            self._served(effect)

    def _served(self, effect: Deliver) -> None:
        while self.requests[0].reply in self.shelf.deaf:
            self.requests.pop(0)
        asked = self.requests.pop(0)
        assert asked.reply == effect.to, f"it is the turn of {asked.reply!r}"
        assert asked.expires == 0.0 or self.now <= asked.expires
        asked.left -= 1
        asked.heard_at = self.now
        if asked.octets:
            message = effect.message
            extra = self.shelf.kept[effect.sequence].payload if self.policy.headers_only else b""
            header = len(b"NATS/1.0\r\nNats-Msg-Size: %d\r\n\r\n" % len(extra)) if self.policy.headers_only else 0
            asked.octets -= len(message.topic) + len(effect.reply) + len(message.payload) + header
            assert asked.octets >= 0, "a request gets more bytes than it asked for"
            if asked.octets == 0:
                return
        if asked.left > 0:
            self.requests.append(asked)
        elif asked.octets:
            self.requests.append(asked)  # its status comes next

    def told(self, effect: StatusMessage) -> None:
        status = effect.block.split(b"\r\n")[0][9:].decode()
        self.trace(f"  tells {effect.to.decode()} {effect.block!r}")
        self.seen[status] += 1
        if status == "100 FlowControl Request":
            self.flows.append(effect.reply)
            return
        if self.push:
            assert status == "100 Idle Heartbeat"
            return
        asked = next((each for each in self.requests if each.reply == effect.to), None)
        assert asked is not None, f"{effect.to!r} is over"
        if status == "100 Idle Heartbeat":
            assert self.now >= asked.heard_at + asked.heartbeat
            asked.heard_at = self.now
            return
        found = PENDING_HEADERS.search(effect.block)
        if found is not None:
            assert (int(found[1]), int(found[2])) == (asked.left, asked.octets), (
                "the status does not say what is missing"
            )
        if status == "408 Request Timeout":
            assert asked.expires and asked.expires <= self.now <= asked.expires + SLACK
        elif status == "404 No Messages":
            assert asked.no_wait and not self.owed(), "there are messages"
        elif status == "409 Batch Completed":
            assert asked.left <= 0 < asked.octets
        elif status == "409 Message Size Exceeds MaxBytes":
            assert asked.octets
        else:
            assert status in ("409 Exceeded MaxWaiting", "408 Requests Pending"), status
        self.requests.remove(asked)

    def advised(self, effect: Advisory) -> None:
        self.trace(f"  advises {effect.kind} {effect.sequence}")
        self.seen[effect.kind] += 1
        if effect.kind != "MAX_DELIVERIES":
            return
        known = self.model.known[effect.sequence]
        assert known.pending and not known.exhausted, f"{effect.sequence} is over twice"
        assert effect.deliveries == known.count == self.policy.max_deliver
        known.pending, known.exhausted = False, True

    def compare(self) -> None:
        consumer, model = self.consumer, self.model
        if not any(each in self.shelf.kept for each in model.skip):
            model.resume = 0
        pending = model.pending()
        assert consumer.number == model.number
        assert consumer.num_ack_pending() == len(pending), "the count of pending messages is wrong"
        assert sorted(consumer.pending.all()) == sorted(pending)
        assert consumer.waiting_messages() == len(self.owed()), "the count of waiting messages is wrong"
        over = [each for each in model.known.values() if not each.acknowledged and (each.count > 1 or each.exhausted)]
        expected = len(over) if self.policy.max_deliver != 1 else 0
        assert consumer.num_redelivered() == expected, "the count of redelivered messages is wrong"
        for asked in self.requests:
            late = self.now - asked.heard_at - asked.heartbeat
            assert asked.heartbeat == 0.0 or late <= SLACK or asked.reply in self.shelf.deaf, "a heartbeat is missing"
        floor = consumer.floor()
        assert all(each > floor for each in pending), "the floor is above a pending message"
        if not pending and self.policy.ack == ACK_EXPLICIT and floor != consumer.delivered:
            raise AssertionError("nothing is pending, and the floor is not at the last delivery")
        for sequence in self.shelf.kept:
            known = model.known.get(sequence)
            if known is not None:
                assert model.done[sequence] == known.acknowledged, f"{sequence} is acknowledged, but not done"
            if known is not None and self.policy.ack == ACK_EXPLICIT:
                assert consumer.needs(sequence) == (not known.acknowledged)

    # The end

    def heal(self) -> None:
        """Everybody listens, asks and acknowledges; then nothing may be left."""
        self.read()
        self.shelf.deaf.clear()
        self.requests = [each for each in self.requests if self._waits(each)]
        for _ in range(ROUNDS_MAX):
            if not self.owed() and not self.model.pending():
                break
            if self.push:
                self.consumer.interest(True, self.now)
                for each in self.flows:
                    self.consumer.flow(each)
                self.flows = []
            elif len(self.requests) < self.policy.max_waiting:
                self.replies += 1
                self.consumer.pull(b"r%d" % self.replies, 5, 0.0, False, 0, 0.0, self.clients[0], self.now)
                self.requests.append(Asked(b"r%d" % self.replies, 5, 0, 0.0, False, self.clients[0]))
            self.settle(1000)
            while self.held:
                self.acknowledge(self.held.pop(), "ack")
                self.settle(1000)
            self.until(self.now + 1.0)
        else:
            raise AssertionError(f"{self.owed()} were not delivered, {self.model.pending()} not acknowledged")
        self.compare()

    def _waits(self, asked: Asked) -> bool:
        request = self.consumer.requests.first
        while request is not None:
            if request.reply == asked.reply:
                return True
            request = request.next
        return False

    def trace(self, text: str) -> None:
        if self.tracing:
            print(f"{self.now:9.3f} {text}")


def run(seed: int, acts: int = 150, **fixed: Any) -> ConsumerWorld:
    world = ConsumerWorld(seed, **fixed)
    world.live(acts)
    return world


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--acts", type=int, default=150)
    parser.add_argument("--lossy", action="store_true")
    given = parser.parse_args()
    if given.seed is not None:
        run(given.seed, given.acts, lossy=given.lossy, tracing=True)
        return 0
    seen: Counter[str] = Counter()
    failed = 0
    start = time.process_time()
    for seed in range(given.seeds):
        try:
            seen += run(seed, given.acts, lossy=given.lossy).seen
        except Exception:
            failed += 1
            traceback.print_exc(limit=-3)
            print(f"seed {seed}")
    print(f"{failed} of {given.seeds} failed, {given.seeds / (time.process_time() - start):.1f} a second; {dict(seen)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
