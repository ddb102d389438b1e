"""A node of an earlier release is upgraded: it has everything that it had, and an older version refuses its data."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Final

import pytest

from starlingmq.cli.local_cluster import free_port
from tests.upgrade.releases import COMMITS, Release, current, earlier

pytestmark = pytest.mark.timeout(300)

STORED: Final = Path(__file__).parent / "data"
SESSION: Final = ("-i", "cellar", "-c", "-q", "2", "-t", "alarm/#")
MESSAGES: Final = tuple(f"alarm/{qos} sent with QoS {qos}" for qos in range(3))


def fill(release: Release, data: Path, port: int) -> None:
    """A persistent session with three messages that wait, and a retained message."""
    with release.serving("--listen", f"mqtt://127.0.0.1:{port}", "--data-dir", str(data), "--name", "n1"):
        release.run("sub", "-p", str(port), *SESSION, "-E")
        for qos, message in enumerate(MESSAGES):
            topic, _, text = message.partition(" ")
            release.run("pub", "-p", str(port), "-t", topic, "-m", text, "-q", str(qos))
        release.run("pub", "-p", str(port), "-t", "greenhouse", "-m", "21.5", "-r", "-q", "1")


def check(data: Path, port: int) -> None:
    """This version has all of it, and so it has after another restart."""
    for expected in (MESSAGES, ()):
        with current().serving("--listen", f"mqtt://127.0.0.1:{port}", "--data-dir", str(data), "--name", "n1"):
            assert current().run("sub", "-p", str(port), "-t", "greenhouse", "-C", "1", "-v") == "greenhouse 21.5\n"
            if expected:
                got = current().run("sub", "-p", str(port), *SESSION, "-C", str(len(expected)), "-W", "60", "-v")
                assert got.splitlines() == list(expected)
            sessions = current().run("ctl", "sessions", "--data-dir", str(data))
            assert "cellar" in sessions
    assert current().run("ctl", "storage", "check", "--data-dir", str(data)).rstrip().endswith("whole")


@pytest.mark.slow
@pytest.mark.parametrize("version", COMMITS)
def test_a_stored_directory_of_a_release_is_read(version: str, tmp_path: Path) -> None:
    """``tests/upgrade/data`` has what ``fill`` made with each release."""
    with tarfile.open(STORED / f"{version}.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # not before Python 3.11.4
        archive.extractall(tmp_path)
    check(tmp_path / "data", free_port())


@pytest.mark.long(alone="it runs an earlier release, from its commit")
@pytest.mark.parametrize("version", COMMITS)
def test_a_node_with_data_is_upgraded_and_a_downgrade_is_refused(version: str, tmp_path: Path) -> None:
    release, port, data = earlier(version, tmp_path), free_port(), tmp_path / "data"
    fill(release, data, port)
    check(data, port)
    before = sorted((path.name, path.read_bytes()) for path in (data / "journal").iterdir())
    refused = release.run("serve", "--listen", f"mqtt://127.0.0.1:{port}", "--data-dir", str(data), expect=2)
    (line,) = refused.splitlines()
    assert line.startswith(f"error: {data} has data layout 2, ") and "use the version that wrote it" in line
    assert sorted((path.name, path.read_bytes()) for path in (data / "journal").iterdir()) == before


@pytest.mark.long(alone="it runs an earlier release, from its commit")
@pytest.mark.parametrize("version", COMMITS)
def test_a_backup_of_a_release_brings_it_back_after_an_upgrade(version: str, tmp_path: Path) -> None:
    release, port, data = earlier(version, tmp_path), free_port(), tmp_path / "data"
    fill(release, data, port)
    release.run("backup", str(tmp_path / "saved"), "--data-dir", str(data))
    check(data, port)
    release.run("restore", str(tmp_path / "saved"), "--data-dir", str(tmp_path / "back"))
    with release.serving("--listen", f"mqtt://127.0.0.1:{port}", "--data-dir", str(tmp_path / "back"), "--name", "n1"):
        got = release.run("sub", "-p", str(port), *SESSION, "-C", "3", "-W", "60", "-v")
        assert got.splitlines() == list(MESSAGES)
    current().run("restore", str(tmp_path / "saved"), "--data-dir", str(tmp_path / "new"))
    check(tmp_path / "new", port)


def make_stored(version: str, directory: Path) -> None:
    """Make ``tests/upgrade/data/VERSION.tar.xz``, once for each release."""
    fill(earlier(version, directory), directory / "data", free_port())
    STORED.mkdir(exist_ok=True)
    with tarfile.open(STORED / f"{version}.tar.xz", "w:xz") as archive:
        for path in sorted((directory / "data").rglob("*")):
            if path.is_file() and path.name not in ("LOCK", "LOG") and not path.name.startswith("LOG.old"):
                archive.add(path, f"data/{path.relative_to(directory / 'data')}", filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry
