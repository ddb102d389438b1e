"""The option ``-D command property value``, as mosquitto_pub and mosquitto_sub have it.

A user property takes two values, every other property one, so an option with a fixed number of values does not suffice:
typer returns the commands (``-D publish``) and, separately, all words that belong to no option, both in order. The
names of the properties are those of the specification: ``content-type``, ``user-property``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlingmq.cli.declare import CommandError
from starlingmq.wire import packet_types
from starlingmq.wire.properties import (
    BINARY,
    BIT,
    FOUR_BYTES,
    RULES,
    SUBSCRIPTION_IDENTIFIER,
    TEXT,
    TWO_BYTES,
    USER_PROPERTY,
    VARINT,
    WILL,
    Properties,
    PropertyRule,
    PropertyValue,
)

COMMANDS: Final = {
    "connect": packet_types.CONNECT,
    "publish": packet_types.PUBLISH,
    "subscribe": packet_types.SUBSCRIBE,
    "unsubscribe": packet_types.UNSUBSCRIBE,
    "disconnect": packet_types.DISCONNECT,
    "will": WILL,
}
MAXIMUM: Final = {BIT: 1, TWO_BYTES: 0xFFFF, FOUR_BYTES: 0xFFFFFFFF, VARINT: 268_435_455}


def option_name(rule: PropertyRule) -> str:
    return rule.name.lower().replace(" ", "-")


IDENTIFIERS: Final = {option_name(rule): identifier for identifier, rule in RULES.items()}


class PropertyArgs:
    """Properties by packet type."""

    def __init__(self, commands: Sequence[str], words: Sequence[str]) -> None:
        """Raises CommandError for a property that its packet cannot have, a wrong value, or too few words. Words that
        belong to no property are in ``rest``.
        """
        self._by_command: dict[str, Properties] = {name: {} for name in COMMANDS}
        left = list(words)
        for command in commands:
            left = self._one(command, left)
        self.rest = left

    def of(self, command: str) -> Properties:
        return self._by_command[command]

    def __bool__(self) -> bool:
        return any(self._by_command.values())

    def _one(self, command: str, words: list[str]) -> list[str]:
        if command not in COMMANDS:
            raise CommandError(f"-D {command}: the packet must be one of {', '.join(COMMANDS)}")
        if not words:
            raise CommandError(f"-D {command} needs a property and its value")
        name = words[0]
        if name not in allowed(command):
            raise CommandError(f"-D {command} {name}: {command} has {', '.join(allowed(command))}")
        identifier = IDENTIFIERS[name]
        count = 2 if identifier == USER_PROPERTY else 1
        values = words[1 : 1 + count]
        if len(values) < count:
            raise CommandError(f"-D {command} {name} needs {'a name and a value' if count == 2 else 'a value'}")
        self._put(command, identifier, values)
        return words[1 + count :]

    def _put(self, command: str, identifier: int, values: list[str]) -> None:
        properties = self._by_command[command]
        rule = RULES[identifier]
        if identifier == USER_PROPERTY:
            pairs = properties.setdefault(identifier, [])
            assert isinstance(pairs, list)
            pairs.append((values[0], values[1]))  # type: ignore[arg-type]
            return
        if identifier in properties:
            raise CommandError(f"-D {command} {option_name(rule)} is given twice")
        properties[identifier] = _value(rule, command, values[0])


def allowed(command: str) -> list[str]:
    """Return the properties that a client may set in this packet; only the server sets Subscription Identifiers in a
    PUBLISH.
    """
    packet = COMMANDS[command]
    names = [name for name, number in IDENTIFIERS.items() if RULES[number].packets >> packet & 1]
    if packet == packet_types.PUBLISH:
        names.remove(option_name(RULES[SUBSCRIPTION_IDENTIFIER]))
    return sorted(names)


def _value(rule: PropertyRule, command: str, text: str) -> PropertyValue:
    if rule.kind == TEXT:
        return text
    if rule.kind == BINARY:
        return text.encode()
    largest = MAXIMUM[rule.kind]
    if not text.isascii() or not text.isdigit() or not rule.minimum <= int(text) <= largest:
        raise CommandError(
            f"-D {command} {option_name(rule)} {text}: the value must be a number from {rule.minimum} to {largest}"
        )
    return [int(text)] if rule.kind == VARINT else int(text)
