"""The core of a node, as the settings and the hooks of the program say."""

from __future__ import annotations

import os

from starlingmq._version import __version__
from starlingmq.auth.access_control import AccessControl
from starlingmq.config.settings import Config, wants_events
from starlingmq.core.broker import BrokerState
from starlingmq.core.publish.bridges import bounds_of, holding_of, site_of
from starlingmq.core.router.contract import Contract
from starlingmq.hooks import Hooks, OnEvent
from starlingmq.node.connection_log import NoticeLog


def contracts_in(config: Config) -> list[Contract]:
    """Raises ConfigError."""
    if not config.contracts:
        return []
    from starlingmq.rules.contracts import contracts_of

    return contracts_of(config.contracts)


def new_state(config: Config, hooks: Hooks, access: AccessControl, now: float) -> BrokerState:
    state = BrokerState(config.mqtt, config.limits, now, os.urandom(32), __version__, config.nats, config.queue_groups)
    state.nats.info.server_name = config.node.name
    state.nats.info.cluster = config.cluster.name if config.cluster.enabled else ""
    state.audit.node = config.node.name
    state.audit.asked = wants_events(config)
    state.router.use_contracts(contracts_in(config))
    state.publishing.producers.node = config.node.name
    state.publishing.producers.shared = any(listener.reuse_port for listener in config.listeners)
    state.nats.keys.verify = access.verifier(config)
    access.admit(state, config)
    state.ctx.bridge(site_of(config), bounds_of(config), holding_of(config))
    publishing = hooks.authorize is not None or hooks.on_publish is not None
    wanted = hooks.on_event is not None or config.log.connections
    state.ctx.use_hooks(publishing, hooks.authorize is not None, wanted)
    return state


def event_listener(config: Config, hooks: Hooks, notices: NoticeLog) -> OnEvent | None:
    """The hook of the program, before it the log of connections if that is wanted."""
    if not config.log.connections:
        return hooks.on_event
    from starlingmq.node.connection_log import ConnectionLog

    return ConnectionLog(notices, hooks.on_event).event
