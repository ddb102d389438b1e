"""Where what must outlive a turn is kept: interfaces and engines."""

from starlingmq.storage.backup import backup, restore
from starlingmq.storage.journal import Journal
from starlingmq.storage.kv import Batch, Kv
from starlingmq.storage.memory import MemoryJournal, MemoryKv

__all__ = ["Batch", "Journal", "Kv", "MemoryJournal", "MemoryKv", "backup", "restore"]
