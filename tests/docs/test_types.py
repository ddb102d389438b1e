"""The Python on the pages is as clean as the sources: ruff, and mypy --strict for the programs that are run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ELSEWHERE, ROOT, all_blocks


def written(directory: Path) -> list[Path]:
    """The programs that are run, each in a file that says where it is from."""
    paths = []
    for block in all_blocks():
        if block.kind == "python" and block.what in ("run", "file") and block.page not in ELSEWHERE:
            paths.append(directory / f"{Path(block.page).stem.lower()}_{block.line}.py")
            paths[-1].write_text(block.text, encoding="utf-8")
    assert len(paths) > 3
    return paths


def checked(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_has_nothing_to_say(tmp_path: Path) -> None:
    paths = [str(path) for path in written(tmp_path)]
    # One ``with`` below the other is easier to follow for who meets both for the first time.
    checked("ruff", "check", "--config", "pyproject.toml", "--ignore", "SIM117", *paths)
    checked("ruff", "format", "--check", "--config", "pyproject.toml", *paths)


@pytest.mark.long(alone="mypy needs half a minute for the programs of the pages")
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_mypy_has_nothing_to_say(tmp_path: Path) -> None:
    checked("mypy", "--strict", "--explicit-package-bases", *(str(path) for path in written(tmp_path)))
