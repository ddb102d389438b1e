"""Nothing acknowledged is lost although disks are: worlds of copies, and mistakes made on purpose that they find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from tests.cluster import copies_last_disk
from tests.cluster.copies_disk import Log
from tests.cluster.copies_process import CopyProcess, Feed, Served
from tests.cluster.copies_world import run
from tests.few import few
from tests.planting import first_to_find

from starlingmq.cluster.copies import copy_roles as roles_module
from starlingmq.cluster.copies import copy_server as server_module
from starlingmq.cluster.copies.copy_record import CopyRecord
from starlingmq.cluster.copies.copy_registry import CopyRegistry
from starlingmq.cluster.copies.copy_roles import CopyRoles
from starlingmq.cluster.copies.copy_server import CopyServer, Follower
from starlingmq.cluster.copies.in_step_table import FOLLOWER_TABLE, FollowerAction, FollowerEvent, FollowerState
from starlingmq.cluster.copies.role_table import Role
from starlingmq.cluster.copies.successors import successor
from starlingmq.cluster.etcd.etcd_cas import EtcdCas
from starlingmq.cluster.etcd.etcd_requests import Txn, TxnAnswer
from starlingmq.core.structures.state_table import NoTransition, Row, StateTable

FOUND = (AssertionError, NoTransition)

_S, _E = FollowerState, FollowerEvent


def with_rows(table: StateTable[Any, Any, Any], *rows: Row[Any, Any, Any]) -> StateTable[Any, Any, Any]:
    changed = StateTable[Any, Any, Any](table.about, ())
    changed.rows = {**table.rows, **{(row.state, row.event): row for row in rows}}
    return changed


def row(state: Any, event: Any, next: Any, *actions: Any) -> Row[Any, Any, Any]:
    return Row(state, event, next, actions, "")


def states(*left: FollowerState) -> Callable[[CopyServer], tuple[str, ...]]:
    """``CopyServer.required`` that leaves out followers in more states than it may."""
    kept = set(FollowerState) - {FollowerState.FOLLOWING, *left}
    return lambda self: tuple([each.name for each in self.followers.values() if each.state in kept])


def names_any_follower(record: CopyRecord, *arguments: Any) -> CopyRecord | None:
    everyone = {**dict.fromkeys(record.followers, 1), **record.in_step}
    named = successor(replace(record, in_step=everyone), *arguments)
    return None if named is None else replace(named, in_step=record.in_step or everyone)


def names_and_lists(record: CopyRecord, *arguments: Any) -> CopyRecord | None:
    named = names_any_follower(record, *arguments)
    return None if named is None else replace(named, in_step={**named.in_step, named.server: named.incarnation})


def accepts_all(self: CopyRoles, origin: str, server: str, generation: int) -> bool:
    return self.roles.get(origin) in (Role.FOLLOWING, Role.SERVING)


accepts = CopyProcess._accepts


def accepts_what_was_greeted(self: CopyProcess, feed: Feed) -> bool:
    return feed.sent >= 0 or accepts(self, feed)


def compares_nothing(self: EtcdCas, now: float) -> list[Txn]:
    return [Txn(each.tag, (), each.success, each.failure) for each in take_requests(self, now)]


take_requests = EtcdCas.take_requests


def believes_its_disk(self: CopyRoles, record: CopyRecord) -> CopyRecord | None:
    return record.returned(self.me.name, self.me.incarnation)


def serves_what_it_has_if_it_is_alone(self: CopyRoles, record: CopyRecord) -> CopyRecord | None:
    return returns(self, record) or record.returned(self.me.name, self.me.incarnation)


def gives_up_nothing(self: CopyRecord, name: str, incarnation: int) -> CopyRecord:
    return replace(self.handed_to(name, incarnation), in_step={**self.in_step, name: incarnation})


def gives_up_in_the_same_generation(self: CopyRecord, name: str, incarnation: int) -> CopyRecord:
    return replace(given_up_to(self, name, incarnation), generation=self.generation)


given_up_to = CopyRecord.given_up_to


def believes_any_disk_that_was_used(self: CopyRoles, record: CopyRecord) -> CopyRecord | None:
    self._incarnations = (
        frozenset((*self._incarnations, *range(max(self._incarnations))))
        if len(self._incarnations) > 1
        else self._incarnations
    )
    return returns(self, record)


returns = CopyRoles._return


def keeps_its_generation(self: CopyRecord, name: str, incarnation: int, known: int = 0) -> CopyRecord:
    changed = replace(self, in_step={**self.in_step, name: incarnation})
    return replace(changed, incarnation=incarnation) if name == self.server else changed


def proves_by_its_earlier_disk(
    self: CopyServer, name: str, incarnation: int, more: bool, now: float, less: bool = False
) -> bool:
    follower = self.followers.get(name, Follower(name, False, now))
    stored = follower.stored
    accepted = attached(self, name, incarnation, more, now, less)
    follower.stored = stored
    return accepted


attached = CopyServer.attached


def keeps_what_comes_last(self: CopyRegistry, key: bytes, value: bytes | None, revision: int) -> None:
    self._seen.pop(key, None)
    set_key(self, key, value, revision)


set_key = CopyRegistry.set


def leaves_any_behind(self: CopyServer, follower: Follower, now: float) -> None:
    if self._lags(follower, now):
        self._step(follower, _E.LAGS, now)


def takes_an_error_for_a_failure(self: CopyRoles, answer: Any, now: float) -> None:
    answered(self, answer, now)
    if isinstance(answer, TxnAnswer) and answer.tag.startswith("copies change") and answer.error:
        for server in self.servers.values():
            for follower in server.followers.values():
                if follower.state is FollowerState.ENTERING:
                    follower.state = FollowerState.FOLLOWING


answered = CopyRoles.answered


def releases_by_majority(self: CopyProcess, served: Served) -> None:
    required = served.required
    served.required = required[: len(required) // 2]
    try:
        release(self, served)
    finally:
        served.required = required


release = CopyProcess._release


def keeps_the_tail(self: Log, generation: int, end: int) -> int:
    return end


MISTAKES: dict[str, tuple[Any, str, Any]] = {
    "it is acknowledged before the copy": (CopyServer, "required", states(*FollowerState)),
    "half of the nodes in step are enough": (CopyProcess, "_release", releases_by_majority),
    "a lagging follower is named": (roles_module, "successor", names_and_lists),
    "a follower stores whatever the generation": (CopyRoles, "accepts", accepts_all),
    "the fence is checked when a server connects, and not later": (CopyProcess, "_accepts", accepts_what_was_greeted),
    "the set shrinks without a trace": (
        server_module,
        "FOLLOWER_TABLE",
        with_rows(FOLLOWER_TABLE, row(_S.IN_STEP, _E.LAGS, _S.FOLLOWING)),
    ),
    "a follower that leaves is not waited for": (CopyServer, "required", states(_S.LEAVING)),
    "a follower is waited for once it is listed": (CopyServer, "required", states(_S.PROVING, _S.ENTERING)),
    "a follower is listed before it has everything": (
        server_module,
        "FOLLOWER_TABLE",
        with_rows(FOLLOWER_TABLE, row(_S.FOLLOWING, _E.CAUGHT_UP, _S.ENTERING, FollowerAction.NOTE_INCARNATION)),
    ),
    "an unknown outcome counts as a failure": (CopyRoles, "answered", takes_an_error_for_a_failure),
    "a change of a record compares nothing": (EtcdCas, "take_requests", compares_nothing),
    "an empty disk is believed": (CopyRoles, "_return", believes_its_disk),
    "an old disk is believed": (CopyRoles, "_return", believes_any_disk_that_was_used),
    "a restart keeps the generation": (CopyRecord, "returned", keeps_its_generation),
    "what an earlier disk had stored counts": (CopyServer, "attached", proves_by_its_earlier_disk),
    "an older state of a record replaces a newer one": (CopyRegistry, "set", keeps_what_comes_last),
    "too few are left in step": (CopyServer, "_leave_behind", leaves_any_behind),
    "a returning node keeps its tail": (Log, "cut", keeps_the_tail),
}
MISTAKES_WITH_THE_LAST_DISK: dict[str, tuple[Any, str, Any]] = {
    "the only node in step serves what it has": (CopyRoles, "_return", serves_what_it_has_if_it_is_alone),
    "the lost copy counts after it was given up": (CopyRecord, "given_up_to", gives_up_nothing),
    "giving up keeps the generation": (CopyRecord, "given_up_to", gives_up_in_the_same_generation),
    "a returning node keeps its tail": (Log, "cut", keeps_the_tail),
}


@pytest.mark.parametrize("seed", few(range(18), 1, 2))
def test_nothing_acknowledged_is_lost_with_a_disk(seed: int) -> None:
    assert run(seed).books.seen["acknowledged"] > 0


@pytest.mark.parametrize("name", few(MISTAKES, "too few are left in step"))
def test_mistakes_show(name: str) -> None:
    assert first_to_find(range(60), lambda: patch.object(*MISTAKES[name]), run, FOUND) >= 0, "no seed below 60 finds it"


@pytest.mark.parametrize("seed", few(range(6), 0))
def test_no_node_serves_without_what_was_acknowledged_before_an_operator_gives_it_up(seed: int) -> None:
    assert copies_last_disk.run(seed).books.seen["acknowledged"] > 0


@pytest.mark.parametrize("name", few(MISTAKES_WITH_THE_LAST_DISK, "the only node in step serves what it has"))
def test_mistakes_with_the_last_disk_show(name: str) -> None:
    plant = MISTAKES_WITH_THE_LAST_DISK[name]
    found = first_to_find(range(60), lambda: patch.object(*plant), copies_last_disk.run, FOUND)
    assert found >= 0, "no seed below 60 finds it"
