"""docs/CONFORMANCE.md: each normative statement of MQTT 3.1.1 and 5.0, and the tests that hold it."""

from __future__ import annotations

import re
from typing import Final

from tests.conformance.check import collect
from tests.conformance.clauses import V3, V5
from tests.conformance.ledger import Row, rows

CHAPTERS: Final = {
    "1": "Data", "2": "Packets", "3.1": "CONNECT", "3.2": "CONNACK", "3.3": "PUBLISH", "3.4": "PUBACK", "3.5": "PUBREC",
    "3.6": "PUBREL", "3.7": "PUBCOMP", "3.8": "SUBSCRIBE", "3.9": "SUBACK", "3.10": "UNSUBSCRIBE", "3.11": "UNSUBACK",
    "3.12": "PINGREQ", "3.14": "DISCONNECT", "3.15": "AUTH", "4": "How it behaves", "6": "WebSocket",
    "7": "Conformance",
}  # fmt: skip

HEAD: Final = """# Protocol conformance

Every normative statement of both specifications, in our own words, with the test that holds it. This page is written
by `python -m tests.docs.generate`; `make conformance` prints the same and fails when a statement is held by no test.
The words of the specifications are those of OASIS: [MQTT 3.1.1](https://docs.oasis-open.org/mqtt/mqtt/v3.1.1/os/mqtt-v3.1.1-os.html),
[MQTT 5.0](https://docs.oasis-open.org/mqtt/mqtt/v5.0/os/mqtt-v5.0-os.html).

That the list is complete is known by counting: `tests/conformance/ledger.py` has how many statements each section has
in Appendix B of its specification. *Client* are statements that bind the client alone: what the broker does when a
client breaks one of them is tested where a test is named. *Unobservable* is what nothing outside the broker can show.

NATS has no such list of statements. What is spoken of it, and what is not, is in [NATS.md](NATS.md).
"""


def page() -> str:
    """The page; the tests are found as pytest finds them, so not from within a test (see ``generate``)."""
    tests = collect(["tests/conformance"]).tests
    table = rows()
    parts = [HEAD, "| | statements | held by a test | unobservable | of clients alone |\n|---|---|---|---|---|"]
    for version in (V3, V5):
        mine = [row for row in table if row.version == version]
        ours = [row for row in mine if row.binds != "client"]
        held = sum(1 for row in ours if tests.get(row.key))
        hidden = sum(1 for row in ours if row.unobservable)
        parts.append(f"| MQTT {version} | {len(mine)} | {held} | {hidden} | {len(mine) - len(ours)} |")
    for version in (V3, V5):
        parts.append(f"\n## MQTT {version}\n")
        chapter = ""
        for row in table:
            if row.version != version:
                continue
            if _chapter(row) != chapter:
                chapter = _chapter(row)
                parts += [
                    f"\n### {chapter}: {CHAPTERS[chapter]} ({version})\n",
                    "| | statement | held by |\n|---|---|---|",
                ]
            parts.append(f"| {row.id} | {_cell(row.rule)} | {_held(row, tests.get(row.key, []))} |")
    return "\n".join(parts) + "\n"


def _held(row: Row, tests: list[str]) -> str:
    if row.unobservable:
        return f"*unobservable*: {_cell(row.unobservable)}"
    functions = list(dict.fromkeys(test.rpartition("/")[2].partition("[")[0].replace(".py::", "::") for test in tests))
    named = ", ".join(f"`{function}`" for function in functions[:2])
    if len(functions) > 2:
        named += f" and {len(functions) - 2} more"
    if row.binds == "client":
        return f"*client*: {_cell(row.because)}" + (f"; {named}" if named else "")
    return named or "**nothing**"


def _chapter(row: Row) -> str:
    numbers = row.id.removeprefix("MQTT-").split(".")
    whole = ".".join(numbers[:2])
    return whole if whole in CHAPTERS else numbers[0]


def _cell(text: str) -> str:
    return re.sub(r"([|<*_$])", r"\\\1", text)
