"""``ctl cluster members`` says of a node the same as ``ctl cluster status``."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from starlingmq.cli.ctl_cluster import _members_table

JUST_NOW = "the time at which the test runs"
MEMBER = {
    "name": "n2",
    "number": 2,
    "state": "registered",
    "online": True,
    "connected": True,
    "this": False,
    "through": "",
    "behind": False,
    "draining": False,
    "queued": 0,
    "queued_bytes": 0,
    "unacknowledged": 0,
    "gone": False,
    "gone_since": None,
    "served_by": "",
}


@pytest.mark.parametrize(
    ("more", "state", "connection"),
    [
        ({}, "registered", "direct"),
        ({"through": "n3"}, "registered", "relayed by n3"),
        ({"online": False}, "registered, offline", "direct"),
        ({"gone": True, "gone_since": JUST_NOW, "connected": False}, "gone", "gone for 0s"),
        ({"gone": True, "connected": False}, "gone", "none"),
        # connected: to the node that serves its data
        ({"gone": True, "gone_since": JUST_NOW, "served_by": "n3"}, "gone", "gone for 0s, n3 serves its data"),
    ],
)
def test_a_node_that_is_gone_is_not_listed_as_connected(more: dict[str, Any], state: str, connection: str) -> None:
    if more.get("gone_since") == JUST_NOW:
        more = more | {"gone_since": datetime.now(UTC).isoformat()}
    shown = _members_table([MEMBER | more], wide=False).splitlines()[-1]
    words = [re.sub(r"\d+s", "0s", word.strip()) for word in shown.split("  ") if word.strip()]
    assert words[:3] == ["n2", state, connection]
