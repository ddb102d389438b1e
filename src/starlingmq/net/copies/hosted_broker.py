"""A broker for the data of a node that is lost, in the process of its successor.

For the other members it is the lost node, restarted at another address: its name, the next incarnation, its data. It
has no listeners for clients; they connect to other nodes, which take over their sessions from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import Final, Protocol

import msgspec

from starlingmq.config.cluster_section import split_address
from starlingmq.config.settings import Config
from starlingmq.config.streams_section import StreamsConfig
from starlingmq.log import served_for
from starlingmq.net.copies.copy_part import CopyPart
from starlingmq.net.copies.copy_place import CopyPlace

log = logging.getLogger("starlingmq.copies")

OPEN_AGAIN: Final = 3.0  # seconds after a failure
FAILURES: Final = 3  # after which another node in step is to serve


class HostedBroker(Protocol):
    """See ``starlingmq.node.assembly.Broker``."""

    def start(self) -> Coroutine[None, None, None]: ...
    def stop_at_once(self) -> Coroutine[None, None, None]: ...


OpenBroker = Callable[[Config, CopyPart], HostedBroker]


class HostedOrigin:
    """Opens and closes the broker of one origin, as the newest order says, one step after the other."""

    def __init__(
        self,
        place: CopyPlace,
        config: Config,
        open_broker: OpenBroker,
        part_of: Callable[[int], CopyPart],
        on_failed: Callable[[int], None],
    ) -> None:
        self.place = place
        self.part: CopyPart | None = None
        self._config = config
        self._open_broker = open_broker
        self._part_of = part_of
        self._on_failed = on_failed
        self._failures = 0  # of the generation that is wanted
        self._wanted = 0  # generation; 0: no broker
        self._changed = asyncio.Event()
        self._task = asyncio.ensure_future(self._follow_orders())

    def want(self, generation: int) -> None:
        if generation != self._wanted:
            self._failures = 0
        self._wanted = generation
        if generation:
            self.place.taken = True
        self._changed.set()

    async def _follow_orders(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if generation := self._wanted:
                try:
                    await self._serve(generation)
                except Exception as error:
                    log.error("the data of %s cannot be served here, trying again: %s", self.place.origin, error)
                    self._failures += 1
                    if self._failures >= FAILURES:
                        self._on_failed(generation)
                    self._changed.set()
                    await asyncio.sleep(OPEN_AGAIN)
            else:
                self.place.taken = False

    async def _serve(self, generation: int) -> None:
        """Until another generation, or none, is wanted."""
        part = self.part = self._part_of(generation)
        own = copy_context()  # of all tasks of the broker: its log lines name the lost node
        own.run(served_for.set, self.place.origin)
        broker = own.run(self._open_broker, self._config, part)
        log.warning("taking over the data of %s, which is lost", self.place.origin)
        starting = asyncio.create_task(broker.start(), context=own)
        changed = asyncio.ensure_future(self._until_changed(generation))
        try:
            await asyncio.wait((starting, changed), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                log.warning("the data of %s is served here now", self.place.origin)
            await changed
        finally:
            self.part = None
            for task in (starting, changed):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task
            await asyncio.create_task(broker.stop_at_once(), context=own)
        log.info("the data of %s is not served here any more", self.place.origin)

    async def _until_changed(self, generation: int) -> None:
        while self._wanted == generation:
            await self._changed.wait()
            self._changed.clear()
        self._changed.set()  # for the loop

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def hosted_config(config: Config, origin: str, path: Path, endpoints: list[str]) -> Config:
    """The settings of the broker that serves the data of a lost node."""
    cluster = config.cluster
    return msgspec.structs.replace(
        config,
        node=msgspec.structs.replace(config.node, name=origin, data_dir=str(path)),
        listeners=(),
        streams=_at_a_free_port(config.streams),
        tracing=msgspec.structs.replace(config.tracing, endpoint=""),
        cluster=msgspec.structs.replace(
            cluster,
            listen=_without_port(cluster.listen, "cluster.listen"),
            advertise=advertised(config),
            etcd=msgspec.structs.replace(cluster.etcd, endpoints=tuple(endpoints), join=(), initial_members=()),
        ),
    )


def _at_a_free_port(streams: StreamsConfig) -> StreamsConfig:
    """The port of ``streams.listen`` is in use by the node itself."""
    if not streams.listen:
        return streams
    listen = _without_port(streams.listen, "streams.listen")
    advertise = _without_port(streams.advertise, "streams.advertise")
    return msgspec.structs.replace(streams, listen=listen, advertise=advertise)


def advertised(config: Config) -> str:
    """``cluster.advertise`` for a listener with another port, which is filled in once it is known: port 0. Empty: the
    listening address."""
    return _without_port(config.cluster.advertise, "cluster.advertise")


def _without_port(address: str, setting: str) -> str:
    """The same host with port 0; empty if the address is."""
    return f"{_bracketed(split_address(address, setting)[0])}:0" if address else ""


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
