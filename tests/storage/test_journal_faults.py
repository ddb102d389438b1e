"""The table of what keeps the journal from storing: each fault can begin, and an event of its own ends it."""

from __future__ import annotations

import pytest

from starlingmq.storage.journal_faults import BEGINS, ENDS, NO_FAULT, JournalEvent, JournalFault, after_event

ALL = JournalFault.UNWRITTEN | JournalFault.UNSYNCED | JournalFault.LOST | JournalFault.UNCOPIED


@pytest.mark.parametrize("fault", JournalFault)
def test_each_fault_begins_and_ends_by_one_event_and_no_other(fault: JournalFault) -> None:
    assert [event for event in JournalEvent if after_event(NO_FAULT, event) == fault] == [
        event for event in JournalEvent if BEGINS.get(event) is fault
    ]
    ends = [event for event in JournalEvent if after_event(ALL, event) != ALL]
    assert [event for event in ends if after_event(ALL, event) == ALL & ~fault] == [
        event for event in JournalEvent if ENDS.get(event) is fault
    ]
    assert sum(each is fault for each in BEGINS.values()) == sum(each is fault for each in ENDS.values()) == 1


@pytest.mark.parametrize("event", JournalEvent)
def test_an_event_leaves_all_other_faults_as_they_are(event: JournalEvent) -> None:
    own = BEGINS.get(event, NO_FAULT) | ENDS.get(event, NO_FAULT)
    assert own in JournalFault, "an event concerns one fault"
    for faults in (NO_FAULT, ALL):
        assert after_event(faults, event) & ~own == faults & ~own
        assert after_event(after_event(faults, event), event) == after_event(faults, event)
