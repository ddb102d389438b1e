"""Where the rows of a batch go, whatever becomes of the list of servers meanwhile."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs  # type: ignore[import-untyped]
import pytest

from starlingmq.spark.checkpoint import Checkpoint
from starlingmq.spark.option_error import OptionError
from starlingmq.spark.placing import FILE, AssignedNode, NowhereError, Placement

A, B, C, D = (f"mqtt://10.0.0.{number}:1883" for number in range(1, 5))
NAMES = {A: "a", B: "b", C: "c"}


def test_a_batch_that_may_have_begun_stays_where_it_is() -> None:
    placement = Placement().with_servers([A, B], -1).with_names({A: "a", B: "b"})
    assert placement.with_servers([B, A], 7) is placement, "the order means nothing"
    later = placement.with_servers([C], 7)
    assert [later.assign(7, partition, [C], ()).urls[0] for partition in range(3)] == [A, B, A]
    assert later.assign(7, 0, [C], ()) == AssignedNode(urls=(A, C), name="a"), "it may be at another address now"
    assert later.assign(8, 0, [C], ()) == AssignedNode(urls=(C,))
    again = later.with_servers([B, C], 7)
    assert [each.first for each in again.sets] == [0, 8] and again.assign(8, 0, [B, C], ()).urls[0] == B


def test_a_removed_node_is_not_waited_for() -> None:
    placement = Placement().with_servers([A, B, C], -1).with_names(NAMES)
    for gone in (("b",), (B,)):
        assert [placement.assign(3, partition, [A, B, C], gone).name for partition in range(4)] == ["a", "c", "c", "a"]
    with pytest.raises(NowhereError, match="lists all nodes"):
        placement.assign(3, 0, [A, B, C], ("a", "b", "c"))


@pytest.mark.parametrize("seed", range(5))
def test_every_attempt_of_a_batch_goes_to_the_same_nodes(seed: int, tmp_path: Path) -> None:
    """A driver that dies anywhere, beside a list that is changed at each of its lives."""
    chance = random.Random(seed)
    checkpoint = Checkpoint(f"file:{tmp_path}/checkpoint")
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    went: dict[int, list[str]] = {}
    batch = 0
    for _ in range(200):
        servers = chance.sample([A, B, C, D], chance.randint(1, 4))
        if chance.random() < 0.8:  # a batch has begun when Spark has written this
            (offsets / str(batch)).touch()
        placement = checkpoint.read().with_servers(servers, checkpoint.begun())
        checkpoint.write(placement)
        if not (offsets / str(batch)).exists():
            continue
        found = [placement.assign(batch, partition, servers, ()).urls[0] for partition in range(4)]
        assert went.setdefault(batch, found) == found
        batch += chance.random() < 0.5
    assert batch > 20 and len({tuple(each) for each in went.values()}) > 10


class ObjectStore:
    """A directory that is like S3 to who writes: no move, no directories."""

    type_name = "s3"

    def __init__(self, directory: Path) -> None:
        self.files = pafs.SubTreeFileSystem(str(directory), pafs.LocalFileSystem())

    def open_output_stream(self, path: str) -> Any:
        return self.files.open_output_stream(path)

    def open_input_stream(self, path: str) -> Any:
        return self.files.open_input_stream(path)


def test_an_object_store_gets_the_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Files:
        @staticmethod
        def from_uri(uri: str) -> tuple[ObjectStore, str]:
            asked.append(uri)
            return ObjectStore(tmp_path), "bucket/query"

    (tmp_path / "bucket" / "query").mkdir(parents=True)
    monkeypatch.setattr(pafs, "FileSystem", Files)
    checkpoint = Checkpoint("s3a://bucket/query")
    placement = Placement().with_servers([A], -1)
    checkpoint.write(placement)
    assert asked == ["s3://bucket/query"], "Spark's name of the scheme is another one than pyarrow's"
    assert checkpoint.read() == placement
    assert [path.name for path in (tmp_path / "bucket" / "query").iterdir()] == [FILE]


def test_an_object_store_that_cannot_be_reached_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its state a repeated batch could go to another node, and be there twice."""

    class Files:
        @staticmethod
        def from_uri(uri: str) -> tuple[ObjectStore, str]:
            raise OSError("Could not resolve\nhost")

    monkeypatch.setattr(pafs, "FileSystem", Files)
    with pytest.raises(
        OptionError, match=r"^checkpointLocation: s3a://b/q: Could not resolve host; .*AWS_ENDPOINT_URL"
    ):
        Checkpoint("s3a://b/q")
    assert Checkpoint("hdfs://b/q").read() == Placement(), "a warning: Arrow may not have this file system"


def test_state_is_stored_beside_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path / "new"))
    assert checkpoint.read() == Placement() and checkpoint.begun() == -1
    placement = Placement().with_servers([A], -1).with_names({A: "a"})
    checkpoint.write(placement)
    assert checkpoint.read() == placement and [path.name for path in (tmp_path / "new").iterdir()] == [FILE]
    assert placement.with_names({A: "a"}) is placement
    nothing = Checkpoint("")
    nothing.write(placement)
    assert nothing.read() == Placement()
