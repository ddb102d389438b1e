"""Only the broker's user can read the stored data, whatever files an earlier process left."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from starlingmq.admin.state_files import replace
from starlingmq.storage.data_dir import DataDir, DataDirError
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
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    path.chmod(0o777)
    with pytest.raises(DataDirError) as error:
        DataDir(path, DECIDED)
    assert str(error.value) == (
        f"{path} belongs to user {owner}, but this process runs as user {owner + 1}; "
        f"run it as user {owner}, or change the owner of the directory (chown -R {owner + 1} {path})"
    )
    assert mode(found[-1]) == 0o644, "nothing was changed"


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
