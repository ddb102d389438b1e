"""The settings of contracts: the section ``contracts`` of the tree."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from starlingmq.config.bridges_section import RESERVED
from starlingmq.config.rules_section import RuleDeadLetter
from starlingmq.config.section_types import ConfigError, Section
from starlingmq.config.streams_section import NAME_PATTERN


class ContractConfig(Section, frozen=True):
    name: Annotated[
        str,
        Meta(pattern=NAME_PATTERN, description="Name: 1 to 64 letters, digits, dots, dashes and underscores."),
    ]
    topics: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(min_length=1, description="Topic filters. Of several contracts, the first that matches a topic counts."),
    ]
    schema: Annotated[
        str,
        Meta(description="Columns and types of JSON payloads, as in SQL: id string, v double; with others beside."),
    ] = ""
    schema_file: Annotated[str, Meta(description="In place of schema: file with a JSON Schema.")] = ""
    dead_letter: Annotated[
        RuleDeadLetter | None,
        Meta(
            description="Where messages go that break it, and their publishers are told success. Empty: they are "
            "refused, with reason code 0x99 in MQTT 5."
        ),
    ] = None


def check_contracts(contracts: tuple[ContractConfig, ...]) -> None:
    """Checks that the bounds of single settings cannot express. Raises ConfigError."""
    names = [contract.name for contract in contracts]
    for index, contract in enumerate(contracts):
        path = f"contracts[{index}]"
        if contract.name in names[:index]:
            raise ConfigError(f"{path}.name: {contract.name} is defined twice; rename one of them")
        if bool(contract.schema) == bool(contract.schema_file):
            raise ConfigError(f"{path}.schema: needs either schema or schema_file")
        for number, filter in enumerate(contract.topics):
            levels = filter.encode().split(b"/")
            wild = any(each in level and level != each for level in levels for each in (b"+", b"#"))
            if b"#" in levels[:-1] or wild or filter.encode().startswith(RESERVED) or "\0" in filter:
                raise ConfigError(f"{path}.topics[{number}]: {filter!r} is no filter of topics that clients publish to")
        letters = contract.dead_letter
        if letters is not None and ("+" in letters.topic or "#" in letters.topic or letters.topic.startswith("$")):
            raise ConfigError(f"{path}.dead_letter.topic: {letters.topic} is no topic that may be published to")
