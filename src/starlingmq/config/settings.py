"""The one tree of settings: every key with its meaning, its default and its bounds.

Where a value comes from, later wins: the defaults below, the YAML file, the environment, ``--set``.

- A variable ``STARLINGMQ_MQTT__RETRY_INTERVAL=5s`` sets ``mqtt.retry_interval``: two underscores part the levels.
  Variables without them are settings only if they name a whole top-level key (``STARLINGMQ_LISTENERS``).
- ``--set mqtt.retry_interval=5s``; the value of either is read as YAML, so lists and booleans can be written too.

Nothing else in the package holds a default or checks a bound of a setting.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta, field

from starlingmq.config.api_section import API_SCHEMES, guarded
from starlingmq.config.auth_section import AuthConfig, check_auth, methods_of
from starlingmq.config.cluster_section import ClusterConfig, check_cluster, check_dialled, refuse_open_cluster
from starlingmq.config.groups_section import QueueGroupsConfig
from starlingmq.config.nats_section import NatsConfig, check_nats
from starlingmq.config.networks import parse_networks
from starlingmq.config.secret_masking import SECRET_URL, without_login
from starlingmq.config.section_types import (
    ConfigError,
    Count,
    Duration,
    PositiveDuration,
    PositiveSize,
    Seconds,
    Section,
    Size,
)
from starlingmq.config.streams_section import StreamsConfig, check_streams
from starlingmq.config.tls_section import TlsConfig, check_tls
from starlingmq.config.tracing_section import TracingConfig, check_tracing
from starlingmq.config.tree_builder import Tree, build, read_yaml, set_path, yaml_value

__all__ = [
    "AuthConfig",
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
NATS_SCHEMES: Final = ("nats", "tls", "nats+ws", "nats+wss")
HTTP_SCHEMES: Final = ("ws", "wss", "nats+ws", "nats+wss", *API_SCHEMES)  # connections that begin with HTTP
SCHEMES: Final = ("mqtt", "mqtts", "ws", "wss", "unix", *NATS_SCHEMES, *API_SCHEMES)
DEFAULT_LISTENER: Final = "mqtt://127.0.0.1:1883"
NO_SESSION_EXPIRY: Final = 0xFFFFFFFF


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
    shutdown_timeout: Annotated[
        Duration,
        Meta(description="Time limit of a graceful shutdown; the remaining connections are closed when it expires."),
    ] = 30.0
    event_loop: Annotated[
        Literal["auto", "uvloop", "asyncio"],
        Meta(description="Event loop to use; auto uses uvloop if it is installed."),
    ] = "auto"


class ListenerConfig(Section, frozen=True):
    url: Annotated[
        str,
        Meta(
            description="URL to listen on: mqtt://host:port, mqtts://host:port, ws://host:port/path, "
            "wss://host:port/path, unix:///path (MQTT), nats://host:port, tls://host:port, "
            "nats+ws://host:port, nats+wss://host:port (NATS), http://host:port or "
            "https://host:port (API and dashboard). Port 0 selects a free port.",
            extra=SECRET_URL,
        ),
    ]
    tls: Annotated[
        TlsConfig | None, Meta(description="Certificates of an mqtts, wss, tls, nats+wss or https listener.")
    ] = None
    max_connections: Annotated[
        Count,
        Meta(
            description="Maximum number of connections on this listener; 0 means that only "
            "limits.max_connections applies."
        ),
    ] = 0
    origins: Annotated[
        tuple[str, ...],
        Meta(
            description="Origins of web pages that may open a WebSocket on this listener, such as "
            "https://app.example.org. Empty: all. Clients that send no Origin header (not "
            "browsers) are always accepted."
        ),
    ] = ()
    proxy_protocol: Annotated[
        tuple[str, ...],
        Meta(
            description="Networks of load balancers that start each connection with a PROXY protocol header "
            "(v1 or v2), such as 10.0.0.0/8. If set, connections without the header or from "
            "other addresses are refused. Not available for http and unix listeners."
        ),
    ] = ()
    trusted_proxies: Annotated[
        tuple[str, ...],
        Meta(
            description="Networks of proxies whose X-Forwarded-For or Forwarded header names the client, for HTTP and "
            "WebSocket listeners, such as 10.0.0.0/8. Empty: these headers are ignored."
        ),
    ] = ()
    reuse_port: Annotated[
        bool,
        Meta(
            description="Whether other processes of the same user may listen on the same port "
            "(SO_REUSEPORT); the kernel distributes connections among them."
        ),
    ] = False
    advertise: Annotated[
        str,
        Meta(
            description="Address (host:port) given to clients of other nodes that are redirected to this "
            "node. Empty: the listening address; if that is a wildcard address, the host of "
            "cluster.advertise."
        ),
    ] = ""


class MqttConfig(Section, frozen=True):
    retry_interval: Annotated[
        Duration,
        Meta(
            description="Time after which unacknowledged QoS 1 and 2 packets are sent again to a 3.1 or "
            "3.1.1 client; 0 disables it."
        ),
    ] = 30.0
    max_inflight: Annotated[
        Count,
        Meta(
            le=65535,
            description="QoS 1 and 2 messages that may be in flight to a client; 0 leaves the limit to the protocol.",
        ),
    ] = 0
    max_mqueue_len: Annotated[
        Count,
        Meta(description="Messages queued for a client before the oldest is dropped; 0 sets no limit."),
    ] = 1000
    mqueue_store_qos0: Annotated[
        bool, Meta(description="Whether QoS 0 messages are queued as well for a disconnected or slow client.")
    ] = True
    max_awaiting_rel: Annotated[
        Count,
        Meta(
            le=65535,
            description="QoS 2 messages of a client that may wait for their PUBREL; 0 leaves the "
            "limit to the protocol.",
        ),
    ] = 0
    await_rel_timeout: Annotated[
        Duration,
        Meta(
            description="How long, while the client is connected, a QoS 2 message waits for its PUBREL and a "
            "completed one is remembered. While the client is disconnected, both are kept as "
            "long as its session."
        ),
    ] = 300.0
    unknown_pubrel: Annotated[
        Literal["close_once", "complete", "end_session"],
        Meta(
            description="Response to a PUBREL of a 3.1 or 3.1.1 client whose packet identifier no node "
            "knows. close_once: the connection is closed, the session is kept, and a repeated "
            "PUBREL gets PUBCOMP. complete: PUBCOMP at once. end_session: like close_once, but "
            "the session ends too, so session present = 0 reports the loss. Each case is counted "
            "and logged. MQTT 5 clients get PUBCOMP 0x92 instead."
        ),
    ] = "close_once"
    max_qos: Annotated[int, Meta(ge=0, le=2, description="Highest QoS that is accepted and granted.")] = 2
    retain_available: Annotated[bool, Meta(description="Whether clients may publish retained messages.")] = True
    wildcard_subscription: Annotated[bool, Meta(description="Whether filters may contain + and #.")] = True
    shared_subscription: Annotated[bool, Meta(description="Whether clients may subscribe to $share/group/filter.")] = (
        True
    )
    subscription_identifier: Annotated[
        bool, Meta(description="Whether subscriptions may carry a subscription identifier.")
    ] = True
    max_session_expiry: Annotated[
        Seconds,
        Meta(
            le=NO_SESSION_EXPIRY,
            description="Longest session expiry interval granted to an MQTT 5 client; 4294967295 sets no limit.",
        ),
    ] = NO_SESSION_EXPIRY
    session_expiry_v3: Annotated[
        Seconds,
        Meta(
            le=NO_SESSION_EXPIRY,
            description="Session expiry of 3.1 and 3.1.1 sessions with clean session = 0; 4294967295 means never.",
        ),
    ] = 7 * 86400
    server_keep_alive: Annotated[
        Seconds, Meta(le=65535, description="Keep-alive imposed on MQTT 5 clients; 0 accepts the client's value.")
    ] = 0
    max_keep_alive: Annotated[
        Seconds, Meta(le=65535, description="Longest keep-alive a client may request; 0 sets no limit.")
    ] = 0
    connect_timeout: Annotated[
        PositiveDuration, Meta(description="Time limit for a new connection to send its complete CONNECT.")
    ] = 10.0
    topic_alias_max: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description="Topic aliases per connection and direction; 0 allows none.",
        ),
    ] = 16
    response_information: Annotated[
        str,
        Meta(description="Topic prefix sent to clients that request response information. Empty: none is sent."),
    ] = ""
    server_reference: Annotated[
        str,
        Meta(description="Server reference sent to MQTT 5 clients at shutdown. Empty: none is sent."),
    ] = ""
    sys_interval: Annotated[
        Duration, Meta(description="Interval at which $SYS topics are published; 0 disables them.")
    ] = 10.0
    empty_client_id: Annotated[
        bool,
        Meta(
            description="Whether a client may connect with an empty client id and be assigned one. If "
            "not, it gets 0x85 (3.x: 2)."
        ),
    ] = True
    strict_client_id: Annotated[
        bool, Meta(description="Whether only client ids of 1 to 23 letters and digits are accepted.")
    ] = False
    retained_batch: Annotated[
        int,
        Meta(
            ge=1,
            description="Retained messages sent to a new subscription in one batch, before other "
            "clients get their turn.",
        ),
    ] = 500


class LimitsConfig(Section, frozen=True):
    max_packet_size: Annotated[
        PositiveSize, Meta(le=268_435_460, description="Largest packet a client may send, including its fixed header.")
    ] = 1024 * 1024
    write_buffer: Annotated[
        PositiveSize, Meta(description="Unsent bytes on a connection above which the client counts as slow.")
    ] = 1024 * 1024
    max_connections: Annotated[
        Count, Meta(description="Maximum number of connections on all listeners together; 0 sets no limit.")
    ] = 0
    connections_per_address: Annotated[
        Count,
        Meta(description="Maximum number of connections from one address, or one IPv6 network (/64); 0 sets no limit."),
    ] = 0
    connections_per_user: Annotated[
        Count,
        Meta(
            description="Maximum number of connections of one user name; 0 sets no limit. Anonymous "
            "clients are not limited."
        ),
    ] = 0
    connect_rate: Annotated[
        Count,
        Meta(
            description="CONNECT packets accepted per second on all listeners together; further ones "
            "are refused. 0 sets no limit."
        ),
    ] = 0
    message_rate: Annotated[
        Count,
        Meta(
            description="Messages read per second from one client; above it, reading from the client "
            "pauses. 0 sets no limit."
        ),
    ] = 0
    byte_rate: Annotated[
        Size,
        Meta(
            description="Bytes read per second from one client; above it, reading from the client "
            "pauses. 0 sets no limit."
        ),
    ] = 0
    sessions: Annotated[
        Count, Meta(description="Maximum number of sessions, including disconnected ones; 0 sets no limit.")
    ] = 0
    memory: Annotated[
        Size,
        Meta(description="Memory of the process above which new clients and messages are refused; 0 sets no limit."),
    ] = 0
    topic_levels: Annotated[int, Meta(ge=1, le=65535, description="Maximum number of levels of a topic or filter.")] = (
        256
    )
    max_topic_length: Annotated[
        int, Meta(ge=1, le=65535, description="Maximum size of a topic or filter in bytes.")
    ] = 65535
    subscriptions_per_client: Annotated[
        Count, Meta(description="Maximum number of subscriptions of a session; 0 sets no limit.")
    ] = 0
    client_id_length: Annotated[int, Meta(ge=1, le=65535, description="Maximum size of a client id in bytes.")] = 65535
    retained_messages: Annotated[Count, Meta(description="Maximum number of retained messages; 0 sets no limit.")] = 0
    retained_bytes: Annotated[
        Size,
        Meta(
            description="Maximum total size of the topics, payloads and properties of all retained "
            "messages; 0 sets no limit."
        ),
    ] = 0
    connect_size: Annotated[
        PositiveSize,
        Meta(
            description="Largest CONNECT, including its will. This bounds the memory that an "
            "unauthenticated client can use."
        ),
    ] = 256 * 1024
    hook_timeout: Annotated[
        PositiveDuration,
        Meta(description="Time limit of a hook; when it expires, the operation that waits for the hook is refused."),
    ] = 30.0
    queue_bytes: Annotated[
        Size,
        Meta(description="Bytes queued for a client before the oldest message is dropped; 0 sets no limit."),
    ] = 64 * 1024 * 1024
    publisher_hold: Annotated[
        Duration,
        Meta(description="How long a slow receiver delays its publishers before messages for it are dropped."),
    ] = 1.0
    producers: Annotated[
        Count,
        Meta(
            description="Maximum number of producers (such as Spark sink partitions) whose sequence "
            "numbers are remembered to detect duplicates."
        ),
    ] = 100_000
    producer_expiry: Annotated[
        PositiveDuration,
        Meta(
            description="How long the sequence number of an inactive producer is remembered. A batch may be "
            "repeated within this time."
        ),
    ] = 7 * 86400.0
    log_rate: Annotated[
        Count,
        Meta(
            description="Log lines per second for each reason; further lines are counted instead of "
            "written. 0 sets no limit."
        ),
    ] = 5


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


class LogConfig(Section, frozen=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Lowest severity that is logged.")
    ] = "info"
    format: Annotated[
        Literal["auto", "text", "json"],
        Meta(description="Format of log lines; auto is text on a terminal, otherwise JSON."),
    ] = "auto"


class Config(Section, frozen=True):
    """Everything that can be set. Immutable; ``Config()`` is the default broker on 127.0.0.1:1883."""

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
    tracing: Annotated[TracingConfig, Meta(description="OpenTelemetry tracing of messages.")] = TracingConfig()


def load_config(path: str | Path | None, overrides: Iterable[str] = (), env: Mapping[str, str] | None = None) -> Config:
    """The configuration from a YAML file (None: defaults only), the environment and ``key.path=value`` overrides.

    ``env`` is the environment to look into (None: none is read). Raises ConfigError with one line.
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


def _start(override: str) -> str:
    """As much of an override as may be shown: what follows could be a secret."""
    key = "".join(takewhile(lambda sign: sign.isalnum() or sign in "._", override))
    return key if key == override else f"{key}..."


def from_tree(tree: Tree) -> Config:
    """The configuration from plain dictionaries and lists, as YAML gives them. Raises ConfigError with one line."""
    listeners = tree.get("listeners")
    if listeners is not None:
        tree = {**tree, "listeners": _listener_sections(listeners)}
    config = build(Config, tree)
    _check_listeners(config)
    _check_storage(config)
    check_cluster(config.cluster, config.node.name)
    check_nats(config.nats)
    check_streams(config.streams, config.node.data_dir)
    check_auth(config.auth)
    check_tracing(config.tracing)
    return config


def refuse_open_listeners(config: Config, authenticated: bool) -> None:
    """Raise ConfigError for a listener that would let anyone on the network in without anybody having decided so.

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


def _refuse_open_api(config: Config) -> None:
    """Whoever may publish is not meant to administer: nothing but a token or a user opens the API to a network."""
    for index, listener in enumerate(config.listeners):
        if listener.url.partition("://")[0] not in API_SCHEMES or guarded(config.auth.api):
            continue
        if not is_local(listener.url):
            raise ConfigError(
                f"listeners[{index}]: {without_login(listener.url)} would let anyone who can reach it "
                "administer this broker; set auth.api.token_file or auth.api.users"
            )


def is_local(url: str) -> bool:
    """Whether only this machine can reach the listener. Host names other than localhost are not looked up: no."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return True
    host = parts.hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _keys_of_variable(name: str) -> list[str]:
    # A container platform may put STARLINGMQ_PORT_1883_TCP and the like into the environment of a service of that name,
    # and STARLINGMQ_PURE is ours: so a lone word counts only when it is a key of the tree.
    if not name.startswith(ENV_PREFIX):
        return []
    keys = name.removeprefix(ENV_PREFIX).lower().split("__")
    return keys if len(keys) > 1 or keys[0] in Config.__struct_fields__ else []


def _listener_sections(listeners: object) -> object:
    """A bare URL stands for a section with only a url, and a single listener for a list of one."""
    if not isinstance(listeners, list):
        listeners = [listeners]
    return [{"url": entry} if isinstance(entry, str) else entry for entry in listeners]


def _check_listeners(config: Config) -> None:
    for index, listener in enumerate(config.listeners):
        scheme, separator, rest = listener.url.partition("://")
        shown = without_login(listener.url)
        try:
            urlsplit(listener.url)
        except ValueError as error:
            raise ConfigError(f"listeners[{index}].url: {shown!r} is not a valid URL: {error}") from None
        if scheme not in SCHEMES or not separator or not rest:
            raise ConfigError(
                (
                    f"listeners[{index}].url: {shown!r} is not a listener URL, such as mqtt://127.0.0.1:1883; "
                    "it must start with one of "
                )
                + ", ".join(f"{known}://" for known in SCHEMES)
            )
        if scheme in ("mqtts", "wss", "tls", "nats+wss", "https") and listener.tls is None:
            raise ConfigError(f"listeners[{index}]: {shown} needs a tls section with at least cert")
        if listener.tls is not None:
            check_tls(listener.tls, f"listeners[{index}].tls")
        parse_networks(listener.trusted_proxies, f"listeners[{index}].trusted_proxies")
        parse_networks(listener.proxy_protocol, f"listeners[{index}].proxy_protocol")
        if listener.proxy_protocol and scheme in (*API_SCHEMES, "unix"):
            raise ConfigError(f"listeners[{index}].proxy_protocol: not supported by {scheme} listeners; remove it")
        if listener.trusted_proxies and scheme not in HTTP_SCHEMES:
            raise ConfigError(
                f"listeners[{index}].trusted_proxies: supported by HTTP and WebSocket listeners only; remove it"
            )
        if listener.advertise:
            check_dialled(listener.advertise, f"listeners[{index}].advertise")


def _check_storage(config: Config) -> None:
    storage = config.storage
    for key in ("retention_time", "retention_size"):
        if getattr(storage, key) and (config.node.data_dir is None or storage.journal not in ("auto", "segment")):
            raise ConfigError(
                f"storage.{key}: applies to segment files only; set node.data_dir, and storage.journal: segment"
            )
    if 0 < storage.retention_size < 2 * storage.segment_size:
        raise ConfigError(
            "storage.retention_size: must be at least twice storage.segment_size, because whole segment "
            "files are deleted"
        )
    keeps = storage.engine != "memory"
    if config.node.data_dir is None:
        for key in ("engine", "journal", "durability"):
            value = getattr(storage, key)
            if value not in ("auto", "memory"):
                raise ConfigError(f"storage.{key}: {value} needs a data directory; set node.data_dir")
        return
    for key in ("journal", "durability"):
        value = getattr(storage, key)
        if value != "auto" and (value == "memory") == keeps:
            raise ConfigError(f"storage.{key}: {value} is not supported with storage.engine: {storage.engine}")
