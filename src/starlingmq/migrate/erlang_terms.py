"""Erlang terms: as text (``acl.conf``), and in the tables of an export (backups of Mnesia).

A table is a header of 8 bytes, then items: size, ``bWLA``, a term in the external format. The first items describe
it; each further one is ``{table, key, ...}``. An atom becomes ``str``, a binary or a string ``bytes``, a tuple a tuple,
a list a list, a map a dict. Raises MigrationError with one line that names the offset, or the line of the text.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final

from starlingmq.migrate.described import MigrationError

HEADER: Final = b"\x01\x02\x03\x04cXM\x0b"
MARK: Final = b"bWLA"
VERSION: Final = 131
DEPTH_MAX: Final = 100
DAMAGED: Final = (struct.error, IndexError, KeyError, ValueError, TypeError)


def read_table(data: bytes, name: str) -> list[tuple[Any, ...]]:
    """The rows of a table, without the table's name at their front."""
    if not data.startswith(HEADER):
        raise MigrationError(f"{name}: offset 0: this is not a table of an export of EMQX")
    rows, at = [], len(HEADER)
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        item = data[at + 8 : at + 8 + size]
        if data[at + 4 : at + 8] != MARK or len(item) != size:
            raise MigrationError(f"{name}: offset {at}: the file is cut off or damaged")
        try:
            term = _Binary(item).whole()
        except DAMAGED:
            raise MigrationError(f"{name}: offset {at}: a row is damaged") from None
        if isinstance(term, tuple) and term and term[0] not in ("log_header", "schema"):
            rows.append(term[1:])
        at += 8 + size
    return rows


class _Binary:
    """One term in the external format."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def whole(self) -> Any:
        if self._number(1) != VERSION:
            raise ValueError
        return self._term(0)

    def _number(self, size: int) -> int:
        return int.from_bytes(self._bytes(size), "big")

    def _bytes(self, size: int) -> bytes:
        taken = self.data[self.at : self.at + size]
        if len(taken) != size:
            raise ValueError
        self.at += size
        return taken

    def _term(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise ValueError
        tag = chr(self._number(1))
        if tag in "dvsw":  # atoms
            return self._bytes(self._number(2 if tag in "dv" else 1)).decode()
        if tag in "mk":  # a binary; a list of small numbers, which is how a text is written
            return self._bytes(self._number(4 if tag == "m" else 2))
        if tag == "a":
            return self._number(1)
        if tag == "b":
            return struct.unpack(">i", self._bytes(4))[0]
        if tag == "n":
            size, sign = self._number(1), self._number(1)
            value = int.from_bytes(self._bytes(size), "little")
            return -value if sign else value
        if tag == "F":
            return struct.unpack(">d", self._bytes(8))[0]
        if tag == "j":
            return []
        if tag in "hi":
            return tuple(self._term(depth + 1) for _ in range(self._number(1 if tag == "h" else 4)))
        if tag == "l":
            found = [self._term(depth + 1) for _ in range(self._number(4))]
            self._term(depth + 1)  # the tail
            return found
        if tag == "t":
            return {self._term(depth + 1): self._term(depth + 1) for _ in range(self._number(4))}
        raise ValueError


TOKEN: Final = re.compile(
    r'(?:\s|%[^\n]*)*(?:<<"((?:[^"\\]|\\.)*)">>|"((?:[^"\\]|\\.)*)"|\'([^\']*)\'|(\w+)|([{}\[\],.]|\Z))'
)


def parse_terms(text: str, name: str) -> list[tuple[Any, str]]:
    """The terms of a text, each with its place."""
    found, reader = [], _Text(text, name)
    while not reader.finished():
        where = reader.where()
        found.append((reader.term(0), where))
        reader.need(".")
    return found


class _Text:
    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self.at = 0

    def _token(self) -> re.Match[str]:
        found = TOKEN.match(self.text, self.at)
        if found is None:
            raise MigrationError(f"{self.where()}: this is not a rule of EMQX")
        return found

    def finished(self) -> bool:
        return self._token()[5] == ""

    def where(self) -> str:
        blanks = re.compile(r"(?:\s|%[^\n]*)*").match(self.text, self.at)
        return f"{self.name}:{self.text.count(chr(10), 0, blanks.end() if blanks else self.at) + 1}"

    def need(self, sign: str) -> None:
        found = self._token()
        if found[5] != sign:
            raise MigrationError(f"{self.where()}: expected {sign}")
        self.at = found.end()

    def term(self, depth: int) -> Any:
        found = self._token()
        self.at = found.end()
        for text in (found[1], found[2]):
            if text is not None:
                return re.sub(r"\\(.)", r"\1", text).encode()
        if found[3] is not None or found[4] is not None:
            word: str = found[3] if found[3] is not None else found[4]
            return int(word) if found[4] is not None and word.isdecimal() else word
        if found[5] not in ("{", "[") or depth > DEPTH_MAX:
            raise MigrationError(f"{self.where()}: unexpected {found[5] or 'end'}")
        end, items = "}" if found[5] == "{" else "]", []
        while self._token()[5] != end:
            items.append(self.term(depth + 1))
            if self._token()[5] == ",":
                self.need(",")
        self.need(end)
        return tuple(items) if end == "}" else items
