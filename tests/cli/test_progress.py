"""Progress in a pipe: a line when an action begins, with a count only if there is something to count."""

from __future__ import annotations

import pytest

from starlingmq.cli.progress import progress


def test_an_action_without_a_count_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(False) as report:
        for _ in range(3):
            report("waiting for the lease", 0, 0, "steps")
        report("handing over", 0, 5, "messages")
        report("reading", 7, 0, "rows")
    assert capsys.readouterr().err.splitlines() == [
        "waiting for the lease",
        "handing over: 0 of 5 messages",
        "reading: 7 rows",
    ]
