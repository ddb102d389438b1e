"""The settings of a cluster member, and checks that involve more than one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Final

from msgspec import Meta

from starlingmq.config.networks import is_loopback, is_wildcard
from starlingmq.config.plain_names import NAME_BYTES_MAX, plain_name
from starlingmq.config.secret_masking import SECRET, SECRET_URL, without_login
from starlingmq.config.section_types import ConfigError, Count, Duration, PositiveDuration, PositiveSize, Section, Size

Port = Annotated[int, Meta(ge=0, le=65535)]

SECRET_BYTES_MIN: Final = 16
DEFAULT_LISTEN: Final = "127.0.0.1:7883"
COPIES_MAX: Final = 5


class EtcdTlsConfig(Section, frozen=True):
    """One certificate for all connections of etcd; it must be valid for servers and for clients."""

    ca: Annotated[str, Meta(min_length=1, description="PEM file with the CA certificates.")]
    cert: Annotated[str, Meta(min_length=1, description="PEM file with the certificate chain of this node.")]
    key: Annotated[str, Meta(min_length=1, description="PEM file with its private key, not encrypted.")]


class EtcdConfig(Section, frozen=True):
    endpoints: Annotated[
        tuple[str, ...],
        Meta(
            description="Members of an existing etcd cluster, as host:port. Empty: this node runs an etcd "
            "member of its own.",
            extra=SECRET_URL,
        ),
    ] = ()
    request_timeout: Annotated[
        PositiveDuration,
        Meta(description="Timeout of a request to one etcd member, after which the next member is tried."),
    ] = 3.0
    tls: Annotated[
        EtcdTlsConfig | None,
        Meta(
            description="Certificates for etcd clients and members. Empty: the node's own etcd uses those "
            "of cluster.tls."
        ),
    ] = None
    allowed_name: Annotated[
        str,
        Meta(
            pattern=r"^(|\*|[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)(?!\n)$",
            description="DNS name (subject alternative name) that a certificate must have to access the "
            "node's own etcd. The certificates of all nodes must have it, and no other "
            "certificate of the CA may. An asterisk allows every certificate of the CA; that CA "
            "must then be used for this cluster only.",
        ),
    ] = ""
    username: Annotated[str, Meta(description="User name for an etcd with authentication. Empty: none.")] = ""
    password: Annotated[str, Meta(description="Password of this user.", extra=SECRET)] = ""
    binary: Annotated[
        str, Meta(min_length=1, description="The etcd program: a path, or a name that is looked up in PATH.")
    ] = "etcd"
    data_dir: Annotated[
        str | None, Meta(description="Data directory of the node's own etcd. Default: etcd in node.data_dir.")
    ] = None
    host: Annotated[
        str, Meta(min_length=1, description="Host name or address that the node's own etcd listens on and advertises.")
    ] = "127.0.0.1"
    client_port: Annotated[Port, Meta(description="Client port of the node's own etcd; 0 selects a free port.")] = 2379
    peer_port: Annotated[Port, Meta(description="Peer port of the node's own etcd; 0 selects a free port.")] = 2380
    initial_members: Annotated[
        tuple[str, ...],
        Meta(
            description="Initial members when bootstrapping etcd, each as node name=host:peer port. Empty: "
            "a single member."
        ),
    ] = ()
    join: Annotated[
        tuple[str, ...],
        Meta(description="Members of a running etcd cluster that this node's own etcd joins, as host:port."),
    ] = ()
    quota: Annotated[
        PositiveSize, Meta(description="Size of the etcd database above which etcd refuses writes (its backend quota).")
    ] = 2 * 1024 * 1024 * 1024
    compaction_retention: Annotated[
        PositiveDuration,
        Meta(
            description="How long etcd keeps its revision history before compaction; one eighth of the quota "
            "is reserved for retained messages written in that time."
        ),
    ] = 300.0


class ClusterTlsConfig(Section, frozen=True):
    cert: Annotated[
        str | None,
        Meta(
            description="PEM file with this node's certificate chain, presented on incoming and outgoing connections."
        ),
    ] = None
    key: Annotated[str | None, Meta(description="PEM file with its private key, not encrypted.")] = None
    ca: Annotated[str | None, Meta(description="PEM file with the CA certificates used to verify the other nodes.")] = (
        None
    )


class ClusterConfig(Section, frozen=True):
    REMOVED: ClassVar = {"owners": "the owners of client ids are always kept in the memory of the nodes"}

    enabled: Annotated[bool, Meta(description="Whether this node is a member of a cluster.")] = False
    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9._-]{1,128}(?!\n)$",
            description="Cluster name, the same on all nodes; it is the prefix of all keys in etcd.",
        ),
    ] = "starling"
    listen: Annotated[
        str,
        Meta(
            description="Address (host:port) on which this node accepts connections of other nodes; "
            "port 0 selects a free port."
        ),
    ] = DEFAULT_LISTEN
    advertise: Annotated[
        str, Meta(description="Address (host:port) that other nodes connect to. Empty: the listening address.")
    ] = ""
    secret: Annotated[
        str,
        Meta(
            description="Shared secret of all nodes, at least 16 bytes. Empty: none is required.",
            extra=SECRET,
        ),
    ] = ""
    secret_file: Annotated[
        str | None,
        Meta(
            description="File with the shared secret, in place of cluster.secret; surrounding white space is ignored."
        ),
    ] = None
    tls: Annotated[
        ClusterTlsConfig,
        Meta(description="Certificates for mutual TLS between nodes. Empty: connections are not encrypted."),
    ] = ClusterTlsConfig()
    allow_insecure: Annotated[
        bool,
        Meta(description="Whether to listen on a non-loopback address without both TLS and a secret."),
    ] = False
    heartbeat_interval: Annotated[
        PositiveDuration,
        Meta(
            description="Interval of the heartbeats that a node sends to all others, with the list of nodes it hears."
        ),
    ] = 0.5
    member_timeout: Annotated[
        PositiveDuration, Meta(description="Silence after which another node counts as disconnected.")
    ] = 2.0
    watch_processes: Annotated[
        bool,
        Meta(
            description="Whether a node whose process has ended counts as lost at once, when all other nodes see its "
            "connections closed and new ones refused. Switch it off where the nodes reach each other through a proxy "
            "that can end while the node behind it runs."
        ),
    ] = True
    one_machine: Annotated[
        bool,
        Meta(
            description="All nodes run on this machine and reach each other without a proxy; `serve --workers` sets "
            "it. A node whose process has ended does not count for the majority until it is back, so one of two nodes "
            "serves alone. Needs watch_processes."
        ),
    ] = False
    socket_dir: Annotated[
        str,
        Meta(
            description="Directory of Unix sockets through which the nodes of one machine send messages to each other, "
            "at less cost than through TCP; `serve --workers` sets it. Only the owner may have access to it. Needs "
            "one_machine; without effect with `tls`."
        ),
    ] = ""
    isolation_timeout: Annotated[
        Duration,
        Meta(
            description="Time without a majority after which a node disconnects its MQTT clients (5.0: "
            "0x9C), so that they try another node. 0 keeps them."
        ),
    ] = 10.0
    subscribe_ack_timeout: Annotated[
        PositiveDuration,
        Meta(description="How long a SUBSCRIBE waits until the connected nodes have the route before it is refused."),
    ] = 5.0
    takeover_timeout: Annotated[
        PositiveDuration,
        Meta(
            description="CONNECT packets are refused when the node that leads the share of the client id is gone, and "
            "no such node has answered for twice this time."
        ),
    ] = 3.0
    takeover_limit: Annotated[
        PositiveDuration,
        Meta(
            description="How long a CONNECT waits for its session from a slow node that still sends "
            "heartbeats. Then it is refused as busy, so that the client tries again; the "
            "transfer of the session continues meanwhile."
        ),
    ] = 120.0
    handshake_window: Annotated[
        PositiveDuration,
        Meta(description="How long QoS 2 handshake lookups are collected into one request to each other node."),
    ] = 0.03
    handshake_timeout: Annotated[
        PositiveDuration,
        Meta(
            description="How long a PUBREL waits for unreachable nodes that may know its packet identifier "
            "before it is answered as unknown."
        ),
    ] = 10.0
    handshake_memory: Annotated[
        PositiveDuration,
        Meta(
            description="How long a node keeps the QoS 2 handshakes that a client started or completed here "
            "before it moved to another node."
        ),
    ] = 86400.0
    link_window: Annotated[
        PositiveSize,
        Meta(description="Unacknowledged bytes that may be in flight to one node."),
    ] = 8 * 1024 * 1024
    forward_bytes: Annotated[
        PositiveSize,
        Meta(description="Bytes buffered for one unreachable node before further data for it is refused."),
    ] = 1024 * 1024 * 1024
    resend_interval: Annotated[
        PositiveDuration,
        Meta(description="Time without progress after which unacknowledged data is sent to a node again."),
    ] = 2.0
    route_log: Annotated[
        Count,
        Meta(
            description="Route changes kept for nodes that were disconnected. A node that missed more than "
            "these gets all routes."
        ),
    ] = 100_000
    route_summary_min: Annotated[
        Count,
        Meta(
            description="Filters that differ in one level only, such as devices/ID/commands, from which on a node "
            "tells other nodes a summary of them. 0: never."
        ),
    ] = 10_000
    drain_rate: Annotated[
        int,
        Meta(
            ge=1,
            description="Clients redirected, and sessions handed over, per second while a node drains or "
            "clients are rebalanced. A shutdown that would take too long goes faster.",
        ),
    ] = 500
    drain_copy_timeout: Annotated[
        Duration,
        Meta(
            description="How long `ctl drain` waits, once clients and sessions have moved, until other nodes have "
            "copies of everything that is stored here (`copies` 2 or more). 0: it does not wait."
        ),
    ] = 60.0
    retained_inline: Annotated[
        PositiveSize,
        Meta(
            description="Size above which the payload of a retained message is stored by nodes instead of "
            "etcd; etcd then only stores the names of these nodes."
        ),
    ] = 1024
    retained_copies: Annotated[
        Count,
        Meta(
            description="Number of copies of such a message, in addition to the one on the node where it was published."
        ),
    ] = 1
    retained_cache: Annotated[Size, Meta(description="Cache size for such messages fetched from other nodes.")] = (
        64 * 1024 * 1024
    )
    retained_window: Annotated[
        Duration,
        Meta(
            description="Interval between two batches of retained messages written to etcd. Of several "
            "messages on one topic, only the last is written."
        ),
    ] = 0.02
    copies: Annotated[
        int,
        Meta(
            ge=1,
            le=COPIES_MAX,
            description="Number of nodes that store everything that is acknowledged, including the node that serves "
            "it. Set it to the same value on all nodes.",
        ),
    ] = 1
    min_copies: Annotated[
        int,
        Meta(
            ge=0,
            le=COPIES_MAX,
            description="Number of nodes that must be able to store a message; with fewer, the message is refused. "
            "0: one less than cluster.copies, and at least 1.",
        ),
    ] = 0
    copy_timeout: Annotated[
        PositiveDuration,
        Meta(
            description="How long a node that stores copies may be away before another node is chosen in its place. "
            "It is chosen at once if the lost node was not stopped and no other node has everything, or fewer than "
            "min_copies have it."
        ),
    ] = 600.0
    copy_rate: Annotated[
        Size,
        Meta(description="Bytes per second at which a node is sent a copy from the beginning. 0: unlimited."),
    ] = 64 * 1024 * 1024
    copy_port: Annotated[
        Port,
        Meta(
            description="Port on which this node accepts copies, at the host of cluster.listen; 0 selects a free port. "
            "The data of a lost node that is served here has a free port of its own. Used if cluster.copies is above 1."
        ),
    ] = 0
    lease_ttl: Annotated[
        int,
        Meta(
            ge=2,
            extra={"unit": "seconds"},
            description="Time to live of a node's etcd lease. A node that no other node hears counts as "
            "online until its lease expires.",
        ),
    ] = 10
    etcd: Annotated[EtcdConfig, Meta(description="The etcd that stores cluster-wide data.")] = EtcdConfig()

    @property
    def copies_required(self) -> int:
        """The number of nodes that must be able to store a message: ``min_copies``, or its default."""
        return self.min_copies or max(1, self.copies - 1)


def check_cluster(cluster: ClusterConfig, node_name: str, data_dir: str | None) -> None:
    """Checks that the bounds of single settings cannot express. Raises ConfigError."""
    _check_copies(cluster, data_dir)
    host, _ = split_address(cluster.listen, "cluster.listen")
    if cluster.one_machine and not cluster.watch_processes:
        raise ConfigError("cluster.one_machine: needs cluster.watch_processes")
    if cluster.socket_dir and not cluster.one_machine:
        raise ConfigError("cluster.socket_dir: needs cluster.one_machine")
    if cluster.member_timeout <= cluster.heartbeat_interval:
        raise ConfigError("cluster.member_timeout: must be longer than cluster.heartbeat_interval")
    if cluster.secret and cluster.secret_file:
        raise ConfigError("cluster.secret_file: cluster.secret is set as well; set only one of them")
    if cluster.secret:
        _check_secret(cluster.secret.encode(), "cluster.secret")
    files = (cluster.tls.cert, cluster.tls.key, cluster.tls.ca)
    if any(files) and not all(files):
        raise ConfigError(
            "cluster.tls: cert, key and ca are all required, because nodes verify each other's certificates"
        )
    if cluster.advertise:
        check_dialled(cluster.advertise, "cluster.advertise")
    elif cluster.enabled and is_wildcard(host):
        raise ConfigError(
            f"cluster.advertise: {cluster.listen} is not an address other nodes can connect to; set "
            "cluster.advertise to one"
        )
    _check_etcd(cluster.etcd, node_name)
    if not plain_name(node_name):
        raise ConfigError(f"node.name: must be 1 to {NAME_BYTES_MAX} bytes of printable text")
    if cluster.enabled and "/" in node_name:
        raise ConfigError(f"node.name: {node_name!r} contains a slash, which is not allowed in a cluster")


def _check_copies(cluster: ClusterConfig, data_dir: str | None) -> None:
    if cluster.min_copies > cluster.copies:
        raise ConfigError(
            f"cluster.min_copies: {cluster.min_copies} is more than cluster.copies, {cluster.copies}; lower it or "
            "raise cluster.copies"
        )
    if cluster.copies > 1 and cluster.enabled and data_dir is None:
        raise ConfigError("cluster.copies: more than 1 requires node.data_dir, where the copies are stored")
    if cluster.copies > 1 and cluster.copy_timeout < cluster.member_timeout:
        raise ConfigError("cluster.copy_timeout: must not be shorter than cluster.member_timeout")


def refuse_open_cluster(cluster: ClusterConfig) -> None:
    """Raises ConfigError for a node listener that is open to anyone on the network."""
    host, _ = split_address(cluster.listen, "cluster.listen")
    if not cluster.enabled or cluster.allow_insecure:
        return
    etcd = cluster.etcd
    if not etcd.endpoints and not is_loopback(etcd.host) and etcd_tls(cluster) is None:
        raise ConfigError(
            f"cluster.etcd.host: {etcd.host} is reachable from other machines; set cluster.etcd.tls or "
            "cluster.tls, or cluster.allow_insecure: true if all of them are trusted"
        )
    if not etcd.endpoints and not is_loopback(etcd.host) and not etcd.allowed_name:
        raise ConfigError(
            "cluster.etcd.allowed_name: any certificate of the CA, even a client's, would open etcd; set "
            "a DNS name that the certificates of all nodes have and no other certificate has, or '*' if "
            "the CA is used for this cluster only"
        )
    if is_loopback(host):
        return
    lacking = [] if cluster.tls.cert else ["cluster.tls"]
    lacking += [] if cluster.secret or cluster.secret_file else ["cluster.secret or cluster.secret_file"]
    if lacking:
        raise ConfigError(
            f"cluster.listen: {cluster.listen} is reachable from other machines; set "
            f"{' and '.join(lacking)}, or cluster.allow_insecure: true if all of them are trusted"
        )


def etcd_tls(cluster: ClusterConfig) -> EtcdTlsConfig | None:
    """TLS for connections to etcd. The certificates between nodes are used for an etcd that the nodes run
    themselves."""
    tls = cluster.tls
    if cluster.etcd.tls is not None or cluster.etcd.endpoints or not (tls.cert and tls.key and tls.ca):
        return cluster.etcd.tls
    return EtcdTlsConfig(ca=tls.ca, cert=tls.cert, key=tls.key)


def cluster_secret(cluster: ClusterConfig) -> bytes:
    """The secret, read from its file if it is in one; empty if there is none. Raises ConfigError."""
    if cluster.secret_file is None:
        return cluster.secret.encode()
    try:
        secret = Path(cluster.secret_file).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"cluster.secret_file: {cluster.secret_file} cannot be read: {error.strerror}") from error
    _check_secret(secret, f"cluster.secret_file: {cluster.secret_file}")
    return secret


def split_address(address: str, setting: str) -> tuple[str, int]:
    """Host, without the brackets of IPv6, and port. Raises ConfigError that names the setting."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    plain = host[1:-1] if bracketed else host
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535 or (":" in plain) != bracketed:
        raise ConfigError(f"{setting}: {address!r} is not host:port (an IPv6 address needs brackets)")
    return plain, int(port)


def check_dialled(address: str, setting: str) -> None:
    """Raises ConfigError for an address that cannot be dialled."""
    host, port = split_address(address, setting)
    if port == 0 or is_wildcard(host):
        raise ConfigError(f"{setting}: {address} is not an address other nodes can connect to")


def _check_secret(secret: bytes, what: str) -> None:
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(f"{what}: {len(secret)} bytes are too few for a secret; use {SECRET_BYTES_MIN} or more")


def _check_etcd(etcd: EtcdConfig, node_name: str) -> None:
    for key in ("endpoints", "join"):
        for index, address in enumerate(getattr(etcd, key)):
            if not _is_address(address):
                raise ConfigError(f"cluster.etcd.{key}[{index}]: {without_login(address)!r} is not host:port")
    names = {}
    for index, entry in enumerate(etcd.initial_members):
        name, _, address = entry.rpartition("=")
        names[name] = address
        if not name or not _is_address(address):
            raise ConfigError(f"cluster.etcd.initial_members[{index}]: {entry!r} is not node name=host:port")
    if names and node_name not in names:
        raise ConfigError(f"cluster.etcd.initial_members: this node, {node_name}, is missing; add it")
    own = f"[{etcd.host}]" if ":" in etcd.host else etcd.host
    if names and names[node_name] != f"{own}:{etcd.peer_port}":
        raise ConfigError(
            f"cluster.etcd.initial_members: lists this node with {names[node_name]}, but "
            f"cluster.etcd.host and peer_port are {own}:{etcd.peer_port}; make them equal"
        )
    if names and etcd.join:
        raise ConfigError(
            "cluster.etcd.join: cannot be combined with initial_members; set join to join a running etcd, or "
            "initial_members to bootstrap a new one"
        )
    if etcd.endpoints and (names or etcd.join):
        raise ConfigError(
            "cluster.etcd.endpoints: cannot be combined with settings of the node's own etcd; remove "
            "endpoints, initial_members or join"
        )


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and "/" not in text and port.isascii() and port.isdigit() and 0 < int(port) <= 65535
