"""The section ``storage``, and the check of its combinations."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from starlingmq.config.section_types import ConfigError, Duration, PositiveSize, Section, Size


class StorageConfig(Section, frozen=True):
    engine: Annotated[
        Literal["auto", "memory", "rocksdb"],
        Meta(
            description="Storage engine for sessions and retained messages; auto uses rocksdb if node.data_dir is set."
        ),
    ] = "auto"
    journal: Annotated[
        Literal["auto", "memory", "rocksdb", "segment"],
        Meta(
            description="Journal for writes before they reach the engine; auto uses segment files if "
            "node.data_dir is set."
        ),
    ] = "auto"
    durability: Annotated[
        Literal["auto", "memory", "process", "power"],
        Meta(
            description="Failure that acknowledged messages survive: none, a crash of the process, or a "
            "power failure as well (fsync). auto uses process if node.data_dir is set."
        ),
    ] = "auto"
    segment_size: Annotated[
        PositiveSize, Meta(description="Size of a journal segment file, and of the journal between two checkpoints.")
    ] = 64 * 1024 * 1024
    retention_time: Annotated[
        Duration,
        Meta(
            description="Minimum time that messages for disconnected clients are kept in segment files; 0: "
            "until they are delivered or expire."
        ),
    ] = 0.0
    retention_size: Annotated[
        Size,
        Meta(
            description="Total size of segment files above which the oldest queued messages are dropped; 0 "
            "sets no limit."
        ),
    ] = 0


def check_storage(storage: StorageConfig, data_dir: str | None) -> None:
    """Raises ConfigError."""
    for key in ("retention_time", "retention_size"):
        if getattr(storage, key) and (data_dir is None or storage.journal not in ("auto", "segment")):
            raise ConfigError(
                f"storage.{key}: applies to segment files only; set node.data_dir, and storage.journal: segment"
            )
    if 0 < storage.retention_size < 2 * storage.segment_size:
        raise ConfigError(
            "storage.retention_size: must be at least twice storage.segment_size, because whole segment "
            "files are deleted"
        )
    keeps = storage.engine != "memory"
    if data_dir is None:
        for key in ("engine", "journal", "durability"):
            value = getattr(storage, key)
            if value not in ("auto", "memory"):
                raise ConfigError(f"storage.{key}: {value} needs a data directory; set node.data_dir")
        return
    for key in ("journal", "durability"):
        value = getattr(storage, key)
        if value != "auto" and (value == "memory") == keeps:
            raise ConfigError(f"storage.{key}: {value} is not supported with storage.engine: {storage.engine}")
