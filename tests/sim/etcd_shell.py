"""Between the nodes of a world and its model of etcd: requests at once, answers at their virtual time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.sim.etcd_model import EtcdModel, Session
from tests.sim.network import machine_of
from tests.sim.schedule import Schedule

from starlingmq.cluster.etcd.etcd_requests import Answer, Get, Request, Txn

PREFIX = b"/starlingmq/"


class NodeEtcd:
    """The etcd session of one incarnation of a node: a lease that is kept alive, requests, answers."""

    def __init__(self, shell: EtcdShell, host: str, answer: Callable[[Answer], None]) -> None:
        self.shell = shell
        self.host = host
        self.answer = answer
        self.session: Session = shell.model.session(host)
        shell.lives[host] = self
        self._keep_alive()

    def request(self, request: Request) -> None:
        self.session.request(request, self.shell.schedule.now)
        self.shell.arm()

    def _keep_alive(self) -> None:
        if self.shell.lives.get(self.host) is self:
            now = self.shell.schedule.now
            if not self.shell.stalled(machine_of(self.host)):
                self.session.keep_alive(now)
                self.shell.arm()
            self.shell.schedule.after(self.shell.model.lease_ttl / 3, self._keep_alive)

    def close(self, revoke: bool = False) -> None:
        del self.shell.lives[self.host]
        self.session.close(self.shell.schedule.now, revoke)


class EtcdShell:
    def __init__(
        self, schedule: Schedule, random: Random, lease_ttl: float, timeout: float, stalled: Callable[[str], bool]
    ) -> None:
        self.schedule = schedule
        self.stalled = stalled
        self.model = EtcdModel(random, lease_ttl, timeout)
        self.lives: dict[str, NodeEtcd] = {}
        self._cut: dict[str, dict[str, None]] = {}  # by machine that is cut off, its sessions
        self._armed_at = 0.0

    def node(self, host: str, answer: Callable[[Answer], None]) -> NodeEtcd:
        if machine_of(host) in self._cut:
            self._cut[machine_of(host)][host] = None
            self.model.cut(host)
        return NodeEtcd(self, host, answer)

    def arm(self) -> None:
        due = self.model.next_due()
        if due is not None and (self._armed_at == 0.0 or due < self._armed_at):
            self._armed_at = max(due, self.schedule.now)
            self.schedule.at(self._armed_at, self._due, self._armed_at)

    def _due(self, when: float) -> None:
        if self._armed_at != when:
            return
        self._armed_at = 0.0
        for host, answer in self.model.advance(self.schedule.now):
            life = self.lives.get(host)
            if life is not None:
                life.answer(answer)
        self.arm()

    # Faults

    def lose_leader(self, seconds: float) -> None:
        self.model.lose_leader(self.schedule.now, seconds)
        self.arm()

    def compact(self) -> None:
        self.model.compact()

    def expire_lease(self, host: str) -> None:
        for each in self._at(host):
            self.model.expire_lease(each, self.schedule.now)
            self.arm()

    def cut(self, host: str) -> None:
        cut = self._cut[host] = dict.fromkeys((host, *self._at(host), *self._cut.get(host, ())))
        for each in cut:
            self.model.cut(each)

    def heal(self, host: str) -> None:
        for each in self._cut.pop(host, (host,)):
            self.model.heal(each, self.schedule.now)
        self.arm()

    def _at(self, machine: str) -> list[str]:
        """The sessions of the processes there."""
        return [host for host in self.lives if machine_of(host) == machine]

    def registered(self) -> list[bytes]:
        """The keys of the registered members."""
        answer = self.model.store.transact(Txn("", (), (Get(PREFIX, True),)), 0)
        return [found.key for found in answer.found[0] if b"/members/registered/" in found.key]
