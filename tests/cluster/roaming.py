"""A load of clients that are at home nowhere (``tests.cluster.roamer``), and what of it all has to be so."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence

from tests.cluster.keepsakes import Keepsakes
from tests.cluster.load import GROUP, Author, Load, Person
from tests.cluster.losses import Loss
from tests.cluster.real import Node
from tests.cluster.roamer import Roamer, RoamingAuthor, RoamingReader, RoamingSharer, RoamingWanderer
from tests.peer import Peer

DANGLING_MAX = 10  # connections that stay open whose clients are elsewhere


class RoamingLoad(Load):
    """``strict``: nothing fails, so no session is ever lost, and messages of authors that stay arrive in order.

    ``pace``: seconds between two moves of one client, on average; 0.0: no client moves by itself.
    """

    kinds = (RoamingAuthor, RoamingReader, RoamingSharer, RoamingWanderer)

    def __init__(
        self,
        nodes: Sequence[Node],
        rate: int = 1000,
        patience: float = 60.0,
        *,
        seed: int = 1,
        strict: bool = True,
        hop_seconds: float = 2.0,
        retained: bool = False,
        wills: bool = False,
    ) -> None:
        self.draw = random.Random(seed)
        self.strict = strict
        self.hop_seconds = hop_seconds
        self.counts: Counter[str] = Counter()
        self.losses: list[Loss] = []
        self.unsettled = 0  # messages that are missing, and may have been in flight at QoS 2 in a session that was lost
        self.twice: dict[tuple[str, str], list[int]] = {}  # reader and author -> what came twice, at QoS 2
        self.began = time.monotonic()
        self.dangling: deque[Peer] = deque()
        super().__init__(nodes, rate, patience=patience)
        self.keepsakes = Keepsakes(self, retained, wills)

    @property
    def people(self) -> list[Person]:
        return [*self.authors, *self.readers, *self.sharers, *self.wanderers, *self.keepsakes.roamers]

    async def __aenter__(self) -> RoamingLoad:
        await super().__aenter__()
        keepsakes = self.keepsakes
        self._tasks += [asyncio.create_task(witness.live()) for witness in keepsakes.witnesses]
        for witness in keepsakes.witnesses:
            await asyncio.wait_for(witness.subscribed.wait(), self.patience)
        self._tasks += [asyncio.create_task(each.live()) for each in (*keepsakes.keepers, *keepsakes.mourners)]
        self._tasks.append(asyncio.create_task(self._stir()))
        return self

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        for peer in self.dangling:
            peer.abort()

    def leave_open(self, peer: Peer) -> None:
        """Its client has left without a word."""
        self.dangling.append(peer)
        if len(self.dangling) > DANGLING_MAX:
            self.dangling.popleft().abort()

    async def _stir(self) -> None:
        """Make clients move to other nodes, again and again."""
        while self.hop_seconds and not self.over:
            people = self.people
            await asyncio.sleep(self.draw.expovariate(len(people) / self.hop_seconds))
            person = self.draw.choice(people)
            assert isinstance(person, Roamer)
            person.hop()

    def figures(self) -> dict[str, int]:
        """All that was counted."""
        roamers = [person for person in self.people if isinstance(person, Roamer)]
        return {
            "messages acknowledged": self.acks,
            "messages delivered": self.delivered,
            "messages delivered twice at QoS 1": sum(reader.doubles for reader in self.readers),
            "messages that were published after a SUBACK elsewhere, and came": self.promised,
            "messages refused": self.refused,
            "CONNECTs refused": self.refused_connections,
            "connections lost": self.lost,
            "times that clients left for another node by themselves": sum(roamer.hops for roamer in roamers),
            "times that clients came to another node": sum(roamer.went for roamer in roamers),
            **self.counts,
            "of what was not delivered, in flight at QoS 2 when its session was lost": self.unsettled,
        }

    # The allowed outcomes

    def _author(self, name: str) -> RoamingAuthor:
        author = next(author for author in self.authors if author.name == name)
        assert isinstance(author, RoamingAuthor)
        return author

    def out_of_order(self, reader: str, name: str, number: int, after: int) -> None:
        author = self._author(name)
        if number in author.again or author.went > author.went_before:
            self.counts["first appearances out of order, of authors that had gone elsewhere"] += 1
        elif self.strict:
            super().out_of_order(reader, name, number, after)
        else:
            self.counts["first appearances out of order, of authors that stayed"] += 1

    def doubled(self, reader: str, author: str, number: int) -> None:
        readers = [each for each in (*self.readers, *self.sharers) if isinstance(each, RoamingReader)]
        if number in self._author(author).begun_anew | self._author(author).given_up:
            self.counts["came twice at QoS 2, because its author had lost its session"] += 1
        elif any((author, number) in each.unsure for each in readers):
            self.counts["came twice at QoS 2, because its reader had lost its session"] += 1
        else:
            self.twice.setdefault((reader, author), []).append(number)

    def _missing(self) -> Iterator[tuple[str, Author, set[int]]]:
        for who, author, missing in super()._missing():
            readers = self._readers(who)
            left = {
                number
                for number in missing
                if not self._in_gap(readers, author, number)
                and not any(reader.in_flight(author.began[number], author.qos) for reader in readers)
            }
            yield who, author, left

    def _readers(self, who: str) -> list[RoamingReader]:
        """The readers that lack something, by the name that ``_missing`` gives."""
        readers = self.sharers if who == GROUP else [r for r in self.readers if who.startswith(f"{r.name} ")]
        return [reader for reader in readers if isinstance(reader, RoamingReader)]

    @staticmethod
    def _in_gap(readers: list[RoamingReader], author: Author, number: int) -> bool:
        return any(reader.in_gap(author.began[number], author.ended[number]) for reader in readers)

    async def settle(self) -> None:
        self.talking.clear()
        await self.keepsakes.settle(self.patience)
        try:
            await super().settle()
        finally:
            self.excuse()

    def look(self) -> None:
        super().look()
        for (name, author), numbers in self.twice.items():
            visits = [each.history for each in self.people if isinstance(each, Roamer) and each.name == name]
            where = f"; it was {', '.join(visits[0])}" if visits else ""
            self.wrong(f"{name}: {len(numbers)} of {author} came twice at QoS 2, {numbers[0]} to {numbers[-1]}{where}")
        self.twice.clear()

    def clock(self) -> float:
        """Seconds since the load began."""
        return time.monotonic() - self.began

    def excuse(self) -> None:
        """Count messages that met no subscription."""
        for (who, author, all_missing), (_, _, left) in zip(super()._missing(), self._missing(), strict=True):
            excused = all_missing - left
            if excused:
                readers = self._readers(who)
                self.counts["not delivered, for want of a session that was found"] += len(excused)
                self.unsettled += sum(not self._in_gap(readers, author, number) for number in excused)

    def go_on(self) -> None:
        super().go_on()
        if any(author.numbers for author in self.authors):
            return  # messages in flight may still need what excuses them
        for author in self.authors:
            assert isinstance(author, RoamingAuthor)
            author.begun_anew.clear()
            author.given_up.clear()
            author.went_before = author.went
        for reader in (*self.readers, *self.sharers, *self.keepsakes.witnesses):
            assert isinstance(reader, RoamingReader)
            reader.gaps = [gap for gap in reader.gaps if gap[1] == float("inf")]
            reader.lost_at.clear()
            reader.unsure.clear()
