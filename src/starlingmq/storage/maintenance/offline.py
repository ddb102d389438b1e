"""Maintenance of a data directory that no broker has open: statistics, a check, compaction, a backup."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from starlingmq._version import __version__
from starlingmq.config.settings import load_config
from starlingmq.core.broker import BrokerState
from starlingmq.storage.data_dir import DataDir, DataDirError, read_layout
from starlingmq.storage.directory_store import DirectoryStore, open_journal
from starlingmq.storage.journal import Journal
from starlingmq.storage.keys import META_AS_OF
from starlingmq.storage.maintenance.storage_check import Report, check
from starlingmq.storage.maintenance.store_maintenance import (
    Action,
    Result,
    StoreMaintenance,
    back_up,
    plain_data,
    target_of,
)
from starlingmq.storage.opening import open_store
from starlingmq.storage.rocks.rocks_engines import RocksKv
from starlingmq.storage.segment.segment_journal import SEGMENT_BYTES
from starlingmq.storage.streams.stream_files import StreamDirectory


class Engines(NamedTuple):
    data: DataDir
    kv: RocksKv
    journal: Journal


def journal_engine(path: Path) -> str:
    """The journal engine of the directory. DataDirError if there is no data directory; nothing is created then."""
    try:
        text = (path / "LAYOUT").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        raise DataDirError(f"{path} is not a data directory") from None
    facts = read_layout(text, path)
    if facts is None or "journal" not in facts:
        raise DataDirError(f"{path}: LAYOUT is damaged; restore the directory from a backup")
    return facts["journal"]


@contextmanager
def opened(path: Path) -> Iterator[Engines]:
    """The engines without any look at what they hold, so that damage in it is no obstacle."""
    engine = journal_engine(path)
    data = DataDir(path, {"journal": engine})
    try:
        kv = RocksKv(data.kv)
        try:
            at_least = int.from_bytes(kv.get(META_AS_OF) or b"\0", "big")
            journal = open_journal(engine, data.journal, SEGMENT_BYTES, at_least)
            try:
                yield Engines(data, kv, journal)
            finally:
                journal.close()
        finally:
            kv.close()
    finally:
        data.close()


def actions(path: Path) -> dict[str, Action]:
    """The same as ``StoreMaintenance.actions``. Each action opens the directory, and closes it again."""

    async def check_all(report: Report, _: dict[str, str]) -> Result:
        with opened(path) as engines:
            streams = StreamDirectory(engines.data.streams, SEGMENT_BYTES)
            logs = [streams.open(definition) for definition in streams.find()]
            try:
                return plain_data(check(engines.kv, engines.journal, report, [log.journal for log in logs]))
            finally:
                for log in logs:
                    log.close()

    async def backup(report: Report, arguments: dict[str, str]) -> Result:
        target = target_of(arguments)
        with opened(path) as engines:
            return plain_data(back_up(*engines, target, lambda done, total: report("copying", done, total, "bytes")))

    async def stats(report: Report, _: dict[str, str]) -> Result:
        store, state = _store(path)
        try:
            return plain_data(await StoreMaintenance(store, state, serving=False).stats())
        finally:
            await store.close()

    async def compact(report: Report, _: dict[str, str]) -> Result:
        store, state = _store(path)
        store.attach(state, lambda: None)
        try:
            return plain_data(await StoreMaintenance(store, state, serving=False).compact(report))
        finally:
            await store.close()

    return {"storage.check": check_all, "storage.stats": stats, "storage.compact": compact, "backup": backup}


def _store(path: Path) -> tuple[DirectoryStore, BrokerState]:
    """Recover the state as a broker does at its start, without serving."""
    settings = [f"node.data_dir={json.dumps(str(path))}", f"storage.journal={journal_engine(path)}"]
    config = load_config(None, settings)
    state = BrokerState(config.mqtt, config.limits, time.time(), secrets.token_bytes(32), __version__)
    store = open_store(config, state, time.time)
    assert isinstance(store, DirectoryStore)
    return store, state
