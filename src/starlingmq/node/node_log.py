"""The lines that a node logs about itself: at its start, when it serves, and at its end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic

from starlingmq._version import __version__
from starlingmq.config.secret_masking import without_login
from starlingmq.config.settings import Config
from starlingmq.core.broker import BrokerState
from starlingmq.core.reports.session_totals import of_clients

log = logging.getLogger("starlingmq")


class NodeLog:
    """``settings_file``: "" if there is none."""

    def __init__(self, config: Config, settings_file: str) -> None:
        self._config = config
        self._settings_file = settings_file
        self._began = monotonic()
        self._serving = False
        self._stopping = False

    def starts(self) -> None:
        file = f"settings file {self._settings_file}" if self._settings_file else "no settings file"
        name = self._config.node.name
        log.info("StarlingMQ %s starts: node %s, %s, %s", __version__, name, file, durability(self._config))

    def serves(self, addresses: Sequence[str]) -> None:
        self._serving = True
        log.info("serving %s", " ".join(map(without_login, addresses)) or "no listeners")

    def stops(self) -> None:
        if self._serving and not self._stopping:
            self._stopping = True
            log.info("stopping")

    def ended(self, state: BrokerState) -> None:
        """Everything is stored and closed. May be called again."""
        if not self._serving:
            return
        self._serving = False
        counters = state.ctx.counters
        log.info(
            "stopped after %.1f s: %d connections accepted, %d messages received, %d sent, %d sessions kept on disk",
            monotonic() - self._began,
            counters.connections_opened,
            counters.publish_received,
            counters.publish_sent,
            sum(1 for session in state.ctx.sessions.values() if of_clients(session) and session.kept),
        )


def durability(config: Config) -> str:
    """Where data is stored, and the failures that it survives."""
    if config.node.data_dir is None:
        return "nothing is stored on disk (node.data_dir is not set)"
    chosen = config.storage.durability
    if config.storage.engine == "memory":
        return f"nothing is stored in {config.node.data_dir} (storage.engine is memory)"
    return f"data directory {config.node.data_dir}, durability {'process' if chosen == 'auto' else chosen}"
