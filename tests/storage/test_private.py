"""Only the broker's user can read the stored data, whatever files an earlier process left."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import slowness

from starlingmq.admin.state_files import replace
from starlingmq.storage.data_dir import DataDir, DataDirError, refuse_unusable
from starlingmq.storage.file_calls import FileCalls
from starlingmq.storage.private_files import NotPrivate, make_private

DECIDED = {"journal": "segment"}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def earlier_life(path: Path) -> list[Path]:
    """Directories 0755 and files 0644."""
    DataDir(path, DECIDED).close()
    directories = [path, path / "kv", path / "journal", path / "streams" / "orders"]
    files = [path / "LAYOUT", path / "bans.json", path / "kv" / "CURRENT", path / "streams" / "orders" / "STREAM"]
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
    for file in files:
        file.touch()
        file.chmod(0o644)
    for directory in (*directories, path / "streams"):
        directory.chmod(0o755)
    return [*directories, *files]


def test_directories_become_0700_and_files_0600(tmp_path: Path) -> None:
    path = tmp_path / "data"
    found = earlier_life(path)
    (path / "lost+found").mkdir(mode=0o755)
    data = DataDir(path, DECIDED)
    assert {mode(each) for each in found if each.is_dir()} == {0o700}
    assert {mode(each) for each in found if each.is_file()} == {0o600}
    assert data.narrowed == len(found) + 1 and mode(path / "lost+found") & 0o055
    data.close()
    again = DataDir(path, DECIDED)
    assert again.narrowed == 0
    again.close()


def test_a_part_on_another_disk_is_made_private_too_and_a_circle_ends(tmp_path: Path) -> None:
    path, disk = tmp_path / "data", tmp_path / "disk"
    DataDir(path, DECIDED).close()
    disk.mkdir(mode=0o755)
    (disk / "1.log").touch(mode=0o644)
    (path / "journal").symlink_to(disk)
    (disk / "back").symlink_to(path)
    make_private(path)
    assert mode(disk) == 0o700 and mode(disk / "1.log") == 0o600


def test_a_directory_of_another_user_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data"
    found = earlier_life(path)
    owner = found[-1].stat().st_uid
    monkeypatch.setattr("starlingmq.storage.private_files.user_name", lambda user: {owner: "ann", 4321: "bob"}[user])
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    path.chmod(0o777)
    with pytest.raises(DataDirError) as error:
        DataDir(path, DECIDED)
    run_it = "" if owner == 0 else "run it as user ann, or "  # a broker is not to run as root
    assert str(error.value) == (
        f"{path} belongs to user ann, but this process runs as user bob; "
        f"{run_it}change the owner of the directory (chown -R bob {path})"
    )
    assert mode(found[-1]) == 0o644, "nothing was changed"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_root_is_told_to_run_it_as_the_owner_and_never_to_take_the_directory(tmp_path: Path) -> None:
    path = tmp_path / "data"
    earlier_life(path)
    for user, words in ((4321, "setpriv --reuid=4321 --clear-groups starlingmq"), (1, "runuser -u daemon -- starl")):
        os.chown(path, user, -1)
        with pytest.raises(DataDirError, match="this process runs as user root; run it as that user") as error:
            DataDir(path, DECIDED)
        assert words in str(error.value) and "chown" not in str(error.value)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory that all users may enter."""
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        yield Path(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_directory_of_root_after_a_restore_is_named_before_the_first_user_is_made(reachable: Path) -> None:
    path = reachable / "data"
    DataDir(path, DECIDED).close()
    chosen = [f"node.data_dir={path}", f"auth.password.file={path}/passwords", "auth.password.first_user=admin"]
    others = [each.replace(str(path), str(reachable / "other")) for each in chosen]
    code = f"""
import os
from starlingmq.auth.first_user import make_first_user
from starlingmq.cli.doctor import findings
from starlingmq.cli.serve import run
from starlingmq.cli.serve_options import ServeOptions
findings(None, {others!r})  # loads all modules, which the user may not be able to
os.setgid(4322), os.setuid(4321)
print(*(each.text + "; " + each.advice for each in findings(None, {chosen!r})), sep="\\n")
try:
    run(ServeOptions(set_={chosen!r}))
except Exception as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60 * slowness()
    )
    assert done.returncode == 0, done.stderr
    line = f"{path} belongs to user root, but this process runs as user 4321; change the owner of the directory"
    assert done.stdout.splitlines()[-1] == f"{line} (chown -R 4321 {path})"
    assert done.stdout.count(line) == 3, "doctor says it of the settings and of the disk"
    assert "Permission denied" not in done.stdout
    assert "limits.memory" in done.stdout, "the other checks are made"


def test_a_directory_that_its_owner_may_not_write_to_becomes_0700(tmp_path: Path) -> None:
    path = tmp_path / "data"
    DataDir(path, DECIDED).close()
    (path / "journal").mkdir()
    (path / "journal").chmod(0o500)
    for narrow in (0o500, 0o000):
        path.chmod(narrow)
        data = DataDir(path, DECIDED)
        assert (mode(path), mode(path / "journal")) == (0o700, 0o700)
        data.close()


def test_the_owner_of_a_directory_with_other_content_is_not_to_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts").touch()
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    refuse_unusable(tmp_path)
    with pytest.raises(DataDirError, match="is not empty and is not a data directory"):
        DataDir(tmp_path, DECIDED)


def test_a_volume_of_root_that_nobody_else_may_write_to_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "volume"
    path.mkdir(mode=0o775)
    real = os.stat(path)
    as_root = os.stat_result([*real[:4], 0, *real[5:]])
    monkeypatch.setattr(os, "geteuid", lambda: real.st_uid + 1)
    monkeypatch.setattr(os, "stat", lambda name: as_root)
    assert make_private(path) == 0
    (path / "theirs").touch()
    with pytest.raises(NotPrivate, match="theirs belongs to user"):
        make_private(path)


def test_small_files_and_the_journal_are_made_0600(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        replace(tmp_path / "bans.json", b"[]")
        assert mode(tmp_path / "bans.json") == 0o600
        files = FileCalls()
        files.close(files.open(str(tmp_path / "1.log"), create=True))
        assert mode(tmp_path / "1.log") == 0o600
    finally:
        os.umask(before)


@pytest.mark.parametrize("all_of_them", [False, True])
def test_files_that_are_deleted_meanwhile_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, all_of_them: bool
) -> None:
    """As those of a copy that is being received from another node."""
    names = ["1.sst", "2.sst"]
    for name in names:
        (tmp_path / name).touch(mode=0o644)
    tmp_path.chmod(0o700)
    narrow = os.chmod

    def chmod(path: Path, mode: int) -> None:
        for name in names:
            if all_of_them or name != Path(path).name:
                (tmp_path / name).unlink(missing_ok=True)
        narrow(path, mode)

    monkeypatch.setattr(os, "chmod", chmod)
    assert make_private(tmp_path) == (0 if all_of_them else 1)


def test_a_directory_that_is_deleted_meanwhile_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kv.next").mkdir(mode=0o755)
    tmp_path.chmod(0o700)
    narrow = os.chmod

    def chmod(path: Path, mode: int) -> None:
        narrow(path, mode)
        Path(path).rmdir()

    monkeypatch.setattr(os, "chmod", chmod)
    assert make_private(tmp_path) == 1
