"""The ledger: every normative statement of MQTT 3.1.1 and 5.0, read from the two TOML files beside this one.

How it is known to be complete: ``STATEMENTS`` below counts the statements of every section as Appendix B of each
specification lists them (141 and 251), independently of the rows.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.clauses import V3, V5

Key = tuple[str, str]  # version, id

FILES = {V3: "mqtt_3_1_1.toml", V5: "mqtt_5_0.toml"}

# Section -> how many statements it has, numbered from 1.
STATEMENTS: dict[str, dict[str, int]] = {
    V3: {
        "1.5.3": 3, "2.2.2": 2, "2.3.1": 7, "3.1.0": 2, "3.1.2": 24, "3.1.3": 11, "3.1.4": 5, "3.2.0": 1, "3.2.2": 6,
        "3.3.1": 12, "3.3.2": 3, "3.3.4": 1, "3.3.5": 2, "3.6.1": 1, "3.8.1": 1, "3.8.3": 4, "3.8.4": 6, "3.9.3": 2,
        "3.10.1": 1, "3.10.3": 2, "3.10.4": 6, "3.12.4": 1, "3.14.1": 1, "3.14.4": 3, "4.1.0": 2, "4.3.1": 1,
        "4.3.2": 2, "4.3.3": 2, "4.4.0": 1, "4.5.0": 2, "4.6.0": 6, "4.7.1": 3, "4.7.2": 1, "4.7.3": 4, "4.8.0": 2,
        "6.0.0": 4, "7.0.0": 2, "7.1.1": 1, "7.1.2": 1,
    },
    V5: {
        "1.5.4": 3, "1.5.5": 1, "1.5.7": 1, "2.1.3": 1, "2.2.1": 6, "2.2.2": 1, "3.1.0": 2, "3.1.2": 30, "3.1.3": 12,
        "3.1.4": 6, "3.2.0": 2, "3.2.2": 22, "3.3.1": 13, "3.3.2": 20, "3.3.4": 10, "3.4.2": 3, "3.5.2": 3,
        "3.6.1": 1, "3.6.2": 3, "3.7.2": 3, "3.8.1": 1, "3.8.3": 5, "3.8.4": 8, "3.9.2": 2, "3.9.3": 2, "3.10.1": 1,
        "3.10.3": 2, "3.10.4": 6, "3.11.2": 2, "3.11.3": 2, "3.12.4": 1, "3.14.0": 1, "3.14.1": 1, "3.14.2": 4,
        "3.14.4": 3, "3.15.1": 1, "3.15.2": 3, "4.1.0": 2, "4.2.0": 1, "4.3.1": 1, "4.3.2": 5, "4.3.3": 13,
        "4.4.0": 2, "4.5.0": 2, "4.6.0": 6, "4.7.0": 1, "4.7.1": 2, "4.7.2": 1, "4.7.3": 4, "4.8.2": 6, "4.9.0": 3,
        "4.12.0": 7, "4.12.1": 2, "4.13.1": 1, "4.13.2": 1, "6.0.0": 4,
    },
}  # fmt: skip
UNUSED: set[Key] = {(V5, "MQTT-2.2.1-1")}  # a number the specification skips


@dataclass(frozen=True)
class Row:
    version: str
    id: str
    binds: str  # "server", "client" or "both"
    rule: str  # the statement, paraphrased
    because: str = ""  # why it binds the client alone
    unobservable: str = ""  # why nothing outside the broker can show it

    @property
    def key(self) -> Key:
        return self.version, self.id


def statements() -> list[Key]:
    """Every id there is, in the order of the specifications."""
    every = [
        (version, f"MQTT-{section}-{number}")
        for version, sections in STATEMENTS.items()
        for section, count in sections.items()
        for number in range(1, count + 1)
    ]
    return [key for key in every if key not in UNUSED]


def rows() -> list[Row]:
    """The rows as written. An id given twice is an error of TOML itself (``tomllib.TOMLDecodeError``)."""
    here = Path(__file__).parent
    return [
        Row(version, id, **row)
        for version, name in FILES.items()
        for id, row in tomllib.loads((here / name).read_text(encoding="utf-8")).items()
    ]
