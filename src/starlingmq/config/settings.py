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
from starlingmq.config.secret_masking import SECRET, SECRET_URL, without_login
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
            description="Unique name of this node; by default starling@ and the host name.",
        ),
    ] = field(default_factory=_default_name)
    data_dir: Annotated[
        str | None, Meta(description="Directory for everything that outlives the process; none keeps nothing.")
    ] = None
    shutdown_timeout: Annotated[
        Duration, Meta(description="How long a graceful shutdown may take before the remaining connections are cut.")
    ] = 30.0
    event_loop: Annotated[
        Literal["auto", "uvloop", "asyncio"],
        Meta(description="Event loop to run on; auto takes uvloop where there is one."),
    ] = "auto"


class TlsConfig(Section, frozen=True):
    cert: Annotated[str, Meta(min_length=1, description="PEM file with the certificate chain of the listener.")]
    key: Annotated[
        str | None, Meta(description="PEM file with the private key; by default it is read from the certificate file.")
    ] = None
    key_password: Annotated[str | None, Meta(description="Password of an encrypted private key.", extra=SECRET)] = None
    ca: Annotated[
        str | None, Meta(description="PEM file with the authorities that client certificates are checked against.")
    ] = None
    crl: Annotated[
        tuple[str, ...],
        Meta(
            description="PEM files with revocation lists, one of each authority that issues client certificates; "
            "revoked ones are refused. Read again at a reload, which also disconnects their clients."
        ),
    ] = ()
    require_client_cert: Annotated[
        bool, Meta(description="Whether a client without a certificate from one of those authorities is refused.")
    ] = False
    use_identity_as_username: Annotated[
        bool, Meta(description="Whether the common name of the client certificate stands in for the user name.")
    ] = False
    min_version: Annotated[Literal["1.2", "1.3"], Meta(description="Lowest TLS version that is accepted.")] = "1.2"


class ListenerConfig(Section, frozen=True):
    url: Annotated[
        str,
        Meta(
            description="Where to listen: mqtt://host:port, mqtts://host:port, ws://host:port/path, "
            "wss://host:port/path, unix:///path, nats://host:port, tls://host:port, nats+ws://host:port, "
            "nats+wss://host:port (NATS), http://host:port or https://host:port (API and dashboard); "
            "port 0 takes a free one.",
            extra=SECRET_URL,
        ),
    ]
    tls: Annotated[
        TlsConfig | None, Meta(description="Certificates of an mqtts, wss, tls, nats+wss, https listener.")
    ] = None
    max_connections: Annotated[
        Count, Meta(description="Connections this listener holds at once; 0 means only limits.max_connections counts.")
    ] = 0
    origins: Annotated[
        tuple[str, ...],
        Meta(
            description="Whose pages may open a WebSocket here, as https://app.example.org; all without. What is no "
            "page in a browser names no origin, and is let in."
        ),
    ] = ()
    proxy_protocol: Annotated[
        tuple[str, ...],
        Meta(
            description="Networks of load balancers that begin each connection with a PROXY protocol header (v1, v2), "
            "as 10.0.0.0/8. If set, connections without it or from elsewhere are refused. Not for http and unix."
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
        Meta(description="Whether other processes of the user may listen there too; the system picks who serves."),
    ] = False
    advertise: Annotated[
        str,
        Meta(
            description="Where clients of other nodes are told to go when they are to come here, host:port; empty is "
            "what is listened on, with the host of cluster.advertise where that is every address."
        ),
    ] = ""


class MqttConfig(Section, frozen=True):
    retry_interval: Annotated[
        Duration,
        Meta(description="When unanswered QoS 1 and 2 packets are sent again to a 3.1 or 3.1.1 client; 0 never."),
    ] = 30.0
    max_inflight: Annotated[
        Count,
        Meta(
            le=65535,
            description="QoS 1 and 2 messages a client may leave unacknowledged; 0 leaves it to the protocol.",
        ),
    ] = 0
    max_mqueue_len: Annotated[
        Count,
        Meta(description="Messages that wait for a client before the oldest is dropped; 0 sets no limit."),
    ] = 1000
    mqueue_store_qos0: Annotated[
        bool, Meta(description="Whether QoS 0 messages too are queued for a client that is away or slow.")
    ] = True
    max_awaiting_rel: Annotated[
        Count,
        Meta(le=65535, description="QoS 2 messages a client may have open before PUBREL; 0 leaves it to the protocol."),
    ] = 0
    await_rel_timeout: Annotated[
        Duration,
        Meta(
            description="How long a QoS 2 message waits for its PUBREL, and a completed one is remembered, while the "
            "client is connected. While it is away, both are kept as long as its session."
        ),
    ] = 300.0
    unknown_pubrel: Annotated[
        Literal["close_once", "complete", "end_session"],
        Meta(
            description="Answer to a PUBREL that no node knows, of a 3.1 or 3.1.1 client. close_once: the connection "
            "is closed, the session stays, and the same PUBREL again gets PUBCOMP. complete: PUBCOMP at once. "
            "end_session: as close_once, but the session ends too, so session present tells of the loss. Each is "
            "counted and logged. MQTT 5 clients get PUBCOMP 0x92 instead."
        ),
    ] = "close_once"
    max_qos: Annotated[int, Meta(ge=0, le=2, description="Highest QoS that is accepted and granted.")] = 2
    retain_available: Annotated[bool, Meta(description="Whether clients may publish retained messages.")] = True
    wildcard_subscription: Annotated[bool, Meta(description="Whether filters may contain + and #.")] = True
    shared_subscription: Annotated[bool, Meta(description="Whether $share/group/filter may be subscribed to.")] = True
    subscription_identifier: Annotated[bool, Meta(description="Whether subscriptions may carry an identifier.")] = True
    max_session_expiry: Annotated[
        Seconds,
        Meta(
            le=NO_SESSION_EXPIRY,
            description="Longest session expiry granted to an MQTT 5 client; 4294967295 sets no limit.",
        ),
    ] = NO_SESSION_EXPIRY
    session_expiry_v3: Annotated[
        Seconds,
        Meta(
            le=NO_SESSION_EXPIRY,
            description="How long a 3.1 or 3.1.1 session that is not clean is kept; 4294967295 for ever.",
        ),
    ] = 7 * 86400
    server_keep_alive: Annotated[
        Seconds, Meta(le=65535, description="Keep-alive imposed on MQTT 5 clients; 0 accepts what the client asks for.")
    ] = 0
    max_keep_alive: Annotated[
        Seconds, Meta(le=65535, description="Longest keep-alive a client may ask for; 0 sets no limit.")
    ] = 0
    connect_timeout: Annotated[
        PositiveDuration, Meta(description="How long a new connection may take until its CONNECT is complete.")
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
        Meta(description="Topic prefix for clients that ask for response information; empty tells none."),
    ] = ""
    server_reference: Annotated[
        str,
        Meta(description="Server that MQTT 5 clients are sent to at shutdown; empty names none."),
    ] = ""
    sys_interval: Annotated[Duration, Meta(description="How often $SYS topics are published; 0 never.")] = 10.0
    empty_client_id: Annotated[
        bool, Meta(description="Whether a client may leave its client id to the broker; if not, it gets 0x85 (3.x: 2).")
    ] = True
    strict_client_id: Annotated[
        bool, Meta(description="Whether only client ids of 1 to 23 letters and digits are accepted.")
    ] = False
    retained_batch: Annotated[
        int, Meta(ge=1, description="Retained messages replayed to a new subscription before others get their turn.")
    ] = 500


class LimitsConfig(Section, frozen=True):
    max_packet_size: Annotated[
        PositiveSize, Meta(le=268_435_460, description="Largest packet a client may send, header included.")
    ] = 1024 * 1024
    write_buffer: Annotated[
        PositiveSize, Meta(description="Bytes that wait on a connection before the client counts as not reading.")
    ] = 1024 * 1024
    max_connections: Annotated[Count, Meta(description="Connections over all listeners; 0 sets no limit.")] = 0
    connections_per_address: Annotated[
        Count, Meta(description="Connections from one address, or one IPv6 network (/64); 0 sets no limit.")
    ] = 0
    connections_per_user: Annotated[
        Count, Meta(description="Connections of one user name; 0 sets no limit, and nameless clients have none.")
    ] = 0
    connect_rate: Annotated[
        Count, Meta(description="CONNECTs a second over all listeners; those beyond are refused. 0 sets no limit.")
    ] = 0
    message_rate: Annotated[
        Count, Meta(description="Messages a second from one client; beyond it is not read for a while. 0 no limit.")
    ] = 0
    byte_rate: Annotated[
        Size, Meta(description="Bytes a second from one client; beyond it is not read for a while. 0 sets no limit.")
    ] = 0
    sessions: Annotated[Count, Meta(description="Sessions, those without a connection included; 0 sets no limit.")] = 0
    memory: Annotated[
        Size,
        Meta(description="Memory of the process above which no client and no message is taken in; 0 sets no limit."),
    ] = 0
    topic_levels: Annotated[int, Meta(ge=1, le=65535, description="Levels a topic or a filter may have.")] = 256
    max_topic_length: Annotated[int, Meta(ge=1, le=65535, description="Bytes a topic or a filter may have.")] = 65535
    subscriptions_per_client: Annotated[Count, Meta(description="Subscriptions of one session; 0 sets no limit.")] = 0
    client_id_length: Annotated[int, Meta(ge=1, le=65535, description="Bytes a client id may have.")] = 65535
    retained_messages: Annotated[Count, Meta(description="Retained messages kept; 0 sets no limit.")] = 0
    retained_bytes: Annotated[
        Size, Meta(description="Topics, payloads and properties of all retained messages together; 0 sets no limit.")
    ] = 0
    connect_size: Annotated[
        PositiveSize,
        Meta(description="Largest CONNECT, will included: what a client nobody knows yet may make us keep."),
    ] = 256 * 1024
    hook_timeout: Annotated[
        PositiveDuration, Meta(description="How long a hook may take before what it was asked about is refused.")
    ] = 30.0
    queue_bytes: Annotated[
        Size,
        Meta(description="Bytes that wait for one client before the oldest message is dropped; 0 sets no limit."),
    ] = 64 * 1024 * 1024
    publisher_hold: Annotated[
        Duration,
        Meta(description="How long a full receiver holds its publishers back before messages for it are dropped."),
    ] = 1.0
    producers: Annotated[
        Count, Meta(description="Producers whose numbered messages are known, such as partitions of Spark sinks.")
    ] = 100_000
    producer_expiry: Annotated[
        PositiveDuration,
        Meta(description="How long a producer that is not heard of is known: a batch may be tried again that late."),
    ] = 7 * 86400.0
    log_rate: Annotated[
        Count, Meta(description="Log lines a second and a reason; what is beyond is counted. 0 sets no limit.")
    ] = 5


class StorageConfig(Section, frozen=True):
    engine: Annotated[
        Literal["auto", "memory", "rocksdb"],
        Meta(description="Engine for sessions and retained messages; auto is rocksdb with a data directory."),
    ] = "auto"
    journal: Annotated[
        Literal["auto", "memory", "rocksdb", "segment"],
        Meta(description="Engine for what is committed each turn; auto is segment files with a data directory."),
    ] = "auto"
    durability: Annotated[
        Literal["auto", "memory", "process", "power"],
        Meta(
            description="What an acknowledged message survives: nothing, the end of the process, or of the power as "
            "well (fsync); auto is process with a data directory."
        ),
    ] = "auto"
    segment_size: Annotated[
        PositiveSize, Meta(description="Bytes of journal in one file, and between checkpoints.")
    ] = 64 * 1024 * 1024
    retention_time: Annotated[
        Duration,
        Meta(description="How long messages wait for absent clients in segment files at least; 0 as long as it takes."),
    ] = 0.0
    retention_size: Annotated[
        Size,
        Meta(description="Bytes of segment files from which on the oldest messages that wait are dropped; 0 no bound."),
    ] = 0


class LogConfig(Section, frozen=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severe log line that is written.")
    ] = "info"
    format: Annotated[
        Literal["auto", "text", "json"],
        Meta(description="Shape of a log line; auto is text on a terminal, else JSON."),
    ] = "auto"


class Config(Section, frozen=True):
    """Everything that can be set. Immutable; ``Config()`` is the default broker on 127.0.0.1:1883."""

    node: Annotated[NodeConfig, Meta(description="This process and where it keeps its files.")] = NodeConfig()
    listeners: Annotated[
        tuple[ListenerConfig, ...], Meta(description="Where clients connect: URLs, or sections with a url.")
    ] = (ListenerConfig(url=DEFAULT_LISTENER),)
    mqtt: Annotated[MqttConfig, Meta(description="What the protocol offers and how long things take.")] = MqttConfig()
    nats: Annotated[NatsConfig, Meta(description="What NATS clients are offered.")] = NatsConfig()
    limits: Annotated[LimitsConfig, Meta(description="Bounds on everything a client can make grow.")] = LimitsConfig()
    auth: Annotated[AuthConfig, Meta(description="Who may connect, and do what.")] = AuthConfig()
    storage: Annotated[StorageConfig, Meta(description="What is kept and how safely.")] = StorageConfig()
    log: Annotated[LogConfig, Meta(description="What is written to stderr.")] = LogConfig()
    cluster: Annotated[ClusterConfig, Meta(description="What makes this node one of several.")] = ClusterConfig()
    queue_groups: Annotated[QueueGroupsConfig, Meta(description="How the members of a group share messages.")] = (
        QueueGroupsConfig()
    )
    streams: Annotated[
        StreamsConfig, Meta(description="What is kept to be read again, in bulk, and where it is read.")
    ] = StreamsConfig()
    tracing: Annotated[TracingConfig, Meta(description="Which messages OpenTelemetry is told of.")] = TracingConfig()


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
                f"listeners[{index}]: {without_login(listener.url)} would be open to anyone who reaches it; "
                "set auth.allow_anonymous: true if that is meant"
            )


def _refuse_open_api(config: Config) -> None:
    """Whoever may publish is not meant to administer: nothing but a token or a user opens the API to a network."""
    for index, listener in enumerate(config.listeners):
        if listener.url.partition("://")[0] not in API_SCHEMES or guarded(config.auth.api):
            continue
        if not is_local(listener.url):
            raise ConfigError(
                f"listeners[{index}]: {without_login(listener.url)} would let anyone who reaches it administer this "
                "broker; set auth.api.token_file or auth.api.users"
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
            raise ConfigError(f"listeners[{index}].url: {shown!r} is no URL: {error}") from None
        if scheme not in SCHEMES or not separator or not rest:
            raise ConfigError(
                f"listeners[{index}].url: {shown!r} is no listener, such as mqtt://127.0.0.1:1883; "
                "it starts with one of " + ", ".join(f"{known}://" for known in SCHEMES)
            )
        if scheme in ("mqtts", "wss", "tls", "nats+wss", "https") and listener.tls is None:
            raise ConfigError(f"listeners[{index}]: {shown} needs a tls section with at least a cert")
        parse_networks(listener.trusted_proxies, f"listeners[{index}].trusted_proxies")
        parse_networks(listener.proxy_protocol, f"listeners[{index}].proxy_protocol")
        if listener.proxy_protocol and scheme in (*API_SCHEMES, "unix"):
            raise ConfigError(f"listeners[{index}].proxy_protocol: {scheme} listeners do not have it")
        if listener.trusted_proxies and scheme not in HTTP_SCHEMES:
            raise ConfigError(f"listeners[{index}].trusted_proxies: only HTTP and WebSocket listeners have them")
        if listener.advertise:
            check_dialled(listener.advertise, f"listeners[{index}].advertise")


def _check_storage(config: Config) -> None:
    storage = config.storage
    for key in ("retention_time", "retention_size"):
        if getattr(storage, key) and (config.node.data_dir is None or storage.journal not in ("auto", "segment")):
            raise ConfigError(f"storage.{key}: is for segment files; set node.data_dir, and storage.journal: segment")
    if 0 < storage.retention_size < 2 * storage.segment_size:
        raise ConfigError("storage.retention_size: must be twice storage.segment_size or more: whole files go")
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
            raise ConfigError(f"storage.{key}: {value} does not go with storage.engine: {storage.engine}")
