"""Contracts of the settings as checks of payloads. Only brokers that have some load this module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from starlingmq.config.contracts_section import ContractConfig
from starlingmq.config.section_types import ConfigError
from starlingmq.core.router.contract import Contract

FAULT_MAX: Final = 200  # characters of a reason

Fault = Callable[[bytes], str]


def contracts_of(configs: tuple[ContractConfig, ...]) -> list[Contract]:
    """Raises ConfigError, with the setting at fault."""
    found: list[Contract] = []
    for index, config in enumerate(configs):
        path = f"contracts[{index}]"
        fault = _columns(config.schema, path) if config.schema else _json_schema(config.schema_file, path)
        letters = "" if config.dead_letter is None else config.dead_letter.topic
        found.append(Contract(config.name, [filter.encode() for filter in config.topics], fault, letters.encode()))
    return found


def _columns(schema: str, path: str) -> Fault:
    """A value has the JSON type of its column, or is null; others may be there."""
    from starlingmq.rules.program import decoder_of
    from starlingmq.rules.sql_compiler import SqlError

    try:
        decode = decoder_of(schema)
    except (SqlError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}.schema: {error}") from None

    def fault(payload: bytes) -> str:
        try:
            decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return str(error)[:FAULT_MAX]
        return ""

    return fault


def _json_schema(file: str, path: str) -> Fault:
    try:
        import jsonschema_rs
    except ImportError as error:
        raise ConfigError(f"{path}.schema_file: needs an extra ({error}): pip install 'starlingmq[rules]'") from None
    try:
        validator: Any = jsonschema_rs.validator_for(msgspec.json.decode(Path(file).read_bytes()))
    except OSError as error:
        raise ConfigError(f"{path}.schema_file: {file} cannot be read: {error.strerror}") from None
    except (ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}.schema_file: {file} is no JSON Schema: {str(error).splitlines()[0]}") from None

    def fault(payload: bytes) -> str:
        try:
            validator.validate(msgspec.json.decode(payload))
        except jsonschema_rs.ValidationError as error:
            place = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in error.instance_path)
            return f"{error.message[:FAULT_MAX]} - at `${place}`"
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
            return str(error)[:FAULT_MAX]
        return ""

    return fault
