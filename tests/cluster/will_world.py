"""The worlds of ``tests.sim`` with clients that leave wills, at any node, and come back at any other one, or not;
``python -m tests.cluster.will_world --seeds N``.

Each connection leaves another will. Of each of them must hold, whatever fails:

- it is published once at most;
- it is not published after its client was back, if it was back before its delay was over;
- in the end it is published, if its client was not back in time and did not take it back; unless its node kept nothing;
- the leader of its share knows it when its client gets CONNACK;
- it is not published if its CONNECT was given up before its node could answer, unless nodes fail.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any
from unittest.mock import patch

from tests.cluster import seeded
from tests.cluster.lost_pairs import telling_of_lost_pairs
from tests.cluster.owner_store import will_keys
from tests.cluster.presence_world import lose_nodes
from tests.sim.checkers import Books
from tests.sim.clients import FOREVER, Connection, Person
from tests.sim.commits import Commits, Ticket
from tests.sim.node import Node
from tests.sim.world import LIVENESS_MAX, World

from starlingmq.cluster.shares.share_messages import WillWrite
from starlingmq.cluster.shares.will_book import WillBook
from starlingmq.cluster.wills.will_records import decode_will
from starlingmq.core.connect.connecting import Connecting
from starlingmq.core.connect.ending import Ending
from starlingmq.core.context.ready import Ready
from starlingmq.core.session.session import Client, Session
from starlingmq.core.session.session import Will as CoreWill
from starlingmq.wire.mqtt import Connect, Disconnect, Packet, Will
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL

SLACK = 0.5  # seconds in which a node may learn that a connection is gone, when nothing is wrong


@dataclass(slots=True)
class Wish:
    """Of one connection; times are its client's."""

    payload: bytes
    delay: int
    node: Node
    answered_at: float = 0.0  # CONNACK
    ended_at: float = inf
    polite: bool = False
    silent: bool = False  # its node does not learn of the end until another node tells it
    back_at: float = inf  # the next CONNACK ...
    back: Node | None = None  # ... and from whom
    clean: bool = False  # which began a new session
    found: bool = True  # or which found the one of before
    unregistered: bool = False  # no leader of a share had heard of it at CONNACK
    tries: int = 0  # CONNECTs until then: one that was not answered may have cancelled it all the same

    def in_time(self) -> bool:
        kept = self.delay > 0 and not self.clean and self.answered_at != 0.0
        return kept and not self.silent and self.back_at < self.ended_at + self.delay

    def required(self) -> bool:
        if self.polite or not self.answered_at or self.ended_at == inf or self.in_time():
            return False
        if self.delay > 0 and self.tries > 1:
            return False
        if self.silent:
            return self.delay == 0 or self.clean
        return self.delay == 0 or self.clean or self.back_at > self.ended_at + self.delay + 30.0


@dataclass(slots=True)
class Publication:
    """``ticket``: of the commit that stores the turn; None: it is stored, or nothing is kept. Receivers get the will
    after that, so a turn that was lost in a crash, or that a failing disk has refused, has published nothing.
    """

    at: float
    ticket: Ticket | None = None

    def is_stored(self) -> bool:
        return self.ticket is None or (self.ticket.done and not self.ticket.refused)


class Wisher(Person):
    def __init__(self, books: Books, random: Random, node: Node, name: str, hurry: Random) -> None:
        """``hurry``: draws the CONNECTs that are given up before, or just after, their claims are granted."""
        super().__init__(books, random, node, name, 5, True)
        self.hurry = hurry
        self.wishes: list[Wish] = []
        self.done = False  # it comes once more, to take its leave
        self.over = False
        self.clean = False
        self.pause = random.choice([0.3, 2.0, 6.0])

    def come(self) -> None:
        if self.ending or self.connection is not None:
            return
        nodes = [node for node in self.node.world.nodes if not node.gone and node.process is not None]  # type: ignore[attr-defined]
        if nodes:
            self.node = self.random.choice(nodes)
        process = self.node.process
        if process is None:
            self.schedule.after(0.3, self.come)
            return
        self._tries += 1
        self.connection = Connection(self, process)
        delay = self.random.choice([0, 0, 1, 3, 8])
        for earlier in self.wishes:
            earlier.tries += earlier.back_at == inf
        wish = Wish(b"%b %d" % (self.name.encode(), len(self.wishes)), delay, self.node)
        self.wishes.append(wish)
        clean = self.clean = not self.done and self.random.random() < 0.2
        will = Will(b"will", wish.payload, 1, False, {WILL_DELAY_INTERVAL: delay} if delay else {})
        self.say([Connect(5, self.name, clean, will=will, properties={SESSION_EXPIRY_INTERVAL: FOREVER})])
        hurries = not self.done and self.hurry.random() < 0.15
        self.schedule.after(self.hurry.choice([0.0, 0.003, 0.01, 0.5]) if hurries else 12.0, self._give_up, self._tries)

    def begin(self, present: bool) -> None:
        now = self.schedule.now
        self.known = False
        self.wishes[-1].answered_at = now
        self.wishes[-1].unregistered = self.wishes[-1].payload not in self.node.world.in_shares  # type: ignore[attr-defined]
        for wish in self.wishes[:-1]:
            if wish.back_at == inf:
                wish.back_at, wish.clean, wish.back, wish.found = now, self.clean, self.node, present
        if self.done:
            self.wishes[-1].polite = self.over = True
            self.say([Disconnect()])
        else:
            self.schedule.after(self.pause * self.random.random(), self.go, self._tries)

    def go(self, tries: int) -> None:
        """End this connection, one way or another."""
        if not self.online or self._tries != tries:
            return
        how = self.random.choice(["politely", "cut", "silent"])
        if how == "politely":
            self.wishes[-1].polite = True
            self.say([Disconnect()])
        elif how == "cut":
            self.cut()
        elif self.connection is not None:
            self.trace.note(self.name, "leaves without a word")
            self.wishes[-1].silent = True
            self.connection.open = False
            self.ended()

    def ended(self) -> None:
        wish = self.wishes[-1]
        if wish.ended_at == inf:
            wish.ended_at = self.schedule.now
        self.trace.note(self.name, "has no connection")
        self.connection = None
        self.online = False
        if not self.over:
            self.schedule.after(0.05 + self.pause * self.random.random(), self.come)

    def take(self, packet: Packet) -> None:
        """It receives no messages."""

    def finished(self) -> bool:
        return True


class WillWorld(World):
    def __init__(self, seed: int, trace: bool = False, losses: bool = False) -> None:
        """``losses``: nodes are lost again and again, for long, and some of them live."""
        super().__init__(seed, trace)
        if losses or self.loses_nodes:
            lose_nodes(self.plan, Random(f"losses {seed}"))
        self.plan.subscribers = []
        self.plan.publishers = self.plan.publishers[:1]
        self.plan.kind = "calm" if self.plan.kind == "local" else self.plan.kind
        self.more = Random(f"wills {seed}")
        self.hurry = Random(f"hurry {seed}")
        self.wishers: list[Wisher] = []
        self.accepted: dict[bytes, None] = {}  # payloads of wills of connections that a node has accepted
        self.published: dict[bytes, list[Publication]] = {}
        self.in_shares: dict[bytes, None] = {}  # payloads of wills that leaders of shares have registered
        self.pair_lost = False  # a leader and its deputy were lost together, and perhaps records of wills with them
        self._uncommitted: dict[int, list[Publication]] = {}  # of the turn under way, by number of the node

    def _bring_people(self) -> None:
        self.pair_lost = False  # the first leaders have asked all nodes
        super()._bring_people()
        for number in range(self.more.choice([2, 4, 8])):
            wisher = Wisher(self.books, self.more, self.nodes[0], f"wisher{number}", self.hurry)
            self.wishers.append(wisher)
            self.schedule.after(self.more.random(), wisher.come)

    def _lose_pair(self, share: int) -> None:
        self.pair_lost = True

    def _settled(self) -> bool:
        if self.healed:
            for wisher in self.wishers:
                if not wisher.done:
                    wisher.done = True
                    if wisher.connection is not None:
                        wisher.cut()
        return all(wisher.over for wisher in self.wishers) and super()._settled()

    def _read_by_all(self) -> bool:
        return True

    def _liveness(self) -> None:
        super()._liveness()
        self._wait(lambda: not self.unpublished(), LIVENESS_MAX, "a will is not published")
        self._wait(lambda: not self.left_over(), LIVENESS_MAX, "keys are left")
        wrong = self.wrongly_published()
        assert not wrong, f"{wrong[0]}, {len(wrong)} in all"

    def wishes(self) -> Iterator[Wish]:
        for wisher in self.wishers:
            yield from wisher.wishes

    def unpublished(self) -> list[str]:
        """The wills that have to be published and are not."""
        if self.books.lossy or self.pair_lost:
            return []
        missing = [
            wish
            for wish in self.wishes()
            if wish.required() and not wish.node.gone and wish.payload not in self.published
        ]
        return [f"the will {wish.payload!r} of a client at {wish.node.host} was never published" for wish in missing]

    def wrongly_published(self) -> list[str]:
        found: list[str] = []
        for wish in self.wishes():
            if wish.unregistered:
                found.append(f"the will {wish.payload!r} was not registered when its client got CONNACK")
            times = [each.at for each in self.published.get(wish.payload, []) if each.is_stored()]
            if len(times) > 1 and not self.pair_lost:
                found.append(f"the will {wish.payload!r} was published {len(times)} times")
            # That the client has taken it back may be known to its own node alone, and die with it: see KNOWN-ISSUES.
            told = not self.plan.faulty or wish.back is not wish.node
            # A session that was at a node which left for good is over, as its client is told: its will is due, whenever
            # the client is back (MQTT 5, 3.1.3.2.2).
            told = told and (wish.found or not wish.node.gone)
            # Of several CONNECTs, one that was not answered may have been a clean start.
            after = 0.0 if wish.tries == 1 else wish.back_at
            if told and wish.in_time() and any(at > after for at in times) and not self.pair_lost:
                found.append(f"the will {wish.payload!r} was published though its client had come back in time")
            if times and wish.payload not in self.accepted and not self.plan.faulty:
                found.append(f"the will {wish.payload!r} was published though its CONNECT was given up")
            if wish.polite and times and not self.plan.faulty:
                found.append(f"the will {wish.payload!r} was published though its client had taken it back")
        return found

    def left_over(self) -> list[str]:
        """Keys of wills whose clients are gone."""
        processes = [node.process for node in self.members() if node.process is not None]
        numbers = [process.state.ctx.node for process in processes]
        clusters = [process.cluster for process in processes]
        keys = will_keys(clusters)
        return [f"{key!r} is left" for key in keys if int(key.split(b"/")[0]) in numbers]

    def why(self) -> str:
        return "; ".join([super().why(), *self.unpublished()[:3], *self.left_over()[:3]])

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note what is published, wherever it is."""
        publish = Ending.publish_will

        def noting(ending: Ending, will: CoreWill) -> None:
            publication = Publication(self.schedule.now, None if not self.settings.keeps else Ticket(False))
            self.published.setdefault(will.message.payload, []).append(publication)
            self._uncommitted.setdefault(ending.ctx.node, []).append(publication)
            self.trace.note("world", f"{will.message.payload!r} is published by n{ending.ctx.node}")
            publish(ending, will)

        welcome = Connecting._welcome

        def accepting(connecting: Connecting, client: Client, session: Session, *more: Any) -> bool:
            if session.will is not None:
                self.accepted[session.will.message.payload] = None
            return welcome(connecting, client, session, *more)

        write = WillBook.write

        def writing(book: WillBook, revision: int, writes: Iterable[WillWrite]) -> None:
            self.in_shares.update({decode_will(value).payload: None for _, value in writes if value is not None})
            write(book, revision, writes)

        commit = Commits.commit

        def committing(commits: Commits, ready: Ready, refusing: bool) -> Ticket | None:
            ticket = commit(commits, ready, refusing)
            assert commits.store.state is not None
            for publication in self._uncommitted.pop(commits.store.state.ctx.node, []):
                if publication.at == self.schedule.now:  # the others are of turns that a crash has ended
                    publication.ticket = ticket
            return ticket

        with (
            patch.object(Ending, "publish_will", noting),
            patch.object(Commits, "commit", committing),
            patch.object(WillBook, "write", writing),
            patch.object(Connecting, "_welcome", accepting),
            telling_of_lost_pairs(self._lose_pair),
        ):
            yield


def run(seed: int, trace: bool = False, losses: bool = False) -> WillWorld:
    world = WillWorld(seed, trace, losses)
    with world.listening():
        world.live()
    return world


def figures(world: WillWorld) -> Counter[str]:
    required = sum(wish.required() for wish in world.wishes())
    counts = {"wills": len(list(world.wishes())), "required": required, "published": len(world.published)}
    return Counter(counts | {"worlds in which a leader and its deputy were lost": int(world.pair_lost)})


if __name__ == "__main__":
    seeded.interpreted_only()
    sys.exit(seeded.main("will_world", __doc__, run, figures))
