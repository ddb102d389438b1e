"""``net.copies`` on simulated disks and connections: what works with files, sockets and etcd's client is replaced."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import msgspec
from tests.sim.copies.copied_disk import CopiedDisk, DiskFiles, MachineDisk
from tests.sim.copies.ports import Life as MachineLife
from tests.sim.copies.ports import Ports
from tests.sim.copies.sim_pipe import SimPeers

from starlingmq.cluster.etcd.etcd_requests import Request
from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.config.settings import ClusterConfig, Config, NodeConfig
from starlingmq.net.copies.copy_part import CopyPart
from starlingmq.net.copies.copy_place import CopyPlace, CopyPlaces
from starlingmq.net.copies.copy_process import CopyProcess
from starlingmq.net.copies.hosted_broker import OpenBroker
from starlingmq.net.etcd.etcd_client import EtcdClient
from starlingmq.net.peers.copy_link import CopyRefused
from starlingmq.net.peers.peer_handshake import RefusedError
from starlingmq.net.peers.peer_server import PeerServer
from starlingmq.storage.copies.copy_directory import CopyDirectory
from starlingmq.storage.copies.copy_facts import CopyFacts, Life, NotWhole, with_life
from starlingmq.storage.copies.copy_feed import FeedEnded
from starlingmq.storage.copies.copy_frames import ASKS, Hello
from starlingmq.storage.copies.copy_life import marked
from starlingmq.storage.copies.copy_records import CopyFrameError
from starlingmq.storage.copies.copy_source import CopySource
from starlingmq.storage.directory_store import DirectoryStore
from starlingmq.storage.journal_writer import Durability
from starlingmq.storage.store import Store

EXPECTED = (CopyRefused, RefusedError, FeedEnded, CopyFrameError, OSError)


def config_of(host: str, cluster: ClusterConfig) -> Config:
    etcd = msgspec.structs.replace(cluster.etcd, endpoints=("http://127.0.0.1:1",))
    wanted = msgspec.structs.replace(cluster, enabled=True, name="starling", listen="127.0.0.1:1", etcd=etcd)
    return Config(node=NodeConfig(name=host, data_dir=f"/nowhere/{host}"), cluster=wanted)


class SimPlace(CopyPlace):
    def __init__(self, disk: CopiedDisk, path: Path, origin: str) -> None:
        super().__init__(path, origin)
        self.disk = disk

    def _opened(self, hello: Hello, durability: Durability) -> CopyDirectory:
        assert hello.generation != ASKS, "no operator gives up data in these worlds"
        return CopyDirectory(DiskFiles(self.disk, self.origin), careful=durability == "power")


class SimPlaces(CopyPlaces):
    def __init__(self, disk: MachineDisk, host: str, durability: Durability) -> None:
        super().__init__(Path("/nowhere") / host, host, durability)
        self.disk = disk

    def find(self) -> list[str]:
        self.stored.update(self.disk.copies)
        return sorted(self.stored)

    def place(self, origin: str) -> SimPlace:
        if origin != self.me:
            self.stored.add(origin)
        if origin not in self.places:
            disk = self.disk.own if origin == self.me else self.disk.copy(origin)
            self.places[origin] = SimPlace(disk, self.directory / origin, origin)
        return cast(SimPlace, self.places[origin])

    def facts(self, origins: list[str]) -> dict[str, CopyFacts]:
        found = {origin: self.place(origin).disk.facts for origin in origins}
        return {origin: facts for origin, facts in found.items() if facts is not None}


class SimPart(CopyPart):
    _place: SimPlace

    async def prepare(self, config: Config) -> None:
        """Raises NotWhole, OSError."""
        await self._place.release()
        disk = self._place.disk
        if disk.facts is not None:
            await asyncio.to_thread(lambda: CopyDirectory(DiskFiles(disk, self.origin)).prepare())

    async def _connect(self, name: str, member: MemberInfo) -> None:
        try:
            await super()._connect(name, member)
        except EXPECTED:
            raise
        except Exception as error:
            assert isinstance(self._process, SimCopyProcess)
            self._process.life.failed(error)
            raise

    def _begin(self, store: Store) -> None:
        process = self._process
        record = process.roles.registry.records.get(self.origin)
        if record is None:
            raise NotWhole(f"{self.origin} was forgotten")
        disk = self._place.disk
        self.store = opened = cast(DirectoryStore, store)
        disk.machine.step()
        facts = disk.facts = with_life(disk.facts, self.origin, Life(self.generation, opened.journal.next, {}))
        mark = marked(opened.kv, self.generation, known=len(facts.lives) > 1)
        clock = asyncio.get_running_loop().time
        source = CopySource(opened.journal, opened.streams, facts, "segment", 0, mark, dict, clock)
        source.required = [name for name in record.in_step if name != process.roles.me.name]
        opened.copy_to(source)
        self.source = source
        source.on_acknowledged = self._acknowledged
        process.roles.opened(self.origin, self.generation, self._now())
        process.request_turn()


class SimClient:
    """In place of ``net.etcd.etcd_client``."""

    def __init__(self, life: MachineLife) -> None:
        self._session = life.world.etcd.node(f"copies@{life.host}", life.answered)

    def submit(self, request: Request) -> None:
        self._session.request(request)

    def close_now(self) -> None:
        self._session.close()


class SimCopyProcess(CopyProcess):
    """``begin`` instead of ``start``."""

    def __init__(self, life: MachineLife, ports: Ports, config: Config, open_broker: OpenBroker) -> None:
        super().__init__(config, open_broker)
        self.life = life
        self.disk = life.disk
        self.places = SimPlaces(life.disk, life.host, "power" if life.world.settings.power else "process")
        self.sim_peers = SimPeers(life, ports)
        self.peers = cast(PeerServer, self.sim_peers)
        self.client = SimClient(life)
        self._client = cast(EtcdClient, self.client)
        incarnation = ports.next_incarnation()
        self.disk.incarnations.add(incarnation)
        self._incarnations = set(self.disk.incarnations)
        self._begin(incarnation, self.places.facts([config.node.name, *self.places.find()]))

    def _part(self, origin: str, generation: int) -> CopyPart:
        return SimPart(self, self.places.place(origin), origin, generation, 0)

    def _keep_incarnations(self, known: list[int]) -> None:
        self.disk.incarnations = set(known)

    def _turn(self) -> None:
        super()._turn()
        if self.life.world.trace.on:
            self.life.trace_records()

    async def _delete(self, origin: str) -> None:
        place = self.places.place(origin)
        if place.taken:
            self._deleting.discard(origin)
            return
        await place.release()
        self.disk.copies.pop(origin, None)
        self.places.places.pop(origin, None)
        self._deleting.discard(origin)
        self.places.stored.discard(origin)

    async def _set_aside(self) -> None:
        self.disk.own = CopiedDisk(self.disk.machine, self.disk.span)
        self.places.places.pop(self.config.node.name, None)
        self.roles.began_blank()
        self.request_turn()
