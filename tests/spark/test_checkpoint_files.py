"""Files of a pipeline in the checkpoint of its query."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from starlingmq.pipeline.checkpoint_files import CheckpointError, CheckpointFiles
from starlingmq.spark.checkpoint import Checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_a_file_is_there_as_it_was_written_last(spark: SparkSession, tmp_path: Path) -> None:
    files = CheckpointFiles(spark, str(tmp_path / "new" / "result"))
    assert files.read_file("state") is None and files.begun() == -1
    for content in (bytes(range(256)), b"", b"second"):
        files.write_file("state", content)
        assert files.read_file("state") == content
    names = {path.name for path in (tmp_path / "new" / "result").iterdir() if not path.name.endswith(".crc")}
    assert names == {"state"}, "no temporary file is left"
    assert Checkpoint(str(tmp_path / "new" / "result")).read_file("state") == b"second", "as earlier releases read it"


def test_files_of_earlier_releases_are_read_and_replaced(spark: SparkSession, tmp_path: Path) -> None:
    Checkpoint(str(tmp_path)).write_file("state", b"first")
    files = CheckpointFiles(spark, f"file://{tmp_path}")
    assert files.read_file("state") == b"first"
    files.write_file("state", b"second")
    assert files.read_file("state") == b"second"
    (tmp_path / "offsets").mkdir()
    for name in ("0", "9", "10", ".10.crc", "11.tmp"):
        (tmp_path / "offsets" / name).touch()
    assert files.begun() == 10


def test_a_file_system_that_is_not_there_is_told_in_a_line(spark: SparkSession) -> None:
    with pytest.raises(CheckpointError, match=r'^nowhere://a/b: .*No FileSystem for scheme "nowhere"$'):
        CheckpointFiles(spark, "nowhere://a/b")
