"""The order in which log-ins are checked: fair between addresses, bounded, and the same as that of its dumb twin."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from starlingmq.auth.fair_queue import KNOWN_RUN, FairQueue, QueueTicket

KEY_MAX = 3
TOTAL_MAX = 6


class Twin:
    """The same rules with one list, looked through each time. An entry is (key, item, known)."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, int, bool]] = []
        self.turns: dict[bool, list[str]] = {True: [], False: []}  # by lane, the keys in the order of their turns
        self.run = 0

    def waiting(self, key: str) -> int:
        return sum(entry[0] == key for entry in self.entries)

    def offer(self, key: str, item: int, known: bool) -> tuple[bool, int | None]:
        """Whether it is admitted, and how many wait of the key that loses a place for it."""
        lost = None
        full = self.waiting(key) >= KEY_MAX or len(self.entries) >= TOTAL_MAX
        if full and known and any(entry[0] == key and not entry[2] for entry in self.entries):
            lost = self.waiting(key) + 1
        elif self.waiting(key) >= KEY_MAX:
            return False, None
        elif full:
            most = max(self.waiting(entry[0]) for entry in self.entries)
            if most < self.waiting(key) + 2:
                return False, None
            lost = most
        self.entries.append((key, item, known))
        if key not in self.turns[known]:
            self.turns[known].append(key)
        return True, lost

    def remove(self, item: int) -> tuple[str, int, bool]:
        entry = next(entry for entry in self.entries if entry[1] == item)
        self.entries.remove(entry)
        key, _, known = entry
        if not any(other[0] == key and other[2] == known for other in self.entries):
            self.turns[known].remove(key)
        return entry

    def take(self, held: str) -> int | None:
        turns = {lane: [key for key in keys if key not in held] for lane, keys in self.turns.items()}
        others = bool(turns[False])
        known = bool(turns[True]) and (not others or self.run < KNOWN_RUN)
        if not turns[known]:
            return None
        self.run = self.run + 1 if known and others else 0
        key = turns[known][0]
        item = next(entry[1] for entry in self.entries if entry[0] == key and entry[2] == known)
        self.remove(item)
        if key in self.turns[known]:
            self.turns[known].remove(key)
            self.turns[known].append(key)
        return item


OFFERS = st.tuples(st.just("offer"), st.sampled_from("abcd"), st.booleans())
TAKES = st.tuples(st.just("take"), st.sampled_from(["", "", "a", "bc"]), st.just(False))
STEPS = st.one_of(OFFERS, OFFERS, TAKES, st.tuples(st.just("drop"), st.integers(0, 9), st.just(0)))


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=80))
def test_the_queue_does_what_its_twin_does(steps: list[tuple[str, object, object]]) -> None:
    queue: FairQueue[int] = FairQueue(KEY_MAX, TOTAL_MAX)
    twin = Twin()
    tickets: dict[int, QueueTicket[int]] = {}
    for number, (step, first, known) in enumerate(steps):
        if step == "offer":
            ticket, lost = queue.offer(str(first), number, bool(known))
            admitted, most = twin.offer(str(first), number, bool(known))
            assert (ticket is not None) == admitted and (lost is None) == (most is None)
            if ticket is not None:
                tickets[number] = ticket
            if lost is not None:
                # Which of several equally long keys loses is not part of the invariants.
                assert twin.waiting(lost.key) == most
                newest = [e for e in twin.entries if e[0] == lost.key and e[1] != number]
                assert lost.item == ([e for e in newest if not e[2]] or newest)[-1][1]
                twin.remove(lost.item)
                del tickets[lost.item]
        elif step == "take":
            taken = queue.take(str(first))
            assert (None if taken is None else taken.item) == twin.take(str(first))
            if taken is not None:
                del tickets[taken.item]
        elif tickets:
            number = list(tickets)[int(str(first)) % len(tickets)]
            ticket = tickets.pop(number)
            assert queue.drop(ticket) and not queue.drop(ticket)
            twin.remove(number)
        assert len(queue) == len(twin.entries) <= TOTAL_MAX
        assert all(queue.waiting(key) == twin.waiting(key) <= KEY_MAX for key in "abcd")
        assert len(queue._waiting) == len({entry[0] for entry in twin.entries}), "nothing is kept of an idle key"


def test_one_right_log_in_waits_for_one_of_a_flood() -> None:
    queue: FairQueue[str] = FairQueue(100, 1000)
    flood = [queue.offer("10.0.0.1", f"wrong {number}")[0] for number in range(800)]
    assert sum(ticket is not None for ticket in flood) == 100
    queue.offer("10.0.0.2", "right")
    order = [ticket.item for _ in range(2) if (ticket := queue.take()) is not None]
    assert order == ["wrong 0", "right"]


def test_a_flood_from_many_addresses_keeps_no_other_address_out() -> None:
    queue: FairQueue[str] = FairQueue(100, 1000)
    for number in range(10_000):
        queue.offer(f"10.0.0.{number % 20}", "wrong")
    assert len(queue) == 1000
    ticket, lost = queue.offer("192.0.2.1", "right")
    assert ticket is not None and lost is not None and lost.item == "wrong" and len(queue) == 1000


def test_a_known_log_in_takes_the_place_of_a_guess_from_its_own_address() -> None:
    queue: FairQueue[str] = FairQueue(3, 1000)
    for number in range(5):
        queue.offer("a", f"wrong {number}")
    ticket, lost = queue.offer("a", "right", known=True)
    assert ticket is not None and lost is not None and lost.item == "wrong 2" and queue.waiting("a") == 3
    assert queue.take() is ticket


def test_known_log_ins_go_first_and_do_not_keep_others_waiting_for_ever() -> None:
    queue: FairQueue[str] = FairQueue(100, 1000)
    queue.offer("a", "new")
    for _ in range(50):
        queue.offer("b", "known", known=True)
    order = [ticket.item for _ in range(51) if (ticket := queue.take()) is not None]
    assert order == ["known"] * KNOWN_RUN + ["new"] + ["known"] * (50 - KNOWN_RUN)
