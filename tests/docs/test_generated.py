"""Pages and pictures that are made from the code are what the code says now."""

from __future__ import annotations

import subprocess
import sys

from tests.docs.conftest import ROOT


def test_generated_pages_are_up_to_date() -> None:
    """In a process of its own, since one of them collects tests."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.generate", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
