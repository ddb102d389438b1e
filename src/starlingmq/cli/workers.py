"""``starlingmq serve --workers N``: N brokers on one machine that share the listeners' ports and form a cluster.

The kernel distributes connections to them. Each is a node with its own directory below the data directory. What a
cluster keeps in etcd, this process keeps for its workers (net/local_etcd), unless the settings name an etcd or a
cluster, or the data directory has the etcd of an earlier version. A worker that ends is restarted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from starlingmq.admin.access_table import refuse_file
from starlingmq.cli.children import Child, first_of, how_it_ended, ready_or_ended
from starlingmq.cli.local_cluster import HOST, free_ports
from starlingmq.cli.locked_directory import LockedDirectory
from starlingmq.cli.serve_options import OVERRIDES
from starlingmq.config.cluster_section import etcd_tls, split_address
from starlingmq.config.settings import Config, ConfigError, ListenerConfig, refuse_open_listeners, reveals
from starlingmq.log import set_up_logging
from starlingmq.net.listeners.listeners import hold_port, parse_listener
from starlingmq.net.local_etcd import DIRECTORY

if TYPE_CHECKING:
    from starlingmq.net.local_etcd.local_etcd import LocalEtcd

log = logging.getLogger("starlingmq")

BACKOFF: Final = (0.2, 5.0)  # seconds before a worker is restarted: initially, at most
LONG_RUN: Final = 10.0  # seconds after which a run counts as successful
WORKERS_MAX: Final = 256
SOCKETS_PREFIX: Final = "starlingmq-workers-"
ETCD_PREFIX: Final = "starlingmq-etcd-"
ETCD_READY_SECONDS: Final = 30.0
SOCKET_DIR_BYTES_MAX: Final = 90  # with the name of a socket in it, below the limit of the system of 107


class WorkersError(Exception):
    """The workers cannot serve; one line."""


async def serve(config: Config, arguments: Sequence[str], overrides: Sequence[str], count: int) -> None:
    """Run until SIGTERM or SIGINT. ``arguments`` and ``overrides`` are those of ``serve`` for all workers. Raises
    ConfigError and others.
    """
    if not 1 <= count <= WORKERS_MAX:
        raise ConfigError(f"--workers {count}: must be 1 to {WORKERS_MAX}, best the number of cores")
    refuse_open_listeners(config, False)
    if config.node.data_dir is not None:
        refuse_file(Path(config.node.data_dir))
    set_up_logging(config.log, config.node.name)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        listeners = await _hold_ports(config, stack)
        endpoints, environment = await stack.enter_async_context(_etcd(config))
        if not _has_secret(config):
            environment["STARLINGMQ_CLUSTER__SECRET"] = secrets.token_hex(32)
        sockets = stack.enter_context(LockedDirectory(SOCKETS_PREFIX))
        workers = [
            Worker(_child(index, arguments, [*overrides, *settings], environment), sockets)
            for index, settings in enumerate(_settings(config, count, listeners, endpoints, sockets.path))
        ]
        stack.push_async_callback(_stop_all, workers, config.node.shutdown_timeout)
        for worker in workers:
            await worker.child.start()
        stopping = asyncio.ensure_future(stop.wait())
        starting = asyncio.ensure_future(_all_ready(workers))
        await first_of(stopping, starting)
        if not starting.done():
            starting.cancel()
            return
        starting.result()
        print("ready", *dict.fromkeys(workers[0].child.addresses), flush=True)
        for worker in workers:
            worker.watch()
        loop.add_signal_handler(signal.SIGHUP, _hang_up, workers)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        await stopping


def _child(index: int, arguments: Sequence[str], overrides: Sequence[str], environment: Mapping[str, str]) -> Child:
    """Secrets travel in the environment: every account can read the arguments of a process."""
    if any(map(reveals, overrides)):
        environment = {**environment, OVERRIDES: json.dumps(overrides)}
    else:
        arguments = [*arguments, *(part for override in overrides for part in ("--set", override))]
    return Child(f"worker {index + 1}", arguments, _tell, environment)


class Worker:
    """``sockets``: the directory of the workers' Unix sockets."""

    def __init__(self, child: Child, sockets: LockedDirectory) -> None:
        self.child = child
        self._sockets = sockets
        self._watch: asyncio.Task[None] | None = None

    def watch(self) -> None:
        self._watch = asyncio.create_task(self._start_again())

    async def stop(self, seconds: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self.child.stop(seconds)

    async def _start_again(self) -> None:
        loop = asyncio.get_running_loop()
        pause = BACKOFF[0]
        while True:
            began = loop.time()
            await self.child.ended.wait()
            pause = BACKOFF[0] if loop.time() - began > LONG_RUN else min(2 * pause, BACKOFF[1])
            log.error("%s %s; it is restarted in %.1f s", self.child.name, how_it_ended(self.child), pause)
            await asyncio.sleep(pause)
            with suppress(OSError):  # the worker says what is wrong
                self._sockets.restore()
            await self.child.start()


async def _all_ready(workers: Sequence[Worker]) -> None:
    served = await asyncio.gather(*(ready_or_ended(worker.child) for worker in workers))
    failed = [worker.child for worker, serves in zip(workers, served, strict=True) if not serves]
    if failed:
        raise WorkersError(", ".join(f"{child.name} {how_it_ended(child)}" for child in failed))


async def _stop_all(workers: Sequence[Worker], seconds: float) -> None:
    await asyncio.gather(*(worker.stop(seconds) for worker in workers))


def _hang_up(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.child.signal_when_ready(signal.SIGHUP)


def _tell(name: str, line: str) -> None:
    """Pass on a worker's log lines, JSON or text, unchanged; log its other output."""
    if line.startswith("{") or line[:4].isdigit():
        print(line, file=_stderr(), flush=True)
    else:
        log.error("%s: %s", name, line.removeprefix("error: "))


def _stderr() -> Any:
    handler = logging.getLogger("starlingmq").handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    return handler.stream


def _has_secret(config: Config) -> bool:
    return bool(config.cluster.secret or config.cluster.secret_file)


def _settings(
    config: Config, count: int, listeners: Sequence[ListenerConfig], endpoints: Sequence[str], sockets: str
) -> Iterator[list[str]]:
    """Return the settings of a worker, as overrides; other nodes identify it by its address."""
    for index, address in enumerate(_addresses(config, count)):
        yield _worker_settings(config, index, address, listeners, endpoints, sockets)


def _worker_settings(
    config: Config,
    index: int,
    address: str,
    listeners: Sequence[ListenerConfig],
    endpoints: Sequence[str],
    sockets: str,
) -> list[str]:
    cluster = config.cluster
    one_machine = not cluster.enabled and cluster.watch_processes
    values: dict[str, Any] = {
        "node.name": f"{config.node.name}-{index + 1}",
        "listeners": [msgspec.to_builtins(each) for each in listeners],
        "cluster.enabled": True,
        "cluster.etcd.endpoints": list(endpoints),
        "cluster.one_machine": one_machine,
        "cluster.socket_dir": sockets if one_machine and len(os.fsencode(sockets)) <= SOCKET_DIR_BYTES_MAX else "",
        "cluster.listen": address,
        "log.format": _log_format(config),
    }
    if config.node.data_dir is not None:
        values["node.data_dir"] = str(Path(config.node.data_dir) / f"worker-{index + 1}")
    if cluster.advertise:
        values["cluster.advertise"] = _nth(cluster.advertise, index)
    tls = etcd_tls(cluster)
    if tls is not None:
        values["cluster.etcd.tls"] = msgspec.to_builtins(tls)
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def _addresses(config: Config, count: int) -> list[str]:
    """Return the workers' cluster addresses: consecutive ports from the settings, otherwise free ports of this
    machine.
    """
    if config.cluster.enabled:
        return [_nth(config.cluster.listen, index) for index in range(count)]
    return [f"{HOST}:{port}" for port in free_ports(count)]


def _nth(address: str, index: int) -> str:
    """Return the same host with the port of the n-th worker."""
    host, port = split_address(address, "cluster.listen")
    return f"[{host}]:{port + index if port else 0}" if ":" in host else f"{host}:{port + index if port else 0}"


def _log_format(config: Config) -> str:
    return config.log.format if config.log.format != "auto" else ("text" if _stderr().isatty() else "json")


@asynccontextmanager
async def _etcd(config: Config) -> AsyncIterator[tuple[Sequence[str], dict[str, str]]]:
    """Provide the etcd endpoints of the workers, and variables of their environment."""
    cluster = config.cluster
    if cluster.etcd.endpoints:
        yield cluster.etcd.endpoints, {}
        return
    with LockedDirectory(ETCD_PREFIX) as temporary:
        data = Path(config.node.data_dir or temporary.path)
        directory = Path(cluster.etcd.data_dir or data / "etcd")
        if cluster.enabled or directory.exists():
            async with _real_etcd(config, directory) as address:
                yield [address], {}
        else:
            async with _local_etcd(data / DIRECTORY) as server:
                name, password = "STARLINGMQ_CLUSTER__ETCD__USERNAME", "STARLINGMQ_CLUSTER__ETCD__PASSWORD"
                yield [server.address], {name: server.user, password: server.password}


@asynccontextmanager
async def _real_etcd(config: Config, directory: Path) -> AsyncIterator[str]:
    from starlingmq.net.etcd.etcd_server import EtcdServer  # gRPC: not needed to report a wrong setting

    cluster = config.cluster
    settings = cluster.etcd if cluster.enabled else msgspec.structs.replace(cluster.etcd, client_port=0, peer_port=0)
    server = EtcdServer(settings, config.node.name, cluster.name, directory, etcd_tls(cluster))
    try:
        await server.start()
        if not cluster.enabled and not await server.wait_ready(ETCD_READY_SECONDS):
            raise WorkersError("etcd does not answer; --log-level debug shows its log lines")
        yield server.address
    finally:
        await server.stop()


@asynccontextmanager
async def _local_etcd(directory: Path) -> AsyncIterator[LocalEtcd]:
    from starlingmq.net.local_etcd.local_etcd import LocalEtcd, LocalEtcdError  # gRPC, as above

    server = LocalEtcd(directory)
    try:
        await server.start()
        yield server
    except LocalEtcdError as error:
        raise WorkersError(str(error)) from error
    finally:
        await server.close()


async def _hold_ports(config: Config, stack: AsyncExitStack) -> list[ListenerConfig]:
    """Return the listeners, each with a port that is held for the workers until the stack is closed."""
    found = []
    for listener in config.listeners:
        spec = parse_listener(listener)
        if spec.scheme == "unix":
            raise ConfigError(f"{listener.url}: workers cannot share a Unix socket; use a port, or omit --workers")
        held, sockets = await hold_port(asyncio.get_running_loop(), spec)
        for each in sockets:
            stack.callback(each.close)
        found.append(msgspec.structs.replace(listener, url=str(held), reuse_port=True))
    return found
