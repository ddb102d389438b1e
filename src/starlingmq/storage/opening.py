"""The store that the settings ask for. RocksDB and all that stores, 10 MB of memory, is loaded for a data directory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from starlingmq.config.settings import Config
from starlingmq.core.broker import BrokerState
from starlingmq.storage.store import NoStore, Store

if TYPE_CHECKING:
    from starlingmq.storage.directory_store import DirectoryStore


def open_store(config: Config, state: BrokerState, clock: Callable[[], float]) -> Store:
    """Open the data directory, if there is one, and fill ``state`` from it. Blocks, since nothing can be served before.

    Raises what ``directory_store.open_directory`` raises.
    """
    if config.node.data_dir is None or config.storage.engine == "memory":
        return NoStore()
    from starlingmq.storage.directory_store import open_directory

    return open_directory(config, config.node.data_dir, state, clock)


def directory_of(store: Store) -> DirectoryStore | None:
    """The store itself if it has a data directory; None if it stores nothing."""
    if isinstance(store, NoStore):
        return None
    from starlingmq.storage.directory_store import DirectoryStore

    return store if isinstance(store, DirectoryStore) else None
