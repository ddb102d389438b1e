"""The tree of settings: each key with its meaning, default and bounds.

Most sections have their own file in this package. A value comes from the defaults, the YAML file, the environment or
``--set``; the later in this order wins.

- A variable ``STARLINGMQ_MQTT__RETRY_INTERVAL=5s`` sets ``mqtt.retry_interval``: two underscores separate the levels.
  Variables without them are settings only if they name a whole top-level key (``STARLINGMQ_LISTENERS``).
- ``--set mqtt.retry_interval=5s``. The value of either is read as YAML, so lists and booleans can be written, too.

Nothing outside `config` has a default or checks a bound of a setting.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, field

from starlingmq.config.alarms_section import AlarmsConfig, check_alarms
from starlingmq.config.api_section import API_SCHEMES, guarded
from starlingmq.config.auth_section import AuthConfig, check_auth, methods_of
from starlingmq.config.bridges_section import BridgeConfig, check_bridges
from starlingmq.config.cluster_section import ClusterConfig, check_cluster, refuse_open_cluster
from starlingmq.config.contracts_section import ContractConfig, check_contracts
from starlingmq.config.groups_section import QueueGroupsConfig
from starlingmq.config.limits_section import LimitsConfig
from starlingmq.config.links_section import LinkConfig, check_links, lanes_of
from starlingmq.config.listeners_section import (
    DEFAULT_LISTENER,
    NATS_SCHEMES,
    ListenerConfig,
    check_listeners,
    listener_sections,
)
from starlingmq.config.mqtt_section import MqttConfig
from starlingmq.config.nats_section import NatsConfig, check_nats
from starlingmq.config.networks import is_local
from starlingmq.config.rules_section import EVENTS, RuleConfig, check_rules, lane_of
from starlingmq.config.secret_masking import masked_setting, without_login
from starlingmq.config.section_types import ConfigError, Duration, Section
from starlingmq.config.storage_section import StorageConfig, check_storage
from starlingmq.config.streams_section import StreamsConfig, check_streams
from starlingmq.config.tls_section import TlsConfig
from starlingmq.config.tracing_section import TracingConfig, check_tracing
from starlingmq.config.tree_builder import Tree, build, read_yaml, set_path, settings, yaml_value

__all__ = [
    "AuthConfig",
    "BridgeConfig",
    "ClusterConfig",
    "Config",
    "ConfigError",
    "LimitsConfig",
    "ListenerConfig",
    "LogConfig",
    "MqttConfig",
    "NatsConfig",
    "NodeConfig",
    "QueueGroupsConfig",
    "StorageConfig",
    "StreamsConfig",
    "TlsConfig",
    "TracingConfig",
    "load_config",
    "refuse_open_listeners",
]

ENV_PREFIX: Final = "STARLINGMQ_"


def _default_name() -> str:
    return f"starling@{socket.gethostname()}"


class NodeConfig(Section, frozen=True):
    name: Annotated[
        str,
        Meta(
            min_length=1,
            description="Unique name of this node. Default: starling@ followed by the host name.",
        ),
    ] = field(default_factory=_default_name)
    data_dir: Annotated[
        str | None, Meta(description="Directory for all persistent data. Empty: nothing is stored on disk.")
    ] = None
    zone: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9._-]{0,128}(?!\n)$",
            description="Rack, zone or site of this node. Copies are stored in different zones first. Empty: all nodes "
            "are in one zone.",
        ),
    ] = ""
    shutdown_timeout: Annotated[
        Duration,
        Meta(
            description="Time limit of a graceful shutdown. Sessions that are not handed over by then stay on disk, "
            "and the remaining connections are closed. The default fits docker stop, which kills after 10 s."
        ),
    ] = 7.0
    event_loop: Annotated[
        Literal["auto", "epoll", "uvloop", "asyncio"],
        Meta(
            description="Event loop to use. epoll (Linux) serves the TCP, TLS and Unix sockets of clients itself; "
            "uvloop is better for secure WebSockets and NATS with TLS. auto: epoll if there is no such listener "
            "(wss, tls, nats+wss), else uvloop if it is installed, else asyncio."
        ),
    ] = "auto"


class LogConfig(Section, frozen=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Lowest severity that is logged.")
    ] = "info"
    format: Annotated[
        Literal["auto", "text", "json"],
        Meta(description="Format of log lines; auto is text on a terminal, otherwise JSON."),
    ] = "auto"
    connections: Annotated[
        bool,
        Meta(
            description="Log each client that connects or disconnects (level info), at most limits.log_rate lines per "
            "second of each kind; further ones are counted."
        ),
    ] = False


class Config(Section, frozen=True):
    """All settings. Immutable; ``Config()`` is the default broker on 127.0.0.1:1883."""

    node: Annotated[NodeConfig, Meta(description="This process and its files.")] = NodeConfig()
    listeners: Annotated[
        tuple[ListenerConfig, ...], Meta(description="Addresses that clients connect to: URLs, or sections with a url.")
    ] = (ListenerConfig(url=DEFAULT_LISTENER),)
    mqtt: Annotated[MqttConfig, Meta(description="MQTT features and timers.")] = MqttConfig()
    nats: Annotated[NatsConfig, Meta(description="NATS features and timers.")] = NatsConfig()
    limits: Annotated[LimitsConfig, Meta(description="Limits on everything that a client can make grow.")] = (
        LimitsConfig()
    )
    auth: Annotated[AuthConfig, Meta(description="Authentication and authorization.")] = AuthConfig()
    storage: Annotated[StorageConfig, Meta(description="Storage and durability.")] = StorageConfig()
    log: Annotated[LogConfig, Meta(description="Log lines, which are written to stderr.")] = LogConfig()
    cluster: Annotated[ClusterConfig, Meta(description="Membership in a cluster.")] = ClusterConfig()
    queue_groups: Annotated[
        QueueGroupsConfig, Meta(description="How the members of a shared subscription or queue group share messages.")
    ] = QueueGroupsConfig()
    streams: Annotated[
        StreamsConfig,
        Meta(description="Streams, which keep messages for bulk readers, and the address where they are read."),
    ] = StreamsConfig()
    bridges: Annotated[
        tuple[BridgeConfig, ...], Meta(description="Other brokers that messages are exchanged with.")
    ] = ()
    links: Annotated[
        tuple[LinkConfig, ...],
        Meta(description="Other sites of StarlingMQ that messages are exchanged with, each exactly once."),
    ] = ()
    contracts: Annotated[
        tuple[ContractConfig, ...], Meta(description="The form of payloads, checked when they are published.")
    ] = ()
    rules: Annotated[
        tuple[RuleConfig, ...],
        Meta(description="Rules: SQL over messages as they arrive, and a sink for its rows."),
    ] = ()
    tracing: Annotated[TracingConfig, Meta(description="OpenTelemetry tracing of messages.")] = TracingConfig()
    alarms: Annotated[AlarmsConfig, Meta(description="Thresholds of alarms, and the address that is told.")] = (
        AlarmsConfig()
    )


def load_config(path: str | Path | None, overrides: Iterable[str] = (), env: Mapping[str, str] | None = None) -> Config:
    """The configuration from a YAML file (None: defaults only), the environment and ``key.path=value`` overrides.

    ``env`` is the environment to read (None: none is read). Raises ConfigError with one line.
    """
    tree: Tree = {} if path is None else read_yaml(path)
    for name, text in sorted((env or {}).items()):
        keys = _keys_of_variable(name)
        if keys:
            set_path(tree, keys, yaml_value(text, name))
    for override in overrides:
        key_path, equals, text = override.partition("=")
        if not equals or not key_path:
            raise ConfigError(f"--set {_start(override)}: expected key.path=value")
        set_path(tree, key_path.strip().split("."), yaml_value(text, key_path))
    return from_tree(tree)


def reveals(override: str) -> bool:
    """Whether a ``key.path=value`` contains a secret."""
    key_path, _, text = override.partition("=")
    tree: Tree = {}
    keys = key_path.strip().split(".")
    try:
        set_path(tree, keys, yaml_value(text, key_path))
        config = build(Config, _with_sections(tree))
    except ConfigError:
        return False  # the broker does not start with it
    return bool(masked_setting(config, keys[0]) != getattr(config, keys[0]))


def exposed_secrets(overrides: Iterable[str]) -> list[str]:
    """A warning for each override of a command line that contains a secret."""
    found = []
    for path in (override.partition("=")[0].strip() for override in overrides if reveals(override)):
        variable = ENV_PREFIX + path.upper().replace(".", "__")
        file = f" or {path}_file" if any(setting.path == f"{path}_file" for setting in settings(Config)) else ""
        found.append(
            f"the command line has the secret of {path}, and every account of this machine can read it in the list "
            f"of processes; use the variable {variable}{file}, or a settings file"
        )
    return found


def _start(override: str) -> str:
    """The part of an override that may be shown: the rest could be a secret."""
    key = "".join(takewhile(lambda sign: sign.isalnum() or sign in "._", override))
    return key if key == override else f"{key}..."


def carried(config: Config) -> list[BridgeConfig]:
    """The bridges, the lanes of all links, and the rules: each has a session."""
    return [*config.bridges, *(lane for link in config.links for lane in lanes_of(link)), *map(lane_of, config.rules)]


def wants_events(config: Config) -> bool:
    """Whether the events of messages are to be published, beside those that a stream keeps."""
    filters = (filter for rule in config.rules for filter in rule.source.topics)
    return config.streams.events or any(filter.startswith(EVENTS) for filter in filters)


def from_tree(tree: Tree) -> Config:
    """The configuration from plain dictionaries and lists, as YAML gives them. Raises ConfigError with one line."""
    return checked(build(Config, _with_sections(tree)))


def _with_sections(tree: Tree) -> Tree:
    """The tree with a section for each listener."""
    listeners = tree.get("listeners")
    return tree if listeners is None else {**tree, "listeners": listener_sections(listeners)}


def checked(config: Config) -> Config:
    """The same configuration. Raises ConfigError if settings contradict each other."""
    check_listeners(config.listeners)
    check_storage(config.storage, config.node.data_dir)
    check_cluster(config.cluster, config.node.name, config.node.data_dir)
    check_nats(config.nats)
    check_streams(config.streams, config.node.data_dir)
    check_bridges(config.bridges)
    check_links(config.links, config.bridges)
    check_contracts(config.contracts)
    check_rules(config.rules)
    if config.links and config.mqtt.max_qos != 2:
        raise ConfigError("mqtt.max_qos: links need QoS 2; set 2, or use bridges")
    if config.cluster.enabled and any(bridge.follow.database for bridge in config.bridges):
        raise ConfigError(
            "bridges[].follow.database: works for a single broker; move the clients before it is a cluster"
        )
    check_auth(config.auth)
    check_tracing(config.tracing)
    check_alarms(config.alarms)
    return config


def _keys_of_variable(name: str) -> list[str]:
    # A container platform may set STARLINGMQ_PORT_1883_TCP and the like for a service of that name, and
    # STARLINGMQ_PURE selects interpreted code: so a single word counts only if it is a key of the tree.
    if not name.startswith(ENV_PREFIX):
        return []
    keys = name.removeprefix(ENV_PREFIX).lower().split("__")
    return keys if len(keys) > 1 or keys[0] in Config.__struct_fields__ else []


def misspelled_variables(env: Mapping[str, str]) -> list[tuple[str, str]]:
    """Variables that are ignored because one underscore separates their levels, each with the right name."""
    others = [name for name in env if name.startswith(ENV_PREFIX) and not _keys_of_variable(name)]
    if not others:
        return []
    paths = [setting.path.upper() for setting in settings(Config)]
    right = {path.replace(".", "_"): path.replace(".", "__") for path in paths if "." in path}
    found = [(name, right.get(name.removeprefix(ENV_PREFIX), "")) for name in others]
    return [(name, ENV_PREFIX + meant) for name, meant in found if meant]


def refuse_open_listeners(config: Config, authenticated: bool) -> None:
    """Raises ConfigError for a listener that would admit anyone on the network although no setting says so.

    ``authenticated``: something (a hook, a password file) decides who may connect.
    """
    refuse_open_cluster(config.cluster)
    _refuse_open_api(config)
    if authenticated or config.auth.allow_anonymous is not None or methods_of(config.auth):
        return
    for index, listener in enumerate(config.listeners):
        if listener.url.partition("://")[0] in API_SCHEMES:
            continue
        if (config.nats.nkeys or config.nats.token_file) and listener.url.partition("://")[0] in NATS_SCHEMES:
            continue
        requires_certificate = listener.tls is not None and listener.tls.require_client_cert
        if not requires_certificate and not is_local(listener.url):
            raise ConfigError(
                f"listeners[{index}]: {without_login(listener.url)} would accept anyone who can reach it; "
                "set up authentication, or set auth.allow_anonymous: true if this is intended"
            )


def has_logins(config: Config) -> bool:
    """Whether clients of MQTT or NATS have to log in, or may."""
    certificates = any(each.tls is not None and each.tls.require_client_cert for each in config.listeners)
    return bool(certificates or methods_of(config.auth) or config.nats.nkeys or config.nats.token_file)


def serves_http(config: Config) -> bool:
    return any(each.url.partition("://")[0] in API_SCHEMES for each in config.listeners)


def _refuse_open_api(config: Config) -> None:
    """A client that may publish is not meant to administer: only a token or a user opens the API to a network."""
    for index, listener in enumerate(config.listeners):
        if listener.url.partition("://")[0] not in API_SCHEMES or guarded(config.auth.api):
            continue
        if not is_local(listener.url):
            raise ConfigError(
                f"listeners[{index}]: {without_login(listener.url)} would let anyone who can reach it "
                "administer this broker; set auth.api.token_file or auth.api.users"
            )
