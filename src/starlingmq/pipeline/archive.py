"""An archive: rows of a stream as Parquet files, in a directory for each date and topic root, small files merged.

::

    DIRECTORY/date=2026-01-31/root=sensors/batch-7-0.parquet     of batch 7 of the query
    DIRECTORY/date=2026-01-31/root=sensors/merged-....parquet    of several files that were small
    DIRECTORY/_starlingmq/query                                  the id of the query that writes here
    DIRECTORY/_starlingmq/batches/7                              batch 7 of this query is complete
    DIRECTORY/_starlingmq/merges/....json                        merged files and the files that they replace
    DIRECTORY/_starlingmq/checkpoint, staging                    of the query; files being written

Invariants:

- One query writes an archive, since batches of two queries have the same numbers. A query has another id when its
  checkpoint is deleted.
- A batch is written to ``staging`` and then moved. Files of an earlier attempt are removed first; a complete batch is
  kept, because its files may have been merged since, and only files of complete batches are merged.
- A merge is written to ``staging``, then recorded, then executed: the merged file in, its parts out. The next process
  executes recorded merges again, which is idempotent. So after ``settle`` each row is in one file, whenever a process
  has died.

The driver moves the files, so the directory must be accessible to the driver and all workers.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from starlingmq.config.section_types import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OURS: Final = "_starlingmq"  # Spark ignores names that begin with _
PARTITIONS: Final = ("date", "root")
TARGET_BYTES: Final = 128 << 20  # approximate size of a merged file
NEEDED: Final = ("topic", "timestamp", "node", "offset")

Told = Callable[[int, int], None]  # merged partitions, and all of them


class ArchiveError(ConfigError):
    """An archive cannot be used; one line that begins with its directory."""


class Merge(msgspec.Struct, frozen=True):
    """Names relative to the archive. ``staged`` is renamed to ``merged``, and all of ``parts`` are deleted."""

    staged: str
    merged: str
    parts: tuple[str, ...]


class Archive:
    """``must_exist``: it is opened for reading. Raises ArchiveError."""

    def __init__(self, directory: str | Path, must_exist: bool = False) -> None:
        if "://" in str(directory):
            raise ArchiveError(
                f"{directory}: an archive must be a directory that the driver and the workers can access; "
                "for another store, write a pipeline with sink.format: parquet"
            )
        self.path = Path(directory).absolute()
        self._ours = self.path / OURS
        if must_exist and not self._ours.is_dir():
            raise ArchiveError(f"{directory}: is not an archive; create one with starlingmq pipeline archive")

    @property
    def checkpoint(self) -> str:
        return str(self._ours / "checkpoint")

    def _make(self) -> None:
        try:
            for name in ("batches", "merges", "staging"):
                (self._ours / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArchiveError(f"{self.path}: cannot be written: {error.strerror}") from None

    # Content

    def files(self) -> list[Path]:
        """Return all files of complete batches, in order."""
        self.settle()
        return sorted(file for file in self.path.glob("date=*/root=*/*.parquet") if self._counts(file.name))

    def _counts(self, name: str) -> bool:
        return not name.startswith("batch-") or (self._ours / "batches" / name.split("-")[1]).exists()

    def read(self, spark: SparkSession) -> DataFrame:
        """Raises ArchiveError while it is empty."""
        files = self.files()
        if not files:
            raise ArchiveError(f"{self.path}: the archive is still empty")
        schema = spark.read.parquet(str(files[0])).schema
        found = spark.read.schema(schema).option("basePath", str(self.path))
        return found.parquet(*[str(file) for file in files]).drop(*PARTITIONS)

    # Writing

    def claim(self, query: str, number: int) -> None:
        """Claim the archive for the query of this id, which is at batch ``number``. Raises ArchiveError without a
        change if it belongs to another query.
        """
        self._make()
        owner = self._ours / "query"
        if not owner.exists():
            done = [int(file.name) for file in (self._ours / "batches").iterdir() if file.name.isdecimal()]
            if number <= max(done, default=-1):
                raise ArchiveError(
                    f"{self.path}: batches up to {max(done)} are from an earlier release, which did not store their "
                    f"query; if it is query {query}, now at batch {number}, write its id into {owner}, "
                    "otherwise use another directory"
                )
            _write_new(owner, query.encode())
        known = owner.read_text(encoding="utf-8").strip()
        if known != query:
            raise ArchiveError(
                f"{self.path}: belongs to query {known}, not {query}, which may be another pipeline or one whose "
                "checkpoint was deleted; restore the checkpoint, or use another directory"
            )

    def write(self, batch: DataFrame, number: int, query: str) -> None:
        """Write the rows of a batch of a query, once. Raises ArchiveError."""
        from pyspark.sql import functions as F

        self.claim(query, number)
        done = self._ours / "batches" / str(number)
        if done.exists():
            return
        for left in self.path.glob(f"date=*/root=*/batch-{number}-*.parquet"):
            left.unlink()
        staged = self._ours / "staging" / f"batch-{number}"
        rows = batch.withColumns(
            {"date": F.to_date("timestamp"), "root": F.element_at(F.split("topic", "/"), 1)}
        ).sortWithinPartitions("date", "root", "node", "offset")
        rows.write.mode("overwrite").partitionBy(*PARTITIONS).parquet(str(staged))
        for index, file in enumerate(sorted(staged.glob("date=*/root=*/*.parquet"))):
            _move(file, self.path / file.parent.relative_to(staged) / f"batch-{number}-{index}.parquet")
        _write(done, b"")
        shutil.rmtree(staged)

    # Merging

    def settle(self) -> None:
        """Execute the recorded merges, which may be partly done."""
        for note in sorted((self._ours / "merges").glob("*.json")):
            merge = msgspec.json.decode(note.read_bytes(), type=Merge)
            for part in merge.parts:
                (self.path / part).unlink(missing_ok=True)
            staged = self.path / merge.staged
            if staged.exists():
                _move(staged, self.path / merge.merged)
            note.unlink()

    def compact(self, spark: SparkSession, told: Told, target: int = TARGET_BYTES) -> int:
        """Merge small files. Returns by how many files the archive has shrunk."""
        self._make()
        self.settle()
        shutil.rmtree(self._ours / "staging" / "merge", ignore_errors=True)
        partitions: dict[Path, list[Path]] = {}
        for file in self.files():
            partitions.setdefault(file.parent, []).append(file)
        fewer = 0
        for index, (partition, files) in enumerate(partitions.items()):
            told(index, len(partitions))
            for parts in small(files, target):
                self._merge(spark, partition, parts)
                fewer += len(parts) - 1
        told(len(partitions), len(partitions))
        return fewer

    def _merge(self, spark: SparkSession, partition: Path, parts: list[Path]) -> None:
        staging = self._ours / "staging" / "merge"
        rows = spark.read.parquet(*[str(part) for part in parts]).coalesce(1).sortWithinPartitions("node", "offset")
        rows.write.mode("overwrite").parquet(str(staging))
        (staged,) = staging.glob("*.parquet")
        name = f"merged-{staged.name.split('-c000')[0].removeprefix('part-00000-')}"  # as unique as Spark's own name
        merge = Merge(
            str(staged.relative_to(self.path)),
            str((partition / f"{name}.parquet").relative_to(self.path)),
            tuple(str(part.relative_to(self.path)) for part in parts),
        )
        _write(self._ours / "merges" / f"{name}.json", msgspec.json.encode(merge))
        self.settle()


def small(files: list[Path], target: int) -> list[list[Path]]:
    """Return the files of a partition to merge: together about ``target`` bytes, each smaller than half of that."""
    groups: list[list[Path]] = [[]]
    size = 0
    for file in files:
        its = file.stat().st_size
        if its * 2 >= target:
            continue
        if size + its > target:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += its
    return [group for group in groups if len(group) > 1]


def _move(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    with file.open("rb") as data:
        os.fsync(data.fileno())
    file.replace(to)
    _sync(to.parent)


def _write(path: Path, data: bytes) -> None:
    """Write the file atomically."""
    new = path.with_name(f".{path.name}.new")
    _write_synced(new, data)
    new.replace(path)
    _sync(path.parent)


def _write_new(path: Path, data: bytes) -> None:
    """Write the file atomically; a file that another process has written first is kept."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    _write_synced(new, data)
    with suppress(FileExistsError):
        os.link(new, path)
    new.unlink()
    _sync(path.parent)


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())


def _sync(directory: Path) -> None:
    number = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
