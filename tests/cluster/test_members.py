"""One to three members and an etcd: the outcome of each transaction, and recovery from those that fail."""

from __future__ import annotations

from random import Random

import pytest
from tests.sim.etcd_model import EtcdModel, Session

from starlingmq.cluster.copies.copy_marks import CopyMarks
from starlingmq.cluster.etcd.etcd_requests import EtcdState, LeaseLost, Put, Request, Txn, TxnAnswer, Watch
from starlingmq.cluster.links.control_frames import MemberInfo, Membership
from starlingmq.cluster.membership.members import Members

SETTLE = 3.0


def state(members: Members) -> str:
    return members.state


class Town:
    """Members on one etcd, all of whom hear each other and know what the others know, if ``talking``."""

    def __init__(self, seed: int = 1) -> None:
        self.now = 10.0
        self.etcd = EtcdModel(Random(seed), lease_ttl=6.0, request_timeout=1.0)
        self.members: dict[str, Members] = {}  # by session
        self.sessions: dict[str, Session] = {}
        self.talking = True
        self.changes: dict[str, list[tuple[str, str]]] = {}
        self.requests: dict[str, list[Request]] = {}
        self.marks: CopyMarks | None = None

    def start(self, name: str, address: str = "", session: str = "") -> Members:
        key = session or name
        self.sessions[key] = self.etcd.session(key)
        self.sessions[key].keep_alive(self.now)
        members = self.members[key] = Members(
            "c",
            name,
            address or f"{name}:1",
            "1",
            settle=SETTLE,
            marks=self.marks,
        )
        self.changes[key] = []
        self.requests[key] = []
        members.start(self.now)
        return members

    def joined(self, *names: str) -> list[Members]:
        for name in names:
            self.start(name)
            self.run()
        assert [self.members[name].state for name in names] == ["registered"] * len(names)
        return [self.members[name] for name in names]

    def crash(self, session: str) -> None:
        del self.members[session]
        self.sessions[session].close(self.now, revoke=False)

    def run(self, seconds: float = 0.5, keep_alive: bool = True) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 0.01
            for key, answer in self.etcd.advance(self.now):
                if key in self.members:
                    self.members[key].answered(answer, self.now)
            for key, members in self.members.items():
                if keep_alive:
                    self.sessions[key].keep_alive(self.now)
                wake_at = members.wake_at()
                if wake_at and wake_at <= self.now:
                    members.tick(self.now)
                members.known_by(self.vouching(members) if self.talking else frozenset(), self.now)
                self.changes[key] += [(change.kind, change.member.name) for change in members.take_changes()]
                for request in members.take_requests():
                    self.requests[key].append(request)
                    self.sessions[key].request(request, self.now)

    def vouching(self, asking: Members) -> frozenset[int]:
        others = [members for members in self.members.values() if members is not asking and members.me is not None]
        revision = asking.membership.revision
        return frozenset([m.me.number for m in others if m.me is not None and m.membership.revision >= revision])


def names(members: Members) -> list[str]:
    return [member.name for member in members.membership.members]


def test_the_first_node_registers_at_once() -> None:
    town = Town()
    a = town.start("a")
    town.run(0.1)
    assert a.me == MemberInfo("a", 1, 1, "a:1", "1") and state(a) == "registered"
    assert a.membership.members == (a.me,) and a.online == {1: 1}
    assert town.changes["a"] == [("joining", "a"), ("joined", "a"), ("online", "a")]


def test_two_that_start_at_once_get_two_numbers_and_one_membership() -> None:
    for seed in range(50):
        town = Town(seed)
        a, b, c = (town.start(name) for name in "abc")
        town.run()
        assert a.membership == b.membership == c.membership and len(a.membership.members) == 3
        assert [member.number for member in a.membership.members] == [1, 2, 3]
        assert a.online == {1: 1, 2: 1, 3: 1} == b.online


def test_a_node_that_joins_is_seen_and_not_counted_until_a_majority_knows_of_the_last_change() -> None:
    town = Town()
    a, b = town.joined("a", "b")
    town.talking = False
    c = town.start("c")
    town.run(2 * SETTLE)
    assert state(c) == "joining" and c.me is not None and not c.me.registered
    assert a.joining == b.joining == (c.me,) and len(a.membership.members) == 2
    c.known_by(frozenset([1]), town.now)  # one of two is no majority
    assert state(c) == "joining" and c.wake_at() == 0.0
    town.talking = True
    town.run()
    assert state(c) == "registered" and names(a) == ["a", "b", "c"] and not a.joining


def test_a_majority_that_knows_is_enough_after_a_time() -> None:
    town = Town()
    town.joined("a", "b", "c")
    town.crash("c")
    d = town.start("d")
    town.run(SETTLE - 0.5)
    assert state(d) == "joining" and d.wake_at() > town.now
    town.run(1.0)
    assert state(d) == "registered"


def test_heartbeats_from_before_a_membership_change_do_not_count() -> None:
    town = Town()
    (a,) = town.joined("a")
    town.talking = False
    b, c = town.start("b"), town.start("c")
    town.run()
    town.talking = True
    b.known_by(frozenset([1]), town.now)
    for request in b.take_requests():
        town.sessions["b"].request(request, town.now)
    town.talking = False
    town.run()
    assert state(b) == "registered" and state(c) == "joining" and names(a) == ["a", "b"]
    c.adopt(a.membership, town.now)
    assert not c.take_requests(), "whoever it heard before knows less than is there now"


def test_a_restart_is_a_new_incarnation_of_the_same_number() -> None:
    town = Town()
    a, b = town.joined("a", "b")
    town.crash("b")
    b = town.start("b")
    town.run(0.2)  # at once: the lease of the first life still lives
    assert b.me is not None and (b.me.number, b.me.incarnation) == (2, 2) and state(b) == "registered"
    assert a.online == {1: 1, 2: 2} and ("incarnation", "b") in town.changes["a"]
    town.run(10.0)
    assert a.online == {1: 1, 2: 2}, "the end of the old lease takes nothing away"


def test_a_second_node_of_the_name_is_told_and_waits() -> None:
    town = Town()
    _a, b = town.joined("a", "b")
    second = town.start("b", "elsewhere:1", session="second")
    town.run(20.0)
    assert second.me is None and state(second) == "starting"
    assert second.problem == "a node named b is online at b:1; give this node another node.name"
    assert state(b) == "registered"
    town.crash("b")
    town.run(20.0)
    assert state(second) == "registered" and second.problem == "" and second.me is not None
    assert (second.me.number, second.me.incarnation, second.me.address) == (2, 2, "elsewhere:1")


def test_a_second_process_at_the_same_address_ends_the_first() -> None:
    town = Town()
    a, b = town.joined("a", "b")
    second = town.start("b", session="second")
    town.run()
    assert state(second) == "registered" and state(b) == "replaced"
    assert b.problem == "another process has started as b; this one leaves the cluster"
    town.run(20.0)
    assert a.online == {1: 1, 2: 2}


def test_a_second_node_of_the_name_while_the_first_is_joining() -> None:
    town = Town()
    town.joined("a")
    town.talking = False
    b = town.start("b")
    town.run()
    second = town.start("b", "elsewhere:1", session="second")
    town.run()
    assert state(b) == "joining" and second.me is None and "another node.name" in second.problem


@pytest.mark.parametrize("seeds", [12, pytest.param(60, marks=pytest.mark.long)])
def test_the_outcome_of_an_unanswered_transaction_is_found_out(seeds: int) -> None:
    for seed in range(seeds):
        town = Town(seed)
        town.joined("a")
        for name in "bcd":
            town.start(name)
            town.run(0.001 * Random(seed).randrange(15))
            town.etcd.lose_leader(town.now, 0.5)
        town.run(10.0)
        assert [state(members) for members in town.members.values()] == ["registered"] * 4
        infos = [members.me for members in town.members.values()]
        assert len({info.number for info in infos if info}) == 4
        assert all(info is not None and info.incarnation == 1 for info in infos), "an incarnation was thrown away"


def test_an_error_is_tried_again_after_longer_and_longer_times() -> None:
    members = Members("c", "a", "a:1", "1")
    now, waits = 10.0, []
    members.start(now)
    for _ in range(6):
        (request,) = members.take_requests()
        assert isinstance(request, Txn)
        members.answered(TxnAnswer(request.tag, False, 0, error="no leader"), now)
        assert not members.take_requests()
        waits.append(members.wake_at() - now)
        now = members.wake_at()
        members.tick(now)
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0]


def test_requests_wait_while_etcd_is_away_and_go_at_once_when_it_is_back() -> None:
    members = Members("c", "a", "a:1", "1")
    members.answered(EtcdState(False, "refused"), 1.0)
    members.start(1.0)
    assert not members.take_requests() and members.wake_at() == 0.0
    members.answered(EtcdState(True), 2.0)
    assert len(members.take_requests()) == 1


def test_a_lost_lease_is_written_again() -> None:
    for kind in ("registered", "joining"):
        town = Town()
        a, _b = town.joined("a", "b")
        town.talking = kind == "registered"
        c = town.start("c")
        town.run()
        assert state(c) == kind
        town.etcd.expire_lease("c", town.now)
        town.run()
        assert state(c) == kind and c.me is not None and c.me.number == 3
        assert c.me.incarnation == (1 if kind == "registered" else 2)
        assert a.online == ({1: 1, 2: 1, 3: 1} if kind == "registered" else {1: 1, 2: 1})
        assert a.joining == (() if kind == "registered" else (c.me,))


@pytest.mark.parametrize("seeds", [12, pytest.param(50, marks=pytest.mark.long)])
def test_a_node_that_joins_again_finds_its_own_unconfirmed_registration(seeds: int) -> None:
    for seed in range(seeds):
        town = Town(seed)
        town.joined("a", "b")
        town.talking = False
        c = town.start("c")
        town.run()
        town.etcd.expire_lease("c", town.now)
        town.run(0.01 * (seed % 5))
        town.etcd.lose_leader(town.now, 0.5)  # the request may be done, and the answer lost
        town.run(3.0)
        assert state(c) == "joining" and c.me is not None and c.me.number == 3, (seed, c.problem)
        assert c.me.incarnation in (2, 3)
        town.talking = True
        town.run(5.0)
        assert state(c) == "registered"


def test_a_lease_lost_without_notice_is_written_again() -> None:
    town = Town()
    (a,) = town.joined("a")
    a.answered(LeaseLost(77), town.now)
    (request,) = a.take_requests()
    assert isinstance(request, Txn) and request.success[0] == Put(b"/starlingmq/c/members/online/a", b"1", leased=True)


def test_a_crashed_node_goes_offline_and_stays_registered() -> None:
    town = Town()
    a, _b = town.joined("a", "b")
    town.crash("b")
    town.run(10.0)
    assert names(a) == ["a", "b"] and a.online == {1: 1}
    assert town.changes["a"][-1] == ("offline", "b")


def test_leaving_takes_all_keys_away_and_the_number_is_not_given_again() -> None:
    town = Town()
    a, _b, c = town.joined("a", "b", "c")
    c.leave(town.now)
    town.run()
    assert state(c) == "left" and names(a) == ["a", "b"] and a.online == {1: 1, 2: 1}
    assert ("left", "c") in town.changes["a"]
    del town.members["c"]
    c = town.start("c")
    town.run()
    assert c.me is not None and c.me.number == 4 and state(c) == "registered"


def test_leaving_before_and_while_joining() -> None:
    town = Town()
    a = Members("c", "z", "z:1", "1")
    a.leave(1.0)
    assert state(a) == "left"
    (a,) = town.joined("a")
    town.talking = False
    b, c = town.start("b"), town.start("c")
    c.leave(town.now)
    town.run()
    b.leave(town.now)
    town.run()
    assert (state(b), state(c)) == ("left", "left") and a.joining == () and names(a) == ["a"]


def test_a_node_that_leaves_before_it_has_rejoined_deletes_its_earlier_registration() -> None:
    town = Town()
    a, _b = town.joined("a", "b")
    town.crash("b")
    b = town.start("b")
    b.leave(town.now)
    town.run()
    assert state(b) == "left" and names(a) == ["a"]


def test_leaving_waits_for_etcd() -> None:
    town = Town()
    a, b = town.joined("a", "b")
    town.etcd.cut("b")
    town.run(2.0)
    b.leave(town.now)
    town.run(2.0)
    assert state(b) == "registered"
    town.etcd.heal("b", town.now)
    town.run(2.0)
    assert state(b) == "left" and names(a) == ["a"]


def test_forgetting_a_node_that_is_down() -> None:
    town = Town()
    a, b, c = town.joined("a", "b", "c")
    assert (
        a.forget("c", True, False, town.now)
        == "c is online; let it leave, or stop it (after a crash: wait until its lease expires)"
    )
    town.crash("c")
    town.run(10.0)
    assert a.forget("c", True, False, town.now) == ""
    town.run()
    assert [(result.name, result.error) for result in a.take_results()] == [("c", "")]
    assert names(a) == names(b) == ["a", "b"]
    c = town.start("c")
    town.run()
    assert c.me is not None and c.me.number == 4


def test_forgetting_is_refused_with_one_line_that_says_why() -> None:
    town = Town()
    a, _b, _c = town.joined("a", "b", "c")
    town.crash("c")
    town.run(10.0)
    assert a.forget("x", True, False, town.now) == "there is no member x"
    assert a.forget("a", True, False, town.now) == "a node cannot forget itself; let it leave"
    assert a.forget("c", False, False, town.now).startswith("no majority of the cluster is connected")
    a.known_by(frozenset(), town.now)
    assert (
        a.forget("c", True, False, town.now)
        == "not all nodes know the last membership change yet; try again in a moment"
    )
    town.etcd.cut("a")
    town.run(3.0)
    assert a.forget("c", True, False, town.now).startswith("etcd cannot be reached")


def test_forgetting_by_force_needs_no_consent() -> None:
    town = Town()
    a, b, _c = town.joined("a", "b", "c")
    town.crash("c")
    town.talking = False
    assert a.forget("c", False, True, town.now) == ""
    assert a.forget("b", False, True, town.now) == "c is being forgotten; try again in a moment"
    town.run()
    assert names(b) == ["a", "b"] and [result.error for result in a.take_results()] == [""]


def test_forgetting_by_two_at_once_ends_for_both() -> None:
    for seed in range(20):
        town = Town(seed)
        a, b, _c = town.joined("a", "b", "c")
        town.crash("c")
        town.run(10.0)
        assert a.forget("c", True, False, town.now) == b.forget("c", True, False, town.now) == ""
        town.run()
        assert [len(members.take_results()) for members in (a, b)] == [1, 1]
        assert names(a) == ["a", "b"]


def test_a_forgotten_node_that_lives_learns_it_from_etcd_or_from_its_peers() -> None:
    for cut in (False, True):
        town = Town()
        a, _b, c = town.joined("a", "b", "c")
        if cut:
            town.etcd.cut("c")
        assert a.forget("c", True, True, town.now) == ""
        town.run()
        if cut:
            assert state(c) == "registered"
            c.adopt(a.membership, town.now)
        assert state(c) == "forgotten" and "restart it" in c.problem
        town.run(10.0)
        assert names(a) == ["a", "b"] and a.online == {1: 1, 2: 1}


def test_an_adopted_membership_is_newer_or_nothing() -> None:
    town = Town()
    a, b = town.joined("a", "b")
    old = a.membership
    town.etcd.cut("b")
    town.joined("c")
    assert names(b) == ["a", "b"]
    b.adopt(a.membership, town.now)
    assert names(b) == ["a", "b", "c"]
    b.adopt(old, town.now)
    b.adopt(Membership(0, ()), town.now)
    assert names(b) == ["a", "b", "c"]
    town.etcd.heal("b", town.now)
    town.run(3.0)
    assert b.membership == a.membership and b.online == a.online


def test_a_watch_that_fell_behind_reads_again_and_tells_the_difference() -> None:
    town = Town()
    a, b, c = town.joined("a", "b", "c")
    town.etcd.cut("a")
    town.run(2.0)
    town.changes["a"].clear()
    c.leave(town.now)
    town.start("d")
    town.run(2.0)
    town.etcd.compact()
    town.etcd.heal("a", town.now)
    town.run(3.0)
    assert names(a) == ["a", "b", "d"] == names(b)
    assert ("left", "c") in town.changes["a"] and ("joined", "d") in town.changes["a"]
    assert sum(isinstance(request, Watch) for request in town.requests["a"]) == 2


def test_a_value_that_is_none_of_ours_is_named_and_changes_nothing() -> None:
    town = Town()
    a, _b = town.joined("a", "b")
    key = b"/starlingmq/c/members/registered/x"
    town.sessions["b"].request(Txn("by hand", (), (Put(key, b"{}"),)), town.now)
    town.run()
    assert names(a) == ["a", "b"]
    assert a.problem.startswith("etcd key /starlingmq/c/members/registered/x has an invalid value: ")


def test_a_quiet_cluster_sends_no_requests_to_etcd() -> None:
    town = Town()
    town.joined("a", "b", "c")
    asked = {key: len(requests) for key, requests in town.requests.items()}
    town.run(60.0)
    assert {key: len(requests) for key, requests in town.requests.items()} == asked
    assert all(count <= 6 for count in asked.values()), asked
