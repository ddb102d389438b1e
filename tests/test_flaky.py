"""``make flaky`` finds a test that fails sometimes, and says nothing of one that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import flaky

SOMETIMES = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("words", ["two words"])
def test_sometimes(words):
    runs = Path(__file__).with_name("runs")
    number = len(runs.read_text()) if runs.exists() else 0
    runs.write_text("x" * (number + 1))
    assert number % 2 == 0

def test_always():
    pass
"""


def test_a_test_that_fails_in_every_second_run_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flaky, "LOADS", (1,))
    (tmp_path / "test_it.py").write_text(SOMETIMES)
    found = flaky.failures_of(["test_it.py"], 2, tmp_path / "kept", tmp_path)
    assert found == {("test_it.py::test_sometimes[two words]", 1): 1}
    assert "load 1, run 2 of 2: failed: test_it.py::test_sometimes" in capsys.readouterr().out
    assert "assert" in (tmp_path / "kept" / "load-1-run-2.txt").read_text()


def test_a_run_without_tests_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flaky, "LOADS", (0,))
    (tmp_path / "test_none.py").write_text("")
    assert flaky.failures_of(["test_none.py"], 20, tmp_path / "kept", tmp_path) == {(flaky.WHOLE_RUN, 0): 1}
