"""The store of a broker with a data directory: opens it, recovers it into an empty broker, and logs what was found."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from starlingmq.config.settings import Config
from starlingmq.core.broker import BrokerState
from starlingmq.storage.copies.copy_facts import forget_copies, read_facts
from starlingmq.storage.data_dir import DataDir
from starlingmq.storage.durable_store import DurableStore
from starlingmq.storage.journal import Journal
from starlingmq.storage.journal_writer import Durability
from starlingmq.storage.keys import META_AS_OF
from starlingmq.storage.recovery import restore
from starlingmq.storage.rocks.rocks_engines import RocksJournal, RocksKv
from starlingmq.storage.segment.retention import Retention
from starlingmq.storage.segment.segment_journal import SegmentJournal
from starlingmq.storage.segment.segment_sync import RecordsLost
from starlingmq.storage.streams.sequence_logs import sequenced
from starlingmq.storage.streams.stream_files import StreamDirectory, declare
from starlingmq.storage.streams.stream_logs import StreamLogs

log = logging.getLogger("starlingmq.storage")


class DirectoryStore(DurableStore):
    """A durable store and its data directory. ``engine`` of its journal; ``segment_size`` in bytes."""

    data_dir: DataDir
    stream_directory: StreamDirectory
    engine: str
    segment_size: int

    async def close(self) -> None:
        await super().close()
        self.data_dir.close()


def open_directory(config: Config, directory: str, state: BrokerState, clock: Callable[[], float]) -> DirectoryStore:
    """Open the store and fill ``state`` from it. Blocks, since nothing can be served before. With copies, streams may
    be read only after ``begin_copies``.

    Raises DataDirError for an unusable directory, StreamActionError for an invalid stream, OSError if the file system
    fails.
    """
    engine, durability = journal_engine(config), durability_of(config)
    data_dir = DataDir(Path(directory), {"journal": engine})
    opened: list[Callable[[], None]] = [data_dir.close]
    try:
        _prepare(data_dir)
        kv = RocksKv(data_dir.kv)
        at_least = int.from_bytes(kv.get(META_AS_OF) or b"\0", "big")
        opened.append(kv.close)
        journal = open_journal(engine, data_dir.journal, config.storage.segment_size, at_least)
        opened.append(journal.close)
        if durability == "power":
            make_safe(journal, data_dir.journal)
        stream_directory = StreamDirectory(data_dir.streams, config.storage.segment_size)
        streams = StreamLogs()
        opened.append(streams.close)
        for definition in declare(stream_directory, config.streams.define, time.time()):
            opened_log = stream_directory.open(definition)
            if definition.jetstream:
                sequenced(opened_log, state.ctx)
            streams.add(opened_log)
        retention = Retention(config.storage.retention_time, config.storage.retention_size)
        store = DirectoryStore(kv, journal, durability, clock, config.storage.segment_size, retention, streams)
        store.data_dir = data_dir
        store.stream_directory = stream_directory
        store.engine = engine
        store.segment_size = config.storage.segment_size
        state.ctx.record(True)
        started = clock()
        careful = durability == "power"
        copies = has_copies(config, directory)
        careful = careful or (copies and _is_copy(data_dir.path))
        if not copies:
            forget_copies(data_dir.path, kv)
        found = restore(state, kv, journal, streams, careful)
        if not copies:
            streams.show_all()
        for stream in streams.by_number.values():
            stream_directory.restored(stream)
        store.replayed(found.changes, found.changed)
        store.rewrite(found.ahead)
    except BaseException:
        for close in reversed(opened):
            close()
        raise
    for damage in _damage(kv, journal, streams):
        log.error("%s", damage)
    if found.lost:
        log.error("%d messages of sessions are lost, because their journal records are missing", found.lost)
    log.info(
        "recovered %d sessions and %d retained messages, replayed %d records in %.2f s",
        found.sessions,
        found.retained,
        found.replayed,
        clock() - started,
    )
    return store


def _prepare(data_dir: DataDir) -> None:
    """Log what opening has changed, and upgrade the directory before anything is written to it."""
    if data_dir.narrowed:
        log.warning(
            "%s: %d files were accessible to other users; their permissions are restricted now",
            data_dir.path,
            data_dir.narrowed,
        )
    if data_dir.upgrade():
        log.warning(
            "%s: is upgraded from an earlier version of starlingmq, which now refuses it; to go back, restore a "
            "backup from before",
            data_dir.path,
        )


def has_copies(config: Config, directory: str) -> bool:
    """Whether other nodes store copies of this directory, or may have stored some: then those are given up in order,
    since they must not be taken for whole ones later."""
    return config.cluster.enabled and (config.cluster.copies > 1 or read_facts(Path(directory)) is not None)


def _is_copy(path: Path) -> bool:
    """Whether it was written as a copy of another node's directory."""
    facts = read_facts(path)
    return facts is not None and facts.copied


def journal_engine(config: Config) -> str:
    return "segment" if config.storage.journal == "auto" else config.storage.journal


def durability_of(config: Config) -> Durability:
    return "process" if config.storage.durability == "auto" else config.storage.durability


def open_journal(engine: str, path: Path, segment_size: int, at_least: int) -> Journal:
    if engine == "rocksdb":
        return RocksJournal(path, at_least=at_least)
    return SegmentJournal(str(path), segment_bytes=segment_size, at_least=at_least)


def make_safe(journal: Journal, path: Path) -> None:
    """Sync what the last process left unsynced: the process may have died while the machine went on. This must precede
    any decision based on the journal; otherwise a message that another node sends again would be acknowledged as known,
    and a power failure could lose it.

    Raises OSError if the disk does not sync, since then nothing that was read is reliable.
    """
    try:
        journal.sync()
    except RecordsLost as error:
        log.error("%s", error)  # readers do not find these records from now on; all others are safe
    except OSError as error:
        reason = (
            f"fsync fails, but storage.durability: power needs it: {error.strerror}; use another disk or "
            "another durability"
        )
        raise OSError(error.errno, reason, str(path)) from error


def _damage(kv: RocksKv, journal: Journal, streams: StreamLogs) -> list[str]:
    """Damage that the engines found when they were opened, one sentence each."""
    found = [kv.damage] if kv.damage else []
    if isinstance(journal, SegmentJournal):
        found += [str(damage) for damage in journal.damage]
    elif isinstance(journal, RocksJournal) and journal.damage:
        found.append(journal.damage)
    for log in streams.by_number.values():
        if isinstance(log.journal, SegmentJournal):
            found += [str(damage) for damage in log.journal.damage]
    return found
