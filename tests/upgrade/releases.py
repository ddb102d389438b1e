"""Brokers of earlier releases, from the history of this repository: run interpreted, with the packages of today."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent.parent
COMMITS: Final = {"0.1.0": "c2459875"}
NEXT: Final = "0.2.99"
PATIENCE: Final = 90.0


class Release:
    """A version of the program. ``sources``: where it is; None: this checkout."""

    def __init__(self, sources: Path | None) -> None:
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("STARLINGMQ_")}
        if sources is not None:
            self._env |= {"PYTHONPATH": str(sources), "STARLINGMQ_PURE": "1"}
        elif "STARLINGMQ_PURE" in os.environ:
            self._env["STARLINGMQ_PURE"] = os.environ["STARLINGMQ_PURE"]

    def run(self, *words: str, expect: int = 0) -> str:
        """stdout and stderr of a command."""
        done = subprocess.run(
            [sys.executable, "-m", "starlingmq", *words],
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == expect, f"{words}: {done.returncode}\n{done.stdout[-3000:]}"
        return done.stdout

    def exit_code(self, *words: str) -> int:
        """That of a command, whatever it is."""
        command = [sys.executable, "-m", "starlingmq", *words]
        return subprocess.run(command, env=self._env, capture_output=True, timeout=PATIENCE, check=False).returncode

    @contextmanager
    def serving(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """A broker that is ready, until the block ends: then it stops by SIGTERM and must exit with 0."""
        with self.starting(*words) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready "), words
            yield process
            process.terminate()
            assert process.wait(PATIENCE) == 0

    @contextmanager
    def starting(self, *words: str, log: Path | None = None) -> Iterator[subprocess.Popen[str]]:
        """A broker that may not be ready for a while. ``log``: the file of its stderr."""
        command = [sys.executable, "-m", "starlingmq", "serve", *words]
        with (
            open(log or os.devnull, "w") as errors,
            subprocess.Popen(command, env=self._env, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            try:
                yield process
            finally:
                process.kill()


def current() -> Release:
    return Release(None)


def next_patch(directory: Path) -> Release:
    """The sources of this checkout as the next patch version: the same formats and the same protocol between nodes."""
    sources = directory / "next" / "src"
    shutil.copytree(ROOT / "src", sources, ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
    (sources / "starlingmq" / "_version.py").write_text(f'__version__ = "{NEXT}"\n')
    release = Release(sources)
    assert release.run("--version").startswith(f"starlingmq {NEXT} ")
    return release


def earlier(version: str, directory: Path) -> Release:
    """A release from the history. Skips in a copy of the sources that has none."""
    archive = directory / f"{version}.tar"
    done = subprocess.run(
        ["git", "-C", ROOT, "archive", "--output", archive, COMMITS[version], "src"], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"{version} needs the history of the repository: {done.stderr.strip()}")
    with tarfile.open(archive) as sources:
        sources.extraction_filter = getattr(tarfile, "data_filter", None)  # not before Python 3.11.4
        sources.extractall(directory / version)
    release = Release(directory / version / "src")
    assert release.run("--version").startswith(f"starlingmq {version} ")
    return release
