"""``ctl cluster copies``: the lines below the table say that a loss would be survived only if that is so."""

from __future__ import annotations

from typing import Any

import pytest

from starlingmq.cli.ctl_cluster import _at_risk, _copy_lines

SAFE = "the loss of any one node would lose nothing that was acknowledged"
FEW = "1 of the required 2 nodes are in step"
UNSERVED = "the data of n2 is not served: start n3"


def copied(**more: str) -> dict[str, Any]:
    return {"node": "n2", "server": "n1", "unserved": "", "refused": "", "at_risk": ""} | more


@pytest.mark.parametrize(
    ("more", "lines"),
    [
        ({}, [SAFE]),
        ({"refused": FEW}, [f"n2 accepts nothing: {FEW}", SAFE]),
        ({"at_risk": "the data of n2"}, ["at risk if n1 is lost now: the data of n2"]),
        ({"unserved": "start n3"}, [UNSERVED]),
        ({"unserved": "start n3", "at_risk": "the data of n2"}, [UNSERVED]),
    ],
)
def test_nothing_would_be_lost_only_if_all_data_is_served_and_copied(more: dict[str, str], lines: list[str]) -> None:
    assert list(_copy_lines([copied(**more)])) == lines
    assert _at_risk([copied(), copied(**more)]) == (SAFE not in lines)
