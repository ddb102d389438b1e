"""Checks of ``starlingmq doctor``: the bridges to other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from starlingmq.cli.doctor_checks import CheckResult, fault, good, risk
from starlingmq.client.dial import open_link
from starlingmq.client.endpoint import Endpoint, Tls, parse_url
from starlingmq.client.errors import ConnectFailed
from starlingmq.client.link import Link
from starlingmq.config.bridges_section import BridgeConfig, speaks_kafka
from starlingmq.config.links_section import LinkConfig
from starlingmq.config.settings import Config

PATIENCE_SECONDS: Final = 5.0
PORTS: Final = {"kafka": 9092, "kafka+ssl": 9092, "nats": 4222, "tls": 4222}
LOOPS: Final = (
    "in 3.1.1 messages of direction both have no mark of their sites: if the other side has a bridge to here as well, "
    "they go round without end"
)


class _Nothing:
    """Owner of a link that carries nothing."""

    def link_received(self, data: bytes) -> None: ...

    def link_lost(self, link: Link, error: Exception | None) -> None: ...


def bridges(config: Config) -> Iterator[CheckResult]:
    """Whether the files of each bridge can be read, and its servers be reached by TCP, TLS and WebSocket; nothing logs
    in. And what may go wrong with its settings."""
    for bridge in (*config.bridges, *config.links):
        subject = f"{'link' if isinstance(bridge, LinkConfig) else 'bridge'} {bridge.name}"
        if speaks_kafka(bridge) and find_spec("confluent_kafka") is None:
            yield fault(subject, "the client of Kafka is not installed", "pip install 'starlingmq[kafka]'")
        unreadable = list(_unreadable(bridge, subject))
        yield from unreadable
        if not any("tls." in each.text for each in unreadable):
            yield from _servers(bridge, subject)
        if bridge.version == "3.1.1" and any(topic.direction == "both" for topic in bridge.topics):
            yield risk(subject, LOOPS, 'use version: "5.0" if the other broker has it, or let one side carry them only')


def _unreadable(bridge: BridgeConfig, subject: str) -> Iterator[CheckResult]:
    named = {
        "tls.ca": bridge.tls.ca,
        "tls.cert": bridge.tls.cert,
        "tls.key": bridge.tls.key,
        "credentials.password_file": bridge.credentials.password_file,
        "credentials.creds_file": bridge.credentials.creds_file,
    }
    for setting, path in named.items():
        if path:
            try:
                Path(path).open("rb").close()
            except OSError as error:
                advice = "correct the setting, or give the broker's user the right to read it"
                yield fault(subject, f"{setting}: {path}: {error.strerror or error}", advice)


def _servers(bridge: BridgeConfig, subject: str) -> Iterator[CheckResult]:
    problems = {server: asyncio.run(_problem(bridge, server)) for server in bridge.servers}
    tell = fault if all(problems.values()) else risk
    for server, problem in problems.items():
        if problem:
            yield tell(subject, problem, "start or repair this server, or correct bridges[].servers and tls")
        else:
            yield good(subject, f"{server if _scheme(server) in PORTS else parse_url(server)} answers")


def _scheme(server: str) -> str:
    return server.partition(":")[0]


def _endpoint(server: str) -> Endpoint:
    """Where to connect to, and by TLS if that comes first: with NATS, it begins later."""
    if _scheme(server) not in PORTS:
        return parse_url(server)
    parts = urlsplit(server)
    return Endpoint(
        "mqtts" if parts.scheme == "kafka+ssl" else "mqtt",
        parts.hostname or "localhost",
        parts.port or PORTS[parts.scheme],
        "",
    )


async def _problem(bridge: BridgeConfig, server: str) -> str:
    """The reason why there is no connection; empty if there is one."""
    tls = bridge.tls
    files = Tls(ca=tls.ca, cert=tls.cert, key=tls.key, insecure=tls.insecure, alpn=tls.alpn)
    endpoint = _endpoint(server)
    shown = server if _scheme(server) in PORTS else str(endpoint)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            link = await open_link(endpoint, files, _Nothing())
    except ConnectFailed as error:
        return str(error).partition("; start one")[0].replace(str(endpoint), shown)
    except TimeoutError:
        return f"{shown} did not answer within {PATIENCE_SECONDS:.0f} s"
    link.abort()
    await link.closed
    return ""
