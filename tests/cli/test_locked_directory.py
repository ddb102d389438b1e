"""Temporary directories of killed processes are removed; those in use, and those of others, are left alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from starlingmq.cli.locked_directory import LockedDirectory, remove_abandoned

PREFIX = "starlingmq-tried-"
HOLD = f"""
from starlingmq.cli.locked_directory import LockedDirectory
with LockedDirectory({PREFIX!r}) as mine:
    print(mine.path, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def _scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_a_directory_is_private_and_removed_with_its_content() -> None:
    with LockedDirectory(PREFIX) as one:
        path = Path(one.path)
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "file").touch()
    assert not path.exists()


def test_the_directory_of_a_killed_process_is_removed_by_the_next_and_not_before() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().decode().strip())
        (path / "1883").touch()
        with LockedDirectory(PREFIX):
            assert path.is_dir(), "its process lives"
        process.kill()
        process.wait()
        assert path.is_dir()
        with LockedDirectory(PREFIX) as mine:
            assert not path.exists() and Path(mine.path).is_dir()


def test_nothing_else_is_removed(tmp_path: Path) -> None:
    other, target = tmp_path / "other-1", tmp_path / "target"
    for path in (other, target):
        path.mkdir()
    (target / "kept").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(target)
    (tmp_path / f"{PREFIX}file").touch()
    remove_abandoned(PREFIX)
    assert other.is_dir() and (target / "kept").exists() and (tmp_path / f"{PREFIX}link").is_symlink()
    assert (tmp_path / f"{PREFIX}file").exists()


def test_a_directory_of_another_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"{PREFIX}theirs"
    path.mkdir()
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    remove_abandoned(PREFIX)
    assert path.is_dir()
    monkeypatch.setattr(os, "geteuid", lambda: me)
    remove_abandoned(PREFIX)
    assert not path.exists()


def test_a_directory_that_a_cleaner_removed_is_restored_and_locked_again() -> None:
    with LockedDirectory(PREFIX) as one:
        shutil.rmtree(one.path)
        one.restore()
        remove_abandoned(PREFIX)
        assert Path(one.path).is_dir()
