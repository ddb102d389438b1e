"""The node's own etcd: a member that is started, watched and stopped with the node.

It becomes a member in one of three ways, decided by the first start and kept in its data directory: alone; together
with others that all know each other (``initial_members``); or added to a running etcd (``join``), first as a learner,
which is promoted once it has caught up. A node with an empty disk that was a member before is added again in place of
its former member, whether its settings say ``initial_members`` or ``join`` (net/etcd/etcd_rejoin.py).
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Final
from urllib.parse import quote

from starlingmq.config.cluster_section import EtcdConfig, EtcdTlsConfig
from starlingmq.net.etcd.etcd_calls import EtcdCalls, EtcdError
from starlingmq.net.etcd.etcd_members import EtcdMember, add_learner, addresses, members, promote, remove, status
from starlingmq.net.etcd.etcd_process import EtcdProcess, EtcdServerError, find_program
from starlingmq.net.etcd.etcd_rejoin import ask_members, has_begun, is_alive
from starlingmq.storage.private_files import NotPrivate, make_private

log = logging.getLogger("starlingmq.etcd")

BACKOFF: Final = (0.2, 5.0)  # seconds until a restart: first, maximum
LONG_RUN: Final = 10.0  # seconds after which a run counts as successful
CHECK_SECONDS: Final = 2.0
SILENT_MAX: Final = 8  # consecutive checks without an answer, after one with, until it is killed
ASK_AGAIN: Final = 0.3  # seconds
STARTS_SECONDS: Final = 0.05  # the same in the first ``START_SECONDS`` of a run
START_SECONDS: Final = 5.0
JOIN_SECONDS: Final = 60.0
PORTS_FILE: Final = "ports.json"
LEFT_FILE: Final = "left"
REMOVE_SECONDS: Final = 10.0
ELECTION: Final = {"heartbeat-interval": "50", "election-timeout": "400"}
"""Milliseconds; etcd has 100 and 1000. When a machine is lost with the leader of the etcds, publishers elsewhere wait
for an election, one to nearly two time-outs, and 0.25 s in which it becomes known that their copy is gone: one second
together. A leader that is merely slow may lose its office earlier, which no client notices."""
DATA: Final = "data"  # everything below belongs to etcd


class EtcdServer:
    """``name``: the node's; ``token``: the cluster's. ``tls`` is used for clients and members, in both directions."""

    def __init__(
        self, settings: EtcdConfig, name: str, token: str, data_dir: Path, tls: EtcdTlsConfig | None = None
    ) -> None:
        self.settings = settings
        self.data_dir = data_dir
        self.restarts = 0
        self._name = quote(name, safe="@")
        self._token = token
        self._tls = tls
        self._ports = (settings.client_port, settings.peer_port)
        self._process: EtcdProcess | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._calls: EtcdCalls | None = None
        self._answers = asyncio.Event()
        self._through: tuple[str, ...] = ()  # members that this one was added through, as host:port
        self._stopping = False
        self.removed = False  # this member was removed from etcd: it will not run again
        self.on_removed: Callable[[], None] = lambda: None

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"{_bracketed(self.settings.host)}:{self._ports[0]}"

    @property
    def peer_url(self) -> str:
        return f"{self._scheme}://{_bracketed(self.settings.host)}:{self._ports[1]}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    async def start(self) -> None:
        """Starts the program. It may not answer until other members run: see ``wait_ready``. Raises EtcdServerError
        without a program, without a place for its data, or when no member lets it join."""
        program = find_program(self.settings.binary)
        if (self.data_dir / LEFT_FILE).exists():
            raise EtcdServerError(
                f"{self.data_dir} belongs to an etcd member that has left: delete it, so that the node "
                "joins again as a new member"
            )
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            make_private(self.data_dir)
            self._ports = self._choose_ports()
        except NotPrivate as error:
            raise EtcdServerError(f"etcd: {error}") from None
        except OSError as error:
            raise EtcdServerError(f"etcd: {error.filename or self.data_dir}: {error.strerror}") from error
        arguments = self._arguments() + await self._membership()
        self._calls = EtcdCalls([self.address], 1.0, self._tls)
        self._process = await self._launch(program, arguments)
        self._tasks = [asyncio.create_task(self._run(program, arguments)), asyncio.create_task(self._check())]

    async def wait_ready(self, seconds: float) -> bool:
        """Whether it answers, knows a leader and is a voting member within that time."""
        try:
            async with asyncio.timeout(seconds):
                await self._answers.wait()
        except TimeoutError:
            return False
        return not self.removed  # it may have ended since, as it may at any time

    def quiet(self) -> None:
        """The node is stopping: warnings of etcd do not matter any more."""
        if self._process is not None:
            self._process.quiet = True

    async def stop(self) -> None:
        """May be called twice, and after ``start`` has failed."""
        first, self._stopping = not self._stopping, True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._process is not None:
            await self._process.stop()
            if first and not self.removed:
                log.info("etcd has stopped")
        if self._calls is not None:
            await self._calls.close()

    # Removing members

    async def leave(self) -> None:
        """Removes this member and stops it for good. Without other members it stays, since none could take over its
        data."""
        if not await self._remove(self._name):
            return
        (self.data_dir / LEFT_FILE).touch()
        await self.stop()

    async def forget(self, name: str) -> None:
        """Removes the member of a node that will not return; until then it counts for the majority."""
        await self._remove(quote(name, safe="@"))

    async def _remove(self, name: str) -> bool:
        """Whether a member of that name is gone, and there are others."""
        assert self._calls is not None
        until = monotonic() + REMOVE_SECONDS
        while True:
            try:
                found = await members(self._calls)
                others = [member for member in found if member.name != name]
                if len(others) == len(found) or not others:
                    return bool(others)
                calls = EtcdCalls(addresses(others), self.settings.request_timeout, self._tls)
                try:
                    for member in found:
                        if member.name == name:
                            await remove(calls, member.id)
                finally:
                    await calls.close()
            except EtcdError as error:
                if self.removed and name == self._name:
                    return True  # the removal made it exit before it could answer
                if monotonic() > until:
                    log.error(
                        "removing this node's etcd member failed; remove %s with etcdctl member remove: %s", name, error
                    )
                    return False
                await asyncio.sleep(ASK_AGAIN)

    # Arguments

    @property
    def _scheme(self) -> str:
        return "http" if self._tls is None else "https"

    def _choose_ports(self) -> tuple[int, int]:
        """Free ports are chosen once: the other members know this one by its port."""
        wanted = (self.settings.client_port, self.settings.peer_port)
        if all(wanted):
            return wanted
        path = self.data_dir / PORTS_FILE
        if path.exists():
            client, peer = json.loads(path.read_text())
            return int(client), int(peer)
        sockets = [
            socket.create_server((self.settings.host, port), family=_family(self.settings.host)) for port in wanted
        ]
        client, peer = (each.getsockname()[1] for each in sockets)
        for each in sockets:
            each.close()
        path.write_text(json.dumps([client, peer]))
        return client, peer

    def _arguments(self) -> list[str]:
        client_url = f"{self._scheme}://{self.address}"
        options = {
            "name": self._name,
            "data-dir": str(self.data_dir / DATA),
            "listen-client-urls": client_url,
            "advertise-client-urls": client_url,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster-token": self._token,
            "quota-backend-bytes": str(self.settings.quota),
            "auto-compaction-mode": "periodic",
            "auto-compaction-retention": f"{max(1, round(self.settings.compaction_retention))}s",
            "strict-reconfig-check": "true",
            **ELECTION,
            "pre-vote": "true",  # a member that was isolated does not unseat the leader on its return
            "logger": "zap",
            "log-outputs": "stderr",
            "log-level": "warn",
        }
        if self._tls is not None:
            for prefix in ("", "peer-"):
                options[f"{prefix}cert-file"] = self._tls.cert
                options[f"{prefix}key-file"] = self._tls.key
                options[f"{prefix}trusted-ca-file"] = self._tls.ca
                options[f"{prefix}client-cert-auth"] = "true"
            if self.settings.allowed_name not in ("", "*"):
                # One name for both ports: etcd 3.4 to 3.6 have these two options; lists of names only 3.6.
                options["client-cert-allowed-hostname"] = self.settings.allowed_name
                options["peer-cert-allowed-hostname"] = self.settings.allowed_name
        return [f"--{key}={value}" for key, value in options.items()]

    async def _membership(self) -> list[str]:
        if has_data(self.data_dir):
            return []  # etcd uses its stored membership, and ignores these arguments
        self._through = self.settings.join
        if not self._through:
            running = await ask_members(self._other_peers(), self._tls)
            if has_begun(running, self.peer_url):
                self._through = tuple(addresses(running))
        if self._through:
            found = await self._join(EtcdCalls(self._through, self.settings.request_timeout, self._tls))
            return _cluster(found, "existing")
        if self.settings.initial_members:
            pairs = (entry.rpartition("=") for entry in self.settings.initial_members)
            return _cluster([(quote(name, safe="@"), f"{self._scheme}://{where}") for name, _, where in pairs], "new")
        return _cluster([(self._name, self.peer_url)], "new")

    async def _join(self, calls: EtcdCalls) -> list[tuple[str, str]]:
        """Adds this member, unless an earlier start has done so. Returns names and peer URLs of all members.

        One member may be added at a time. One whose node ended before its etcd began blocks all others: it is removed
        after ``JOIN_SECONDS``, and its node would add it again.
        """
        until = monotonic() + JOIN_SECONDS
        found: list[EtcdMember] = []
        unbegun: set[int] | None = None  # all the time
        try:
            while True:
                try:
                    found = await members(calls)
                    if await self._remove_former(calls, _mine(found, self.peer_url)):
                        found = await members(calls)
                    self._check_name(found)
                    if not _mine(found, self.peer_url):
                        await add_learner(calls, self.peer_url)
                        found = await members(calls)
                    break
                except EtcdError as error:
                    # Another learner, absent members, no answer: all of these may be temporary.
                    now = {each.id for each in found if each.learner and not each.name}
                    unbegun = now if unbegun is None else unbegun & now
                    if monotonic() > until:
                        if not await self._remove_unbegun(calls, [each for each in found if each.id in unbegun]):
                            raise EtcdServerError(f"this node's etcd cannot join: {error}") from None
                        until = monotonic() + JOIN_SECONDS
                await asyncio.sleep(ASK_AGAIN)
        finally:
            await calls.close()
        mine = {member.id for member in _mine(found, self.peer_url)}
        return [
            (self._name if member.id in mine else member.name or f"member-{member.id:x}", url)
            for member in found
            for url in member.peer_urls
        ]

    def _check_name(self, found: Sequence[EtcdMember]) -> None:
        """Raises EtcdServerError if another node has the name of this one."""
        for member in found:
            if member.name == self._name and self.peer_url not in member.peer_urls:
                raise EtcdServerError(
                    f"the etcd of node {self._name} is at {', '.join(member.peer_urls)}: change node.name here, "
                    f"or, if that one does not return, run starlingmq ctl cluster forget {self._name} on another node"
                )

    async def _remove_unbegun(self, calls: EtcdCalls, unbegun: Sequence[EtcdMember]) -> bool:
        """Removes one that does not listen. Returns whether there was one. Raises EtcdServerError."""
        for member in unbegun:
            if not any([await is_alive(url) for url in member.peer_urls]):
                log.warning("the etcd member at %s was added, and has not begun: it is removed", member.peer_urls[0])
                try:
                    await remove(calls, member.id)
                except EtcdError as error:
                    raise EtcdServerError(f"this node's etcd cannot join: {error}") from None
                return True
        return False

    async def _remove_former(self, calls: EtcdCalls, mine: Sequence[EtcdMember]) -> bool:
        """Removes this node's member of an earlier disk, if there is one. A member that was added and has never run may
        continue. Raises EtcdError, EtcdServerError."""
        former = [member for member in mine if member.name]
        for member in former:
            if member.name != self._name:
                raise EtcdServerError(
                    f"{self.peer_url} belongs to the etcd member of node {member.name}: set another "
                    "cluster.etcd.host or peer_port for this node, or run starlingmq ctl cluster forget "
                    f"{member.name} on another node"
                )
            if await is_alive(self.peer_url):
                raise EtcdServerError(
                    f"the etcd of node {member.name} already runs at {self.peer_url}: change node.name "
                    "and the address of this node"
                )
            log.warning("the disk of this node is empty: its former etcd member is removed, and the node joins again")
            await remove(calls, member.id)
        return bool(former)

    def _other_peers(self) -> list[str]:
        wheres = (entry.rpartition("=")[2] for entry in self.settings.initial_members)
        return [url for where in wheres if (url := f"{self._scheme}://{where}") != self.peer_url]

    # While it runs

    async def _run(self, program: str, arguments: Sequence[str]) -> None:
        pause = BACKOFF[0]
        while True:
            assert self._process is not None
            began = monotonic()
            code = await self._process.wait()
            self._answers.clear()
            if self._process.removed:
                log.error("etcd has exited, because this node's member was removed")
                self.removed = True
                self._answers.set()  # ends ``wait_ready``
                self.on_removed()
                return
            pause = BACKOFF[0] if monotonic() - began > LONG_RUN else min(pause * 2, BACKOFF[1])
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit status {code}"
            last = f" ({self._process.last})" if self._process.last and code > 0 else ""
            log.error("etcd %s%s; it is restarted in %.1f s", how, last, pause)
            await asyncio.sleep(pause)
            self.restarts += 1
            if self._process.bootstrapped:  # the other members bootstrapped between this node's question and its start
                try:
                    arguments = self._arguments() + await self._membership()
                except EtcdServerError as error:
                    log.error("etcd: %s", error)
            self._process = await self._launch(program, arguments)

    async def _launch(self, program: str, arguments: Sequence[str]) -> EtcdProcess:
        process = await EtcdProcess.start(program, arguments)
        log.info("etcd starts (process %d): clients at %s, members at %s", process.pid, self.address, self.peer_url)
        return process

    async def _check(self) -> None:
        """Checks its status, has a learner promoted, and kills it when it has stopped answering."""
        assert self._calls is not None
        silent, of, answered, began = 0, 0, False, 0.0
        while True:
            pid = self.pid
            if pid != of:
                silent, of, answered, began = 0, pid, False, monotonic()
            try:
                state = await status(self._calls)
            except EtcdError as error:
                log.debug("etcd does not answer: %s", error)
                silent += answered
                if silent >= SILENT_MAX and self._process is not None and self._process.pid == pid:
                    log.error("etcd does not answer: %s; it is killed and restarted", error)
                    self._process.kill()
                    silent = 0
            else:
                silent, answered = 0, True
                if state.learner:
                    await self._promote(state.member)
                elif state.leader and self.pid == pid:
                    self._answers.set()
            pause = STARTS_SECONDS if not silent and monotonic() < began + START_SECONDS else ASK_AGAIN
            await asyncio.sleep(CHECK_SECONDS if self._answers.is_set() else pause)

    async def _promote(self, member: int) -> None:
        if not self._through:
            self._through = self.settings.join or tuple(addresses(await ask_members(self._other_peers(), self._tls)))
        if not self._through:
            return
        calls = EtcdCalls(self._through, self.settings.request_timeout, self._tls)
        try:
            await promote(calls, member)
        except EtcdError as error:
            log.debug("etcd: this node's member cannot become a voting member yet: %s", error)
        else:
            log.info("etcd: this node's member has caught up and is a voting member now")
        finally:
            await calls.close()


def has_data(directory: Path) -> bool:
    """Whether a member has run there."""
    return any((directory / DATA / "member" / "wal").glob("*.wal"))


def _cluster(found: Sequence[tuple[str, str]], state: str) -> list[str]:
    pairs = ",".join(f"{name}={url}" for name, url in found)
    return [f"--initial-cluster={pairs}", f"--initial-cluster-state={state}"]


def _mine(found: Sequence[EtcdMember], peer_url: str) -> list[EtcdMember]:
    return [member for member in found if peer_url in member.peer_urls]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
