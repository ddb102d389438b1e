"""Mistakes made on purpose are found: the lives by seed, and the tests, can fail."""

from __future__ import annotations

import pytest
from tests.few import few
from tests.planting import FAILURES, first_to_find
from tests.storage import planted, planted_copies

from starlingmq.client.producer import ProducerError
from starlingmq.storage.copies.copy_facts import NotWhole

pytestmark = pytest.mark.interpreted_only("what is compiled cannot be patched")

MISTAKES = {**planted.MISTAKES, **planted_copies.MISTAKES}
SEEDS_MAX = 400
FOUND = (*FAILURES, NotWhole, ProducerError, pytest.fail.Exception)

KINDS = (
    "an acknowledgement is not written",
    "a checkpoint counts what came while it was written",
    "what a checkpoint knows is replayed",
    "a will that was published is not written",
    "a checkpoint that failed counts",
    "it refuses for ever",
    "a shared subscription is not restored",
    "a segment is given back while it grows",
    "acknowledged before the copy",
    "offsets are given twice",
)
"""One for each part: what is written, checkpoints, recovery, ends of sessions, failures, what is restored, the garbage
of the journal, and each end of a copy."""


@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a life ends in the middle
@pytest.mark.parametrize("name", few(MISTAKES, *KINDS))
def test_each_is_found(name: str) -> None:
    plant, find = MISTAKES[name]
    assert first_to_find(range(SEEDS_MAX), lambda: plant, find, FOUND) >= 0, f"no seed below {SEEDS_MAX} finds it"
