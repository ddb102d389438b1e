"""The wills of a chaos run (``tests.cluster.keepsakes``): which may be missing after their node was killed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from tests.cluster.keepsakes import WillLife
from tests.cluster.real import Node
from tests.cluster.trouble import Trouble


def nodes() -> list[Node]:
    return [cast(Node, SimpleNamespace(trouble=Trouble(), no_etcd=Trouble())) for _ in range(3)]


def will(kills: list[float], found: list[Node], asked: float = 100.0, since: float = 100.1) -> WillLife:
    """Accepted by the first node, which was killed at these times."""
    found[0].trouble.kills = kills
    return WillLife(found[0], since, asked, found)


def test_a_will_comes_though_its_node_is_killed_a_while_later() -> None:
    assert will([100.5], nodes()).may_be_missed()
    assert not will([101.5], nodes()).may_be_missed()
    assert not will([99.0], nodes()).may_be_missed(), "an earlier life"


def test_a_will_may_be_missed_if_its_node_was_killed_before_its_client_read_connack() -> None:
    assert will([100.2], nodes(), since=100.4).may_be_missed()


def test_a_will_is_registered_later_after_etcd_was_away_or_another_node_was_killed() -> None:
    found = nodes()
    found[1].trouble.kills = [98.0]
    assert will([103.0], found).may_be_missed() and not will([106.0], found).may_be_missed()
    found = nodes()
    found[0].no_etcd._spans = [(60.0, 70.0)]
    assert will([103.0], found).may_be_missed()
    found[0].no_etcd._spans = [(40.0, 50.0)]
    assert not will([103.0], found).may_be_missed()
