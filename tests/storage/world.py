"""A broker without a network whose store survives it: crash it at will, and go on with what the store holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from tests.harness import World
from tests.storage.memory_engine import MemoryJournal, MemoryKv

from starlingmq.config.settings import LimitsConfig, MqttConfig
from starlingmq.core.broker import BrokerState
from starlingmq.core.context.ready import Ready
from starlingmq.storage.durable_store import PIECE, DurableStore
from starlingmq.storage.journal import Journal
from starlingmq.storage.journal_writer import Durability
from starlingmq.storage.kv import Kv
from starlingmq.storage.recovery import Recovered, restore
from starlingmq.storage.storage_thread import StorageThread
from starlingmq.storage.streams.stream_tidying import StreamTidying


class SteadyThread(StorageThread):
    """The steps of a checkpoint that are done beside the event loop are done at once."""

    def run(self, call: Callable[[], None]) -> Iterator[None]:
        call()
        yield


class Weighing(StreamTidying):
    """Streams are weighed, and keep what they have."""

    def look(self) -> None:
        self.streams.weigh()


class SteadyStore(DurableStore):
    """The store, with everything that is done beside the event loop done at once."""

    def __init__(
        self,
        kv: Kv,
        journal: Journal,
        durability: Durability,
        clock: Callable[[], float],
        checkpoint_bytes: int,
        piece: int = PIECE,
    ) -> None:
        super().__init__(kv, journal, durability, clock, checkpoint_bytes, piece=piece, thread=SteadyThread())
        self.tidying = Weighing(self.streams, self.thread, self.clock)


class StoredWorld(World):
    """``restart`` crashes the broker (connected clients are cut off) and starts another one on the same store."""

    def __init__(self, kv: Kv | None = None, journal: Journal | None = None, **settings: Any) -> None:
        self.kv = kv or MemoryKv()
        self.journal = journal or MemoryJournal()
        self.checkpoint_bytes = settings.pop("checkpoint_bytes", 1 << 30)
        self.settings = dict(settings)
        self.recovered = Recovered()
        super().__init__(**settings)
        self._open_store()

    def _open_store(self) -> None:
        self.store = SteadyStore(self.kv, self.journal, "process", lambda: self.now, self.checkpoint_bytes)
        self.state.ctx.recording = True
        self.store.attach(self.state, lambda: None)
        self.recovered = restore(self.state, self.kv, self.journal)
        self.store.replayed(self.recovered.changes, self.recovered.changed)

    def restart(self) -> None:
        mqtt = {name: value for name, value in self.settings.items() if name in MqttConfig.__struct_fields__}
        limits = {name: value for name, value in self.settings.items() if name in LimitsConfig.__struct_fields__}
        mqtt.setdefault("sys_interval", 0.0)
        self.state = BrokerState(
            msgspec.convert(mqtt, MqttConfig), msgspec.convert(limits, LimitsConfig), self.now, b"s" * 32, "test"
        )
        self.clients = []
        self._by_client = {}
        self._open_store()
        self.run()

    def carry_out(self, ready: Ready) -> None:
        if ready.writes:
            assert self.store.commit(ready.writes) is None
        super().carry_out(ready)
        self.state.stored(ready)
        for session in ready.reads:
            self.state.loaded(session, self.store.load(self.state.wanted(session)), self.now)
        while self.store.maintain():
            pass

    def checkpoint(self) -> None:
        """Write a checkpoint now."""
        self.store.checkpointer.checkpoint_bytes = 0
        try:
            while self.store.maintain():
                pass
        finally:
            self.store.checkpointer.checkpoint_bytes = self.checkpoint_bytes
