"""Some who want to lead, on one etcd that loses its leader, answers and leases."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

import pytest
from tests.sim.etcd_model import EtcdModel, Session

from starlingmq.cluster.etcd.election import Election
from starlingmq.cluster.etcd.etcd_requests import Txn

KEY = b"/starlingmq/c/leader"
STEP = 0.05
LEASE_TTL = 3.0


class Candidates:
    """Each name is one node; its value names the life."""

    def __init__(self, seed: int, names: str = "abc") -> None:
        self.random = Random(seed)
        self.now = 100.0
        self.etcd = EtcdModel(self.random, lease_ttl=LEASE_TTL, request_timeout=0.5)
        self.sessions: dict[str, Session] = {}
        self.elections: dict[str, Election] = {}
        self.silent: dict[str, float] = {}  # name -> until when its lease is not kept alive
        self.lives = 0
        self.terms: dict[int, bytes] = {}
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        self.lives += 1
        self.sessions[name] = self.etcd.session(name)
        self.elections[name] = Election(KEY)
        self.elections[name].campaign(f"{name}{self.lives}".encode(), self.now)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = round(self.now + STEP, 6)
            for name, answer in self.etcd.advance(self.now):
                self.elections[name].answered(answer, self.now)
                self.check()
            for name, election in self.elections.items():
                if self.now >= self.silent.get(name, 0.0):
                    self.sessions[name].keep_alive(self.now)
                wake = election.wake_at()
                if wake and wake <= self.now:
                    election.tick(self.now)
                for request in election.take_requests():
                    self.sessions[name].request(request, self.now)
            self.check()

    def check(self) -> None:
        there = self.etcd.store.get(KEY)
        for election in self.elections.values():
            if election.leading:
                assert self.terms.setdefault(election.term, election.leader) == election.leader, "two have one term"
                if there and there[0].create_revision == election.term:
                    assert there[0].value == election.leader, "who does not lead holds the key"

    def fault(self) -> None:
        name = self.random.choice(list(self.elections))
        what = self.random.randrange(6)
        if what == 0:
            self.etcd.lose_leader(self.now, self.random.choice([0.2, 2.0, 5.0]))
        elif what == 1:
            self.etcd.expire_lease(name, self.now)
        elif what == 2:
            self.etcd.compact()
        elif what == 3:
            self.silent[name] = self.now + 1.5 * LEASE_TTL
        elif what == 4:
            self.etcd.cut(name)
        else:
            self.sessions[name].close(self.now, revoke=False)
            self.start(name)

    def heal(self) -> None:
        self.silent.clear()
        for name in self.elections:
            self.etcd.heal(name, self.now)

    def agreed(self) -> bool:
        leaders = {(election.leader, election.term) for election in self.elections.values()}
        return len(leaders) == 1 and sum(election.leading for election in self.elections.values()) == 1


def live(seed: int) -> Candidates:
    world = Candidates(seed)
    world.run(1.0)
    for _ in range(8):
        world.fault()
        world.run(world.random.uniform(0.1, 4.0))
    world.heal()
    world.run(15.0)
    assert world.agreed(), [(each.state, each.leader, each.term) for each in world.elections.values()]
    return world


def test_one_of_them_leads() -> None:
    world = Candidates(1)
    world.run(1.0)
    assert world.agreed()


def test_another_one_leads_when_the_lease_of_the_first_has_run_out() -> None:
    world = Candidates(2)
    world.run(1.0)
    name = next(name for name, election in world.elections.items() if election.leading)
    term = world.elections[name].term
    world.sessions[name].close(world.now, revoke=False)
    del world.elections[name], world.sessions[name]
    world.run(2 * LEASE_TTL)
    assert world.agreed()
    assert next(iter(world.elections.values())).term > term


@pytest.mark.parametrize("seeds", [range(100)])
def test_no_term_has_two_leaders_in_any_random_world(seeds: range) -> None:
    terms = sum(len(live(seed).terms) for seed in seeds)
    assert terms > 2 * len(seeds), "hardly anybody was ever elected anew"


@pytest.mark.interpreted_only("what is compiled can not be patched")
def test_the_worlds_find_an_election_that_takes_a_held_key() -> None:
    send = Election._send

    def greedy(self: Election, compares: object, success: object, failure: object) -> None:
        send(self, (), success, failure)  # type: ignore[arg-type]

    with patch.object(Election, "_send", greedy), pytest.raises(AssertionError):
        for seed in range(50):
            live(seed)


def test_a_candidate_asks_once_at_a_time() -> None:
    election = Election(KEY)
    election.campaign(b"a1", 1.0)
    election.campaign(b"a1", 1.0)
    election.tick(2.0)
    assert len([request for request in election.take_requests() if isinstance(request, Txn)]) == 1
