"""What keeps the journal from storing, and the events that begin and end it.

The law: while any fault is there, nothing is accepted that must be stored; the last one to end lets the broker accept
again. Each fault ends by an event that proves that its cause is gone, never by time alone.

| event               | cause of the event                                          | UNWRITTEN | UNSYNCED | LOST   |
|---------------------|-------------------------------------------------------------|-----------|----------|--------|
| APPEND_FAILED       | the journal refused records; they wait in memory, in order  | begins    |          |        |
| BACKLOG_APPENDED    | the records that waited in memory are in the journal        | ends      |          |        |
| SYNC_IN_DOUBT       | a sync failed, or (``power``) the backlog was just appended |           | begins   |        |
| SYNC_RETURNED       | a sync has returned                                         |           | ends     |        |
| RECORDS_LOST        | the disk has lost records that were written                 |           |          | begins |
| CHECKPOINT_WRITTEN  | the key-value store has all that is in memory               |           |          | ends   |

Syncing, one sync at a time::

    IDLE     --somebody waits------------------> RUNNING
    RUNNING  --somebody waits------------------> RUNNING   for the sync after this one, with all others who came since
    RUNNING  --returned, somebody waits--------> RUNNING
    RUNNING  --returned------------------------> IDLE
    RUNNING  --failed--------------------------> RETRYING  nobody waits any longer: all are told
    RETRYING --RETRY_SECONDS, backlog appended-> RUNNING   or IDLE with APPEND_FAILED: the journal does not open again
"""

from __future__ import annotations

from enum import Enum, Flag
from typing import Final


class JournalFault(Flag):
    UNWRITTEN = 1
    UNSYNCED = 2
    LOST = 4


class JournalEvent(Enum):
    APPEND_FAILED = 1
    BACKLOG_APPENDED = 2
    SYNC_IN_DOUBT = 3
    SYNC_RETURNED = 4
    RECORDS_LOST = 5
    CHECKPOINT_WRITTEN = 6


class SyncState(Enum):
    IDLE = 1
    RUNNING = 2
    RETRYING = 3


NO_FAULT: Final = JournalFault(0)

BEGINS: Final = {
    JournalEvent.APPEND_FAILED: JournalFault.UNWRITTEN,
    JournalEvent.SYNC_IN_DOUBT: JournalFault.UNSYNCED,
    JournalEvent.RECORDS_LOST: JournalFault.LOST,
}
ENDS: Final = {
    JournalEvent.BACKLOG_APPENDED: JournalFault.UNWRITTEN,
    JournalEvent.SYNC_RETURNED: JournalFault.UNSYNCED,
    JournalEvent.CHECKPOINT_WRITTEN: JournalFault.LOST,
}


def after_event(faults: JournalFault, event: JournalEvent) -> JournalFault:
    """Returns the faults that are there once the event has happened."""
    return (faults | BEGINS.get(event, NO_FAULT)) & ~ENDS.get(event, NO_FAULT)
