"""The settings of ``cluster``: what a node needs to be one of several. ``config`` has everything else."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from starlingmq.config_types import PositiveDuration, PositiveSize, Section

Port = Annotated[int, Meta(ge=0, le=65535)]


class EtcdTlsConfig(Section, frozen=True):
    """One certificate for all that etcd does; it must be good for servers and for clients."""

    ca: Annotated[str, Meta(min_length=1, description="PEM file with the authorities that certificates come from.")]
    cert: Annotated[str, Meta(min_length=1, description="PEM file with the certificate chain of this node.")]
    key: Annotated[str, Meta(min_length=1, description="PEM file with its private key, not encrypted.")]


class EtcdConfig(Section, frozen=True):
    endpoints: Annotated[
        tuple[str, ...],
        Meta(description="An etcd that exists, as host:port of its members; none: this node runs a member of its own."),
    ] = ()
    request_timeout: Annotated[
        PositiveDuration, Meta(description="How long an answer may take before it is given up and the next one asked.")
    ] = 3.0
    tls: Annotated[
        EtcdTlsConfig | None, Meta(description="Certificates, for clients and between members; none: no TLS.")
    ] = None
    username: Annotated[str, Meta(description="User of an etcd that asks for one; empty: none.")] = ""
    password: Annotated[str, Meta(description="Password of that user.")] = ""
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
        PositiveDuration, Meta(description="How long the node's own etcd remembers changes, for those who were away.")
    ] = 3600.0


class ClusterConfig(Section, frozen=True):
    name: Annotated[
        str,
        Meta(
            min_length=1,
            pattern=r"^[A-Za-z0-9._-]+$",
            description="Name that all nodes of one cluster share; keys in etcd begin with it.",
        ),
    ] = "starling"
    lease_ttl: Annotated[
        int,
        Meta(
            ge=2,
            extra={"unit": "seconds"},
            description="How long etcd takes a node for online that it does not hear of.",
        ),
    ] = 10
    etcd: Annotated[EtcdConfig, Meta(description="Where the cluster keeps what needs one truth.")] = EtcdConfig()
