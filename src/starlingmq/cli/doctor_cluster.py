"""Checks of ``starlingmq doctor``: the etcd of a cluster."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from starlingmq.cli.doctor_checks import CheckResult, fault, good
from starlingmq.config.cluster_section import etcd_tls, split_address
from starlingmq.config.settings import Config
from starlingmq.net.listeners.tls import TlsError, load_key_pair

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
