"""Links in worlds of faults, drawn from seeds; and bugs planted into them, each of which the worlds must find."""

from __future__ import annotations

import pytest
from tests.cluster import link_world
from tests.cluster.planting import Replacement
from tests.few import few
from tests.planting import first_to_find

BUGS: dict[str, list[Replacement]] = {
    "acknowledged before it is stored": [
        ("links", "while self._stored < mark[1]:", "while self._stored < self._delivered:")
    ],
    "a mark of another pair counts": [
        (
            "links",
            "        if mark[0] == self.source_incarnation:\n            while",
            "        if True:\n            while",
        ),
        ("links", "self._sizes.pop(self._stored)", "self._sizes.pop(self._stored, 0)"),
    ],
    "taken twice": [
        ("links", "if data.sequence != self._delivered + 1 or", "if data.sequence > self._delivered + 1 or")
    ],
    "taken over a gap": [
        ("links", "if data.sequence != self._delivered + 1 or", "if data.sequence <= self._delivered or")
    ],
    "a frame for the life before": [
        ("links", "if target_incarnation != self._incarnation or source_incarnation <", "if source_incarnation <"),
    ],
    "a frame of the life before": [
        ("links", " or source_incarnation < self.source_incarnation:", ":"),
        (
            "links",
            "if source_incarnation > self.source_incarnation:",
            "if source_incarnation != self.source_incarnation:",
        ),
    ],
    "an acknowledgement of the life before": [("links", "if source_incarnation != self.target_incarnation or", "if")],
    "an acknowledgement for the life before": [
        ("links", "self.target_incarnation or target_incarnation != self._incarnation:", "self.target_incarnation:"),
    ],
    "an acknowledgement of what was never sent": [
        (
            "links",
            "if not self._acknowledged <= ack.sequence <= self._sent:",
            "if not self._acknowledged <= ack.sequence:",
        ),
        ("links", "if source_incarnation != self.target_incarnation or", "if"),
    ],
    "not numbered anew": [
        ("links", "        self._acknowledged = 0\n        self._sent = 0\n", "        self._sent = 0\n")
    ],
    "a new receiver gets only what is new": [("links", "        self._room = self._window\n        self.resend()", "")],
    "never sent again": [("links", "            self.resend()\n        frames", "            pass\n        frames")],
    "nobody asks for room": [("links", "return self._room > 0 or self._deadline == inf", "return self._room > 0")],
    "the window is not looked at": [("links", "return self._on_the_way + len(data.blob) <= self._room", "return True")],
    "a lost acknowledgement is not repeated": [
        ("links", "            self.ack_due = True\n            return None", "            return None"),
    ],
}


@pytest.mark.parametrize("seeds", [80, pytest.param(400, marks=pytest.mark.long)])
def test_worlds(seeds: int) -> None:
    for seed in range(seeds):
        link_world.run(seed)


@pytest.mark.parametrize(
    "bug",
    few(
        BUGS,
        "not numbered anew",
        "never sent again",
        "the window is not looked at",
        "a lost acknowledgement is not repeated",
    ),
)
def test_planted_bugs_are_found(bug: str) -> None:
    planted = tuple(BUGS[bug])
    seed = first_to_find(range(1000), lambda seed: link_world.run(seed, planted), link_world.run)
    assert seed >= 0, f"no world of 1000 finds this: {bug}"
