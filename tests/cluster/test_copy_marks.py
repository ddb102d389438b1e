"""Copies become obsolete in the transaction that removes their node from the cluster."""

from __future__ import annotations

from tests.cluster.test_members import Town

from starlingmq.cluster.copies.copy_marks import CopyMarks
from starlingmq.cluster.copies.copy_registry import CopyRegistry
from starlingmq.cluster.etcd.etcd_requests import Put, Txn

COPIES = CopyRegistry("c")


def copied_town(kept: bool) -> Town:
    """Three members, with copies of the data of the last one. ``kept``: see ``CopyMarks``."""
    town = Town()
    town.marks = CopyMarks("c", kept)
    town.joined("a", "b", "c")
    town.etcd.store.transact(Txn("", (), (Put(COPIES.key("c"), b"{}"),)), 0)
    return town


def is_obsolete(town: Town) -> bool:
    store = town.etcd.store
    return bool(store.get(COPIES.forgotten_key("c"))) and not store.get(COPIES.key("c"))


def sent_with(town: Town, name: str, what: str) -> Txn:
    """The only such transaction of that member."""
    (sent,) = [each for each in town.requests[name] if isinstance(each, Txn) and what in each.tag]
    return sent


def test_the_copies_of_a_forgotten_node_are_obsolete_in_the_same_transaction() -> None:
    """The process that forgets it may end right afterwards."""
    town = copied_town(True)
    town.crash("c")
    town.run(10.0)
    assert town.members["a"].forget("c", True, False, town.now) == ""
    town.run()
    assert Put(COPIES.forgotten_key("c"), b"") in sent_with(town, "a", "forget").success
    assert is_obsolete(town)


def test_the_copies_of_a_node_that_leaves_are_obsolete_in_the_same_transaction() -> None:
    town = copied_town(True)
    town.members["c"].leave(town.now)
    town.run()
    assert town.members["c"].state == "left" and len(town.members["a"].membership.members) == 2
    assert Put(COPIES.forgotten_key("c"), b"") in sent_with(town, "c", "leave").success
    assert is_obsolete(town)


def test_a_node_without_copies_does_not_forget_one_of_which_others_have_copies() -> None:
    """They would serve its data again. Forced, the copies are obsolete."""
    town = copied_town(False)
    a = town.members["a"]
    town.crash("c")
    town.run(10.0)
    assert a.forget("c", True, False, town.now) == ""
    town.run()
    (result,) = a.take_results()
    assert "cluster.copies" in result.error and len(a.membership.members) == 3 and not is_obsolete(town)
    assert a.forget("c", True, True, town.now) == ""
    town.run()
    assert len(a.membership.members) == 2 and is_obsolete(town)


def test_a_new_node_without_copies_ends_the_mark_of_an_earlier_one_with_its_name() -> None:
    """Otherwise its data would be set aside once it runs with copies."""
    town = Town()
    mark = COPIES.forgotten_key("a")
    town.etcd.store.transact(Txn("", (), (Put(mark, b""),)), 0)
    town.joined("a")
    assert not town.etcd.store.get(mark)


def test_a_new_node_with_copies_keeps_the_mark_until_its_disk_is_set_aside() -> None:
    """CopyRoles reads the mark, and deletes it."""
    town = Town()
    town.marks = CopyMarks("c", True)
    mark = COPIES.forgotten_key("a")
    town.etcd.store.transact(Txn("", (), (Put(mark, b""),)), 0)
    town.joined("a")
    assert town.etcd.store.get(mark)
