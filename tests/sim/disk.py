"""The storage of a simulated node.

A crash of the process leaves all of it, a power failure the synced part and some of the rest, the loss of the disk
nothing.
"""

from __future__ import annotations

from random import Random

from tests.storage.crash_engines import CrashJournal, CrashKv, Machine

from starlingmq.storage.keys import META_AS_OF


class Disk:
    """A journal in short segments and a key-value store of one machine."""

    def __init__(self, machine: Machine, span: int) -> None:
        self.machine = machine
        self.span = span
        self.wipe()

    def wipe(self) -> None:
        self.kv = CrashKv(self.machine)
        self.journal = CrashJournal(self.machine, self.span)

    def power_failure(self, random: Random) -> None:
        self.kv.power_failure(random)
        self.journal.power_failure(random)

    def open(self, power: bool) -> None:
        """Open the data directory: no offset is given twice, and with ``power`` the data found is synced before it
        counts. Raises OSError.
        """
        self.journal.go_on_from(int.from_bytes(self.kv.get(META_AS_OF) or b"\0", "big"))
        if power:
            self.journal.sync()
