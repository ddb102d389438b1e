"""Checks of ``starlingmq doctor``: whether the ports of a broker are free, those between nodes and of its etcd too; and
whether etcd is healthy.
"""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from starlingmq.cli.announce import running
from starlingmq.cli.doctor_checks import CheckResult, fault, good
from starlingmq.config.cluster_section import etcd_tls, split_address
from starlingmq.config.settings import Config
from starlingmq.net.listeners.listener_set import ListenerSet
from starlingmq.net.listeners.tls import TlsError, load_key_pair
from starlingmq.net.listeners.urls import ListenerError

PATIENCE_SECONDS: Final = 3.0
ANSWER_BYTES_MAX: Final = 65_536


def etcd(config: Config) -> Iterator[CheckResult]:
    """Whether the members of an existing etcd are healthy; for an own one, whether the program is there."""
    if not config.cluster.enabled:
        return
    settings = config.cluster.etcd
    if not settings.endpoints:
        if shutil.which(settings.binary):
            yield good("etcd", f"this node runs its own: {shutil.which(settings.binary)}")
        else:
            yield fault(
                "etcd",
                f"the program {settings.binary} is not there, and this node has to run its own",
                "apt-get install etcd-server, or set cluster.etcd.endpoints to an etcd that is there",
            )
        return
    for endpoint in settings.endpoints:
        problem = asyncio.run(_health(config, endpoint))
        if problem:
            yield fault(
                "etcd",
                f"{endpoint}: {problem}",
                "start or repair this member, or correct cluster.etcd.endpoints and cluster.etcd.tls",
            )
        else:
            yield good("etcd", f"{endpoint} is healthy")


async def _health(config: Config, endpoint: str) -> str:
    """The reason why a member does not say that it is healthy; empty if it does."""
    try:
        host, port = split_address(endpoint, "cluster.etcd.endpoints")
        async with asyncio.timeout(PATIENCE_SECONDS):
            reader, writer = await asyncio.open_connection(host, port, ssl=_context(config))
            try:
                writer.write(f"GET /health HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
                answer = await reader.read(ANSWER_BYTES_MAX)
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except TimeoutError:
        return f"no answer within {PATIENCE_SECONDS:.0f} s"
    except ConnectionRefusedError:
        return "it refuses connections"
    except TlsError as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)
    head, _, body = answer.partition(b"\r\n\r\n")
    try:
        healthy = json.loads(body)["health"] in ("true", True)
    except (ValueError, KeyError, TypeError):
        return f"no answer of an etcd: {head[:60].decode(errors='replace')}"
    return "" if healthy else "it says that it is not healthy: no leader, or no space"


def _context(config: Config) -> ssl.SSLContext | None:
    tls = etcd_tls(config.cluster)
    if tls is None:
        return None
    context = ssl.create_default_context(cafile=tls.ca)
    load_key_pair(context, tls.cert, tls.key)
    return context


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
