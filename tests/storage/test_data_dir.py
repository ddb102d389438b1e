"""Data directories: made, found again, refused, and half made."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from starlingmq.storage.data_dir import DataDir, DataDirError, layout_text

DECIDED = {"engine": "rocksdb", "journal": "segment"}

HOLDER = """
import sys
from pathlib import Path
from starlingmq.storage.data_dir import DataDir
data = DataDir(Path(sys.argv[1]), {"journal": "segment"})
print("held", flush=True)
sys.stdin.read()
"""


def test_a_directory_is_made_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "a" / "data"
    data = DataDir(path, DECIDED, {"created": "2030-01-01 with 1.0"})
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert (path / "LAYOUT").read_text().splitlines() == [
        "starlingmq data layout 2",
        "engine: rocksdb",
        "journal: segment",
        "created: 2030-01-01 with 1.0",
    ]
    data.close()
    data.close()
    again = DataDir(path, DECIDED, {"created": "later"})
    assert again.facts == {**DECIDED, "created": "2030-01-01 with 1.0"}
    assert (again.kv, again.journal) == (path / "kv", path / "journal")
    again.close()


def test_an_empty_directory_will_do(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    DataDir(tmp_path, DECIDED).close()
    assert (tmp_path / "LAYOUT").exists()


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "not mounted")
    for path in (file, file / "below", dangling):
        with pytest.raises(DataDirError, match=r"^node\.data_dir: .* is no directory, or is below a file; name"):
            DataDir(path, DECIDED)


def test_somebody_elses_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(DataDirError, match="is not empty and is not a data directory"):
        DataDir(tmp_path, DECIDED)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_directory_that_has_lost_everything_but_etcd_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "etcd").mkdir()
    with pytest.raises(DataDirError, match="everything but etcd/; restore it, or delete etcd/, too"):
        DataDir(tmp_path, DECIDED)
    assert os.listdir(tmp_path) == ["etcd"]


@pytest.mark.parametrize("version", ["3", "0", "1.5", "01", "next"])
def test_another_layout_is_refused_by_both_names(tmp_path: Path, version: str) -> None:
    (tmp_path / "LAYOUT").write_text(f"starlingmq data layout {version}\njournal: segment\n")
    with pytest.raises(DataDirError) as refused:
        DataDir(tmp_path, DECIDED)
    line = str(refused.value)
    assert f"{tmp_path} has data layout {version}" in line
    assert "supports layouts 1 to 2 only; use the version that wrote it" in line
    assert "\n" not in line


def test_an_earlier_layout_is_read_and_gets_the_current_number_only_when_it_is_upgraded(tmp_path: Path) -> None:
    (tmp_path / "kv").mkdir()
    (tmp_path / "LAYOUT").write_text("starlingmq data layout 1\nengine: rocksdb\njournal: segment\n")
    data = DataDir(tmp_path, DECIDED)
    assert data.layout == 1 and data.facts == DECIDED
    data.close()  # ctl storage check, for example
    assert (tmp_path / "LAYOUT").read_text().startswith("starlingmq data layout 1\n")
    data = DataDir(tmp_path, DECIDED)
    assert data.upgrade() and not data.upgrade()
    data.close()
    assert (tmp_path / "LAYOUT").read_text() == layout_text(DECIDED)
    data = DataDir(tmp_path, DECIDED)
    assert data.layout == 2 and not data.upgrade()
    data.close()


def test_another_engine_is_refused(tmp_path: Path) -> None:
    DataDir(tmp_path, DECIDED).close()
    with pytest.raises(DataDirError) as refused:
        DataDir(tmp_path, {**DECIDED, "journal": "rocksdb"})
    assert str(refused.value) == (
        f"{tmp_path} was created with storage.journal: segment, but the settings say rocksdb; "
        "set storage.journal: segment, or use another directory"
    )
    DataDir(tmp_path, DECIDED).close()  # the refused one holds no lock


def test_a_second_process_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DataDirError, match=f"in use by another process .pid {holder.pid}."):
            DataDir(path, {"journal": "segment"})
        holder.kill()
    DataDir(path, {"journal": "segment"}).close()  # a lock dies with its process, whatever LOCK says


@pytest.mark.parametrize("length", range(len(layout_text(DECIDED))))
def test_creation_that_was_cut_off_is_done_again(tmp_path: Path, length: int) -> None:
    (tmp_path / "LOCK").write_text("123\n")
    (tmp_path / "LAYOUT.new").write_text("star")
    (tmp_path / "LAYOUT").write_text(layout_text(DECIDED)[:length])
    data = DataDir(tmp_path, DECIDED)
    data.close()
    assert (tmp_path / "LAYOUT").read_text() == layout_text(DECIDED)


@pytest.mark.parametrize(
    "text", ["", "starlingmq data lay", "\0\0\0\0\0\0\n", "starlingmq data layout 1\njournal: seg"]
)
def test_a_damaged_layout_beside_data_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "kv").mkdir()
    (tmp_path / "LAYOUT").write_text(text)
    with pytest.raises(DataDirError, match="LAYOUT is missing or damaged; restore the directory from a backup"):
        DataDir(tmp_path, DECIDED)
    assert (tmp_path / "LAYOUT").read_text() == text


def test_leftovers_of_an_interrupted_backup_are_removed(tmp_path: Path) -> None:
    DataDir(tmp_path, DECIDED).close()
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv" / "1.sst").write_text("data")
    (tmp_path / "stage-17-x" / "kv").mkdir(parents=True)
    os.link(tmp_path / "kv" / "1.sst", tmp_path / "stage-17-x" / "kv" / "1.sst")
    DataDir(tmp_path, DECIDED).close()
    assert not (tmp_path / "stage-17-x").exists()
    assert (tmp_path / "kv" / "1.sst").read_text() == "data"
