"""``serve --workers`` after a SIGKILL of the first process: its workers end, and the next start clears up."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import psutil
import pytest

from starlingmq.cli.locked_directory import LockedDirectory
from starlingmq.cli.workers import SOCKETS_PREFIX

from .clusters import nodes_of, running, until

pytestmark = pytest.mark.slow


def test_workers_end_with_their_parent_and_the_next_start_removes_their_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    short = tempfile.TemporaryDirectory(prefix="killed-")  # a path with room for the name of a socket
    request.addfinalizer(short.cleanup)
    scratch = Path(short.name)
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)
    data = tmp_path / "data"
    words = ("serve", "--workers", "2", "--listen", "mqtt://127.0.0.1:0", "--data-dir", str(data))
    with running(tmp_path / "log", *words) as command:
        workers = list(nodes_of(command).values())
        assert len(workers) == 2
        sockets = next(word.partition("=")[2] for word in workers[0].cmdline() if "socket_dir=" in word)
        directory = Path(json.loads(sockets))
        assert directory.parent == scratch and directory.name.startswith(SOCKETS_PREFIX)
        assert (data / "local-etcd" / "keys.sqlite").stat().st_mode & 0o077 == 0
        command.process.kill()
        until(lambda: not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers))
        assert directory.exists(), "nobody is left who could remove it"
    with LockedDirectory(SOCKETS_PREFIX):  # which the next start makes
        assert not directory.exists()
    assert not any(name.startswith(SOCKETS_PREFIX) for name in os.listdir(scratch))
