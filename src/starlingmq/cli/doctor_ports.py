"""Checks of ``starlingmq doctor``: whether the ports of a broker are free, those between nodes and of its etcd too."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from starlingmq.cli.announce import running
from starlingmq.cli.doctor_checks import CheckResult, fault, good
from starlingmq.config.cluster_section import split_address
from starlingmq.config.settings import Config
from starlingmq.net.listeners.listener_set import ListenerSet
from starlingmq.net.listeners.urls import ListenerError

SUBJECT: Final = "ports"
OTHER_PROGRAM: Final = "stop the other program (ss -ltnp shows it), or use another port"
OTHER_ETCD: Final = (
    "if Debian's etcd.service has it: systemctl disable --now etcd, since this node starts its own etcd; or set other "
    "ports, or cluster.etcd.endpoints"
)

HOSTS: Final = {
    "cluster.copy_port": "cluster.listen",
    "cluster.etcd.client_port": "cluster.etcd.host",
    "cluster.etcd.peer_port": "cluster.etcd.host",
}
"""The setting with the host, where it is another one."""


def ports(config: Config) -> Iterator[CheckResult]:
    """Whether each listener could be opened now."""
    data_dir = config.node.data_dir
    if data_dir is not None and any(broker.directory == Path(data_dir).absolute() for broker in running()):
        yield good(SUBJECT, "the broker of this data directory runs; they were not tried")
        return
    for listener in config.listeners:
        try:
            asyncio.run(ListenerSet([listener]).refuse_taken())
        except ListenerError as error:
            yield fault(SUBJECT, str(error), OTHER_PROGRAM)
        else:
            yield good(SUBJECT, f"{listener.url} is free")
    for setting, host, port, advice in _between_nodes(config):
        problem, is_taken = _problem(host, port)
        if problem:
            advice = advice if is_taken else f"correct {HOSTS.get(setting, setting)}, the name in DNS, or /etc/hosts"
            yield fault(SUBJECT, f"{setting}: {host}:{port}: {problem}", advice)
        else:
            yield good(SUBJECT, f"{setting}: {host}:{port} is free")


def _between_nodes(config: Config) -> Iterator[tuple[str, str, int, str]]:
    """Setting, host, port, and what to do if it is taken; without ports that the system selects."""
    if config.streams.listen:
        host, port = split_address(config.streams.listen, "streams.listen")
        if port:
            yield "streams.listen", host, port, OTHER_PROGRAM
    cluster = config.cluster
    if not cluster.enabled:
        return
    host, port = split_address(cluster.listen, "cluster.listen")
    if port:
        yield "cluster.listen", host, port, OTHER_PROGRAM
    if cluster.copies > 1 and cluster.copy_port:
        yield "cluster.copy_port", host, cluster.copy_port, OTHER_PROGRAM
    if not cluster.etcd.endpoints:
        for name, port in (("client_port", cluster.etcd.client_port), ("peer_port", cluster.etcd.peer_port)):
            if port:
                yield f"cluster.etcd.{name}", cluster.etcd.host, port, OTHER_ETCD


def _problem(host: str, port: int) -> tuple[str, bool]:
    """Why the port cannot be used, and whether another program has it or may have it; empty: it can be used."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return f"its host: {error.strerror or error}", False
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    return "this machine does not have the address", False
                return error.strerror or str(error), True
    return "", False
