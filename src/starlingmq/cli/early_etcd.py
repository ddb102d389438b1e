"""The own etcd of a node that starts again: it runs while the rest of the broker is still being imported.

etcd needs a few tenths of a second until it answers, and so do the imports. Only a node whose etcd has run before does
this: a new one becomes a member of etcd, which it must not before everything else that can refuse the start.
"""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlingmq.config.settings import Config, refuse_open_listeners

if TYPE_CHECKING:
    from starlingmq.net.etcd.etcd_access import EtcdAccess

MODULES: Final = ("starlingmq.node.node_process", "starlingmq.net.peers.cluster_shell")
"""The largest modules that a node of a cluster imports."""


async def begin_etcd(config: Config) -> EtcdAccess | None:
    """The etcd of this node, which has begun to start, when ``MODULES`` are imported; None: there is none, or it has
    never run. Raises DataDirError, ConfigError, OSError."""
    directory = config.node.data_dir
    if not config.cluster.enabled or config.cluster.etcd.endpoints or directory is None:
        return None
    if not (Path(directory) / "LAYOUT").exists():
        return None
    from starlingmq.log import set_up_logging
    from starlingmq.net.etcd.etcd_access import EtcdAccess
    from starlingmq.storage.copies.copy_facts import refuse_data_of_another
    from starlingmq.storage.data_dir import DataDir

    etcd = EtcdAccess(config)
    if not etcd.has_run():
        return None
    refuse_open_listeners(config, authenticated=False)
    refuse_data_of_another(Path(directory), config.node.name)
    DataDir(Path(directory), {}).close()  # no other process works there
    set_up_logging(config.log, config.node.name)
    etcd.begin()
    try:
        for module in MODULES:
            await asyncio.to_thread(importlib.import_module, module)
    except BaseException:
        await etcd.stop()
        raise
    return etcd
