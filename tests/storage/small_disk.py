"""A real file system that is small: a separate tmpfs, which a ballast file fills up."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.patience import slowness

PIECE = 1 << 16


class SmallDisk:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.ballast = path / "ballast"

    def fill(self) -> None:
        """To the last byte."""
        with self.ballast.open("ab", buffering=0) as file:
            size = PIECE
            while size:
                try:
                    file.write(bytes(size))
                except OSError as error:
                    assert error.errno == errno.ENOSPC
                    size //= 2

    def free(self) -> None:
        self.ballast.unlink()


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[SmallDisk]:
    """Mount a small disk at ``path``, which is created; it is always unmounted at the end. Skips the test where
    mounting is not permitted: the broker's process cannot use a disk simulated in Python.
    """
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "starlingmq-test", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, timeout=20 * slowness())
    except FileNotFoundError:
        pytest.skip("there is no mount command, so no small file system")
    if done.returncode:
        pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        if subprocess.run(["umount", str(path)], capture_output=True, timeout=20 * slowness()).returncode:
            subprocess.run(["umount", "-l", str(path)], check=True, timeout=20 * slowness())
