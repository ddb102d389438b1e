"""The faults that prevent the journal from storing records, and the events that begin and end them.

Invariant: while there is a fault, the broker accepts nothing that must be stored; when the last fault ends, it accepts
again. Each fault ends with an event which proves that its cause is gone, never by time alone.

| event               | cause of the event                                          | begins    | ends      |
|---------------------|-------------------------------------------------------------|-----------|-----------|
| APPEND_FAILED       | the journal refused records; they wait in memory, in order  | UNWRITTEN |           |
| BACKLOG_APPENDED    | the records that waited in memory are in the journal        |           | UNWRITTEN |
| SYNC_IN_DOUBT       | a sync failed, or (``power``) the backlog was just appended | UNSYNCED  |           |
| SYNC_RETURNED       | a sync has returned                                         |           | UNSYNCED  |
| RECORDS_LOST        | the disk has lost records that were written                 | LOST      |           |
| CHECKPOINT_WRITTEN  | the key-value store has all that is in memory               |           | LOST      |
| COPIES_MISSING      | fewer nodes than ``cluster.min_copies`` are in step         | UNCOPIED  |           |
| COPIES_COMPLETE     | enough nodes are in step                                    |           | UNCOPIED  |

Syncing, one sync at a time::

    IDLE     --a turn waits--------------------> RUNNING
    RUNNING  --a turn waits--------------------> RUNNING   it waits for the next sync, with all that came since
    RUNNING  --returned, turns wait------------> RUNNING
    RUNNING  --returned------------------------> IDLE
    RUNNING  --failed--------------------------> RETRYING  all waiting turns are told, and wait no longer
    RETRYING --RETRY_SECONDS, backlog appended-> RUNNING   or IDLE with APPEND_FAILED: the journal does not open again
"""

from __future__ import annotations

from enum import Enum, Flag
from typing import Final


class JournalFault(Flag):
    UNWRITTEN = 1
    UNSYNCED = 2
    LOST = 4
    UNCOPIED = 8


class JournalEvent(Enum):
    APPEND_FAILED = 1
    BACKLOG_APPENDED = 2
    SYNC_IN_DOUBT = 3
    SYNC_RETURNED = 4
    RECORDS_LOST = 5
    CHECKPOINT_WRITTEN = 6
    COPIES_MISSING = 7
    COPIES_COMPLETE = 8


class SyncState(Enum):
    IDLE = 1
    RUNNING = 2
    RETRYING = 3


NO_FAULT: Final = JournalFault(0)

BEGINS: Final = {
    JournalEvent.APPEND_FAILED: JournalFault.UNWRITTEN,
    JournalEvent.SYNC_IN_DOUBT: JournalFault.UNSYNCED,
    JournalEvent.RECORDS_LOST: JournalFault.LOST,
    JournalEvent.COPIES_MISSING: JournalFault.UNCOPIED,
}
ENDS: Final = {
    JournalEvent.BACKLOG_APPENDED: JournalFault.UNWRITTEN,
    JournalEvent.SYNC_RETURNED: JournalFault.UNSYNCED,
    JournalEvent.CHECKPOINT_WRITTEN: JournalFault.LOST,
    JournalEvent.COPIES_COMPLETE: JournalFault.UNCOPIED,
}


def after_event(faults: JournalFault, event: JournalEvent) -> JournalFault:
    """The faults after the event."""
    return (faults | BEGINS.get(event, NO_FAULT)) & ~ENDS.get(event, NO_FAULT)
