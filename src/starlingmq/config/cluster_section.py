"""The settings of a node that is a member of a cluster, and the checks that involve more than one of them."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from starlingmq.config.secret_masking import SECRET, SECRET_URL, without_login
from starlingmq.config.section_types import ConfigError, Count, Duration, PositiveDuration, PositiveSize, Section, Size
from starlingmq.names import NAME_BYTES_MAX, plain_name

Port = Annotated[int, Meta(ge=0, le=65535)]

SECRET_BYTES_MIN: Final = 16
DEFAULT_LISTEN: Final = "127.0.0.1:7883"


class EtcdTlsConfig(Section, frozen=True):
    """One certificate for all that etcd does; it must be good for servers and for clients."""

    ca: Annotated[str, Meta(min_length=1, description="PEM file with the authorities that certificates come from.")]
    cert: Annotated[str, Meta(min_length=1, description="PEM file with the certificate chain of this node.")]
    key: Annotated[str, Meta(min_length=1, description="PEM file with its private key, not encrypted.")]


class EtcdConfig(Section, frozen=True):
    endpoints: Annotated[
        tuple[str, ...],
        Meta(
            description="An etcd that exists, as host:port of its members; none: this node runs a member of its own.",
            extra=SECRET_URL,
        ),
    ] = ()
    request_timeout: Annotated[
        PositiveDuration, Meta(description="How long an answer may take before it is given up and the next one asked.")
    ] = 3.0
    tls: Annotated[
        EtcdTlsConfig | None,
        Meta(description="Certificates for clients and members; none: a node's own etcd takes those of cluster.tls."),
    ] = None
    allowed_name: Annotated[
        str,
        Meta(
            pattern=r"^(|\*|[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)(?!\n)$",
            description="DNS name that a certificate must have (as subject alternative name) to be let in by the "
            "node's own etcd; the certificates of all nodes have it, and no other certificate of the authority. "
            "An asterisk: every certificate of the authority, which then must serve nothing but this cluster.",
        ),
    ] = ""
    username: Annotated[str, Meta(description="User of an etcd that asks for one; empty: none.")] = ""
    password: Annotated[str, Meta(description="Password of that user.", extra=SECRET)] = ""
    binary: Annotated[
        str, Meta(min_length=1, description="The etcd program, by its path or as it is found on the PATH.")
    ] = "etcd"
    data_dir: Annotated[
        str | None, Meta(description="Directory of the node's own etcd; by default etcd in node.data_dir.")
    ] = None
    host: Annotated[
        str, Meta(min_length=1, description="Address that the node's own etcd listens on and is reached at.")
    ] = "127.0.0.1"
    client_port: Annotated[Port, Meta(description="Port for clients of the node's own etcd; 0 takes a free one.")] = (
        2379
    )
    peer_port: Annotated[
        Port, Meta(description="Port for other members of the node's own etcd; 0 takes a free one.")
    ] = 2380
    initial_members: Annotated[
        tuple[str, ...],
        Meta(description="All members of an etcd that begins now, each as node name=host:peer port; none: it alone."),
    ] = ()
    join: Annotated[
        tuple[str, ...],
        Meta(description="A running etcd that this node's own becomes a member of, as host:port of its members."),
    ] = ()
    quota: Annotated[PositiveSize, Meta(description="Bytes that etcd keeps before it takes no more writes.")] = (
        2 * 1024 * 1024 * 1024
    )
    compaction_retention: Annotated[
        PositiveDuration,
        Meta(
            description="How long etcd remembers changes; an eighth of the quota is for retained messages in that time."
        ),
    ] = 300.0


class ClusterTlsConfig(Section, frozen=True):
    cert: Annotated[
        str | None,
        Meta(description="PEM file with this node's certificate chain; shown to who dials and who is dialled."),
    ] = None
    key: Annotated[str | None, Meta(description="PEM file with its private key, not encrypted.")] = None
    ca: Annotated[
        str | None, Meta(description="PEM file with the authorities that the other nodes' certificates come from.")
    ] = None


class ClusterConfig(Section, frozen=True):
    enabled: Annotated[bool, Meta(description="Whether this node is a member of a cluster.")] = False
    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9._-]{1,128}(?!\n)$",
            description="Name that all nodes of one cluster share; keys in etcd begin with it.",
        ),
    ] = "starling"
    listen: Annotated[
        str, Meta(description="Where the other nodes reach this one, host:port; port 0 takes a free one.")
    ] = DEFAULT_LISTEN
    advertise: Annotated[
        str, Meta(description="Address host:port that the other nodes dial; empty is the one that is listened on.")
    ] = ""
    secret: Annotated[
        str,
        Meta(
            description="What all nodes of the cluster know and nobody else, 16 bytes or more; empty asks for none.",
            extra=SECRET,
        ),
    ] = ""
    secret_file: Annotated[
        str | None,
        Meta(description="File with the secret, in place of cluster.secret; white space around it is cut off."),
    ] = None
    tls: Annotated[
        ClusterTlsConfig, Meta(description="Certificates for both directions between nodes; none leaves it plain.")
    ] = ClusterTlsConfig()
    allow_insecure: Annotated[
        bool,
        Meta(description="Whether to listen on an address that other machines reach without both TLS and a secret."),
    ] = False
    heartbeat_interval: Annotated[
        PositiveDuration, Meta(description="How often a node tells the others that it is there, and whom it hears.")
    ] = 0.5
    member_timeout: Annotated[
        PositiveDuration, Meta(description="Silence after which another node counts as not connected.")
    ] = 2.0
    isolation_timeout: Annotated[
        Duration,
        Meta(
            description="Time without a majority after which a node sends its MQTT clients away (5.0: 0x9C), so that "
            "they try another one. 0 keeps them."
        ),
    ] = 10.0
    subscribe_ack_timeout: Annotated[
        PositiveDuration,
        Meta(description="How long a SUBSCRIBE waits for the connected nodes to know of it before it is refused."),
    ] = 5.0
    takeover_timeout: Annotated[
        PositiveDuration,
        Meta(description="A CONNECT is refused when etcd, which knows its owner, has been silent for twice this long."),
    ] = 3.0
    takeover_limit: Annotated[
        PositiveDuration,
        Meta(
            description="How long a CONNECT waits for its session from a node that is slow, but heard. Then it is "
            "refused as busy, so that the client tries again; the session goes on moving meanwhile."
        ),
    ] = 120.0
    handshake_window: Annotated[
        PositiveDuration,
        Meta(description="How long questions about QoS 2 handshakes are collected for one call to each other node."),
    ] = 0.03
    handshake_timeout: Annotated[
        PositiveDuration,
        Meta(
            description="How long a PUBREL waits for nodes that may know its handshake and can not be reached, before "
            "it is answered as unknown."
        ),
    ] = 10.0
    handshake_memory: Annotated[
        PositiveDuration,
        Meta(
            description="How long a node keeps the QoS 2 handshakes that a client began or completed here before it "
            "went to another node."
        ),
    ] = 86400.0
    link_window: Annotated[
        PositiveSize,
        Meta(description="Bytes that may be on the way to one node before it has acknowledged any of them."),
    ] = 8 * 1024 * 1024
    forward_bytes: Annotated[
        PositiveSize,
        Meta(description="Bytes kept for one node that cannot be reached before what is for it is refused."),
    ] = 1024 * 1024 * 1024
    resend_interval: Annotated[
        PositiveDuration,
        Meta(description="Time without progress after which what a node has not acknowledged is sent to it again."),
    ] = 2.0
    route_log: Annotated[
        Count,
        Meta(description="Changes of routes kept for nodes that were away; who lacks older ones gets all routes."),
    ] = 100_000
    drain_rate: Annotated[
        int,
        Meta(
            ge=1,
            description="Clients sent elsewhere, and sessions handed over, in a second when a node drains or clients "
            "are spread anew; a shutdown that would take too long goes faster.",
        ),
    ] = 500
    retained_inline: Annotated[
        PositiveSize,
        Meta(description="Bytes from which on a retained message is kept by nodes, and etcd only knows by which."),
    ] = 1024
    retained_copies: Annotated[
        Count, Meta(description="How many nodes have a copy of such a message, beside the one where it was published.")
    ] = 1
    retained_cache: Annotated[
        Size, Meta(description="Bytes of such messages kept for later that were fetched from other nodes.")
    ] = 64 * 1024 * 1024
    retained_window: Annotated[
        Duration,
        Meta(description="Time between two lots of retained messages for etcd; of one topic only the last one goes."),
    ] = 0.02
    lease_ttl: Annotated[
        int,
        Meta(
            ge=2,
            extra={"unit": "seconds"},
            description="How long etcd takes a node for online that it does not hear of.",
        ),
    ] = 10
    etcd: Annotated[EtcdConfig, Meta(description="Where the cluster keeps what needs one truth.")] = EtcdConfig()


def check_cluster(cluster: ClusterConfig, node_name: str) -> None:
    """What the bounds of single settings cannot say. Raises ConfigError."""
    host, _ = split_address(cluster.listen, "cluster.listen")
    if cluster.member_timeout <= cluster.heartbeat_interval:
        raise ConfigError("cluster.member_timeout: must be longer than cluster.heartbeat_interval")
    if cluster.secret and cluster.secret_file:
        raise ConfigError("cluster.secret_file: cluster.secret is there already; set one of the two")
    if cluster.secret:
        _check_secret(cluster.secret.encode(), "cluster.secret")
    files = (cluster.tls.cert, cluster.tls.key, cluster.tls.ca)
    if any(files) and not all(files):
        raise ConfigError(
            "cluster.tls: needs all of cert, key and ca: each node shows a certificate and checks the other's"
        )
    if cluster.advertise:
        check_dialled(cluster.advertise, "cluster.advertise")
    elif cluster.enabled and is_wildcard(host):
        raise ConfigError(
            f"cluster.advertise: nobody can dial {cluster.listen}; set the address that reaches this node"
        )
    _check_etcd(cluster.etcd, node_name)
    if not plain_name(node_name):
        raise ConfigError(f"node.name: must be 1 to {NAME_BYTES_MAX} bytes of printable text")
    if cluster.enabled and "/" in node_name:
        raise ConfigError(f"node.name: {node_name!r} has a slash, which the name of a member of a cluster cannot have")


def refuse_open_cluster(cluster: ClusterConfig) -> None:
    """Raise ConfigError for a node listener that anyone on the network could speak to or read along with."""
    host, _ = split_address(cluster.listen, "cluster.listen")
    if not cluster.enabled or cluster.allow_insecure:
        return
    etcd = cluster.etcd
    if not etcd.endpoints and not is_loopback(etcd.host) and etcd_tls(cluster) is None:
        raise ConfigError(
            f"cluster.etcd.host: {etcd.host} is reached from other machines; set cluster.etcd.tls or cluster.tls, "
            "or cluster.allow_insecure: true if all of them are trusted"
        )
    if not etcd.endpoints and not is_loopback(etcd.host) and not etcd.allowed_name:
        raise ConfigError(
            "cluster.etcd.allowed_name: any certificate of the authority would open etcd, a client's too; set a DNS "
            "name that the certificates of all nodes have and no other, or '*' if the authority is of this cluster only"
        )
    if is_loopback(host):
        return
    lacking = [] if cluster.tls.cert else ["cluster.tls"]
    lacking += [] if cluster.secret or cluster.secret_file else ["cluster.secret or cluster.secret_file"]
    if lacking:
        raise ConfigError(
            f"cluster.listen: {cluster.listen} is reached from other machines; set {' and '.join(lacking)}, "
            "or cluster.allow_insecure: true if all of them are trusted"
        )


def etcd_tls(cluster: ClusterConfig) -> EtcdTlsConfig | None:
    """What etcd is spoken to with; the certificates between nodes serve an etcd that they run themselves."""
    tls = cluster.tls
    if cluster.etcd.tls is not None or cluster.etcd.endpoints or not (tls.cert and tls.key and tls.ca):
        return cluster.etcd.tls
    return EtcdTlsConfig(ca=tls.ca, cert=tls.cert, key=tls.key)


def cluster_secret(cluster: ClusterConfig) -> bytes:
    """The secret itself, read from its file if it is in one; empty when there is none. Raises ConfigError."""
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
        raise ConfigError(f"{setting}: {address!r} is not host:port (an IPv6 address goes in brackets)")
    return plain, int(port)


def check_dialled(address: str, setting: str) -> None:
    """Raise ConfigError for an address that nobody can dial."""
    host, port = split_address(address, setting)
    if port == 0 or is_wildcard(host):
        raise ConfigError(f"{setting}: nobody can dial {address}")


def _check_secret(secret: bytes, what: str) -> None:
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(f"{what}: {len(secret)} bytes are too few for a secret; take {SECRET_BYTES_MIN} or more")


def is_loopback(host: str) -> bool:
    """Whether only the machine itself can reach that. Names other than localhost are not looked up: no."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether that is every address of a machine, and so none that could be dialled."""
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


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
        raise ConfigError(f"cluster.etcd.initial_members: this node, {node_name}, is not among them")
    own = f"[{etcd.host}]" if ":" in etcd.host else etcd.host
    if names and names[node_name] != f"{own}:{etcd.peer_port}":
        raise ConfigError(
            f"cluster.etcd.initial_members: this node is there with {names[node_name]}, "
            f"and cluster.etcd.host and peer_port say {own}:{etcd.peer_port}"
        )
    if names and etcd.join:
        raise ConfigError("cluster.etcd.join: does not go with initial_members: an etcd begins, or it joins one")
    if etcd.endpoints and (names or etcd.join):
        raise ConfigError("cluster.etcd.endpoints: name an etcd that exists; then this node has none that could join")


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and "/" not in text and port.isascii() and port.isdigit() and 0 < int(port) <= 65535
