"""Clients of a stream write down their answers here (``tests.cluster.chaos_jetstream``): ``wrong`` has those that
contradict each other."""

from __future__ import annotations


class Books:
    """Of one stream. ``expected``: the next sequence of the session that reads it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.published = 0
        self.acknowledged: dict[bytes, int] = {}
        self.came: set[bytes] = set()  # to a consumer
        self.done: dict[int, float] = {}  # when an acknowledgement was answered, by sequence
        self.expected = 1
        self.wrong: list[str] = []
        self._payloads: dict[int, bytes] = {}

    def at(self, seq: int, payload: bytes) -> None:
        found = self._payloads.setdefault(seq, payload)
        if found != payload:
            self.wrong.append(f"sequence {seq} was of {found!r} and is of {payload!r}")

    def acknowledge(self, seq: int, payload: bytes) -> None:
        self.at(seq, payload)
        self.acknowledged[payload] = seq

    def deliver(self, seq: int, payload: bytes, asked_at: float) -> None:
        self.at(seq, payload)
        self.came.add(payload)
        if seq in self.done and self.done[seq] < asked_at:
            self.wrong.append(f"{seq} was acknowledged {asked_at - self.done[seq]:.1f} s before it was delivered again")

    def follow(self, last: int, seq: int) -> None:
        """Two first deliveries, one after the other."""
        if seq <= last:
            self.wrong.append(f"{seq} was delivered after {last}")

    def confirm(self, seq: int, now: float) -> None:
        self.done.setdefault(seq, now)

    def read(self, seq: int, payload: bytes) -> None:
        """By the session. What it has not acknowledged comes again."""
        self.at(seq, payload)
        if seq > self.expected:
            self.wrong.append(f"the session got {seq} in place of {self.expected}")
        self.expected = max(self.expected, seq + 1)

    def compare(self, acknowledged: dict[bytes, int], content: list[tuple[int, bytes]]) -> None:
        """All that the stream has up to the last acknowledged sequence, or further."""
        there = dict(content)
        if [seq for seq, _ in content] != sorted(there):
            self.wrong.append("its messages are not in order, or not there once")
        for seq, payload in content:
            self.at(seq, payload)
        lost = [f"{payload!r} at {seq}" for payload, seq in acknowledged.items() if there.get(seq) != payload]
        if lost:
            self.wrong.append(f"{len(lost)} acknowledged messages are not there, such as {', '.join(lost[:5])}")
        once = [payload for _, payload in content if payload.startswith(b"once:")]
        if once != [b"once:%d" % number for number in range(len(once))]:
            self.wrong.append("messages with an id are missing, not there once, or not in order")


class Register:
    """The only key of a bucket. A value ends with the revision that its update expected."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.latest = 0  # that was acknowledged
        self.stale = 0  # reads of a revision before ``latest``, which a bucket permits
        self.wrong: list[str] = []
        self._values: dict[int, bytes] = {}
        self._refused: set[bytes] = set()

    def at(self, revision: int, value: bytes) -> None:
        found = self._values.setdefault(revision, value)
        if found != value:
            self.wrong.append(f"revision {revision} was {found!r} and is {value!r}")
        if int(value.rpartition(b":")[2] or 0) != revision - 1:
            self.wrong.append(f"revision {revision} has {value!r}, which expected another one before it")
        if value in self._refused:
            self.wrong.append(f"revision {revision} has {value!r}, which was refused")

    def write(self, revision: int, value: bytes) -> None:
        self.at(revision, value)
        self.latest = max(self.latest, revision)

    def refuse(self, value: bytes) -> None:
        self._refused.add(value)
        if value in self._values.values():
            self.wrong.append(f"{value!r} was refused, and is there")

    def read(self, revision: int, value: bytes, latest: int) -> None:
        """``latest``: that was acknowledged before the read began."""
        self.stale += revision < latest
        if revision:
            self.at(revision, value)
