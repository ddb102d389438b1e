"""Where what must outlive a turn is kept: interfaces and engines."""

from starlingmq.storage.journal import Journal
from starlingmq.storage.kv import Batch, Kv
from starlingmq.storage.maintenance.data_dir_backup import backup, restore
from starlingmq.storage.memory_engine import MemoryJournal, MemoryKv

__all__ = ["Batch", "Journal", "Kv", "MemoryJournal", "MemoryKv", "backup", "restore"]
