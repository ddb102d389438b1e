r"""The text of nats-server.conf: JSON without most of its quotes, or keys with ``=``, ``:`` or a blank.

::

    key = value   key: value   key value      separated by line ends, commas or semicolons
    { ... }  [ ... ]  ( lines )               maps, lists, text up to a line with )
    "text\n"  'text'  text                    bare text ends at a blank, comma, semicolon, ] or }
    10  10k 10kb 10KiB  1.5  true yes on       k is 1000; kb, ki and kib are 1024
    $NAME                                     a key of this or an outer map, else a variable of the environment
    include 'file'   # comment   // comment

Three quotes around several lines are HOCON, which is read likewise: files of EMQX use no more of it than this.
Every value knows its place, for messages. Raises MigrationError with one line for text that nats-server refuses, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from starlingmq.migrate.described import MigrationError

NUMBER: Final = re.compile(r"(-?\d+)(?:([kmgtpe])(i?b?))?", re.IGNORECASE)
FLOAT: Final = re.compile(r"-?\d+\.\d+")
WORDS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
BLANKS: Final = re.compile(r"(?:[\s,;]|#[^\n]*|//[^\n]*)*")
BARE: Final = re.compile(r"[^\s,;\]}]+")
KEY: Final = re.compile(r"[^\s:={]+")
SEPARATOR: Final = re.compile(r"\s*[:=]?\s*")
QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|\'([^\']*)\'', re.DOTALL)
BLOCK: Final = re.compile(r"\(\s*\n(.*?)\n\s*\)", re.DOTALL)
TRIPLE: Final = re.compile(r'"""~?\n?(.*?)~?"""', re.DOTALL)
ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}
BCRYPT: Final = ("$2a$", "$2b$", "$2y$")
DEPTH_MAX: Final = 50
POWERS: Final = "kmgtpe"


class Placed(NamedTuple):
    """A value (text, number, truth, list of Placed, map of Placed by key) and its place."""

    value: Any
    where: str


Map = dict[str, Placed]


def parse_nats(text: str, path: Path, environment: Mapping[str, str] | None, read: Callable[[Path], str]) -> Map:
    """The map of a file; keys as written, without those that are used as variables. ``environment`` None: text that
    begins with $ is no variable."""
    used: set[str] = set()
    found: Map = {}
    _Parser(text, path, environment, read, used).into(found, [found], 0)
    return {key: value for key, value in found.items() if key not in used}


def plain_value(text: str, sizes: bool = True) -> Any:
    """The number or truth that a bare text is; else the text. ``sizes``: a number may have a unit of size."""
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    number = NUMBER.fullmatch(text)
    if number is None or (number[2] and not sizes):
        return float(text) if FLOAT.fullmatch(text) else text
    power = POWERS.index(number[2].lower()) + 1 if number[2] else 0
    return int(number[1]) * (1024 if number[3] else 1000) ** power


class _Parser:
    def __init__(
        self, text: str, path: Path, environment: Mapping[str, str] | None, read: Callable[[Path], str], used: set[str]
    ) -> None:
        self.text = text
        self.path = path
        self.environment = environment
        self.read = read
        self.used = used
        self.at = 0

    def into(self, found: Map, scopes: list[Map], depth: int) -> None:
        """The keys of a whole file."""
        self._skip()
        braces = self.text.startswith("{", self.at)
        self.at += braces
        self._keys(found, scopes, "}" if braces else "", depth)
        self._skip()
        if self.at < len(self.text):
            raise self._error("unexpected text")

    def _keys(self, found: Map, scopes: list[Map], end: str, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise self._error("too many levels")
        while True:
            self._skip()
            if end and self.text.startswith(end, self.at):
                self.at += 1
                return
            if self.at >= len(self.text):
                if end:
                    raise self._error(f"{end} is missing")
                return
            where, quoted = self._where(), self._match(QUOTED)
            key = self._unquoted(quoted) if quoted else self._need(KEY, "a key")[0]
            self._match(SEPARATOR)
            if key == "include" and not quoted:
                name = Path(str(self._value(scopes, depth).value))
                path = name if name.is_absolute() else self.path.parent / name
                below = _Parser(self.read(path), path, self.environment, self.read, self.used)
                below.into(found, scopes, depth + 1)
            else:
                found[key] = Placed(self._value(scopes, depth).value, where)

    def _value(self, scopes: list[Map], depth: int) -> Placed:
        where, sign = self._where(), self.text[self.at : self.at + 1]
        if sign == "{":
            self.at += 1
            inner: Map = {}
            self._keys(inner, [*scopes, inner], "}", depth + 1)
            return Placed(inner, where)
        if sign == "[":
            self.at += 1
            return Placed(self._list(scopes, depth + 1), where)
        if block := self._match(TRIPLE) or self._match(BLOCK):
            return Placed(block[1], where)
        if quoted := self._match(QUOTED):
            return Placed(self._unquoted(quoted), where)
        return Placed(self._bare(self._need(BARE, "a value")[0], scopes), where)

    def _list(self, scopes: list[Map], depth: int) -> list[Placed]:
        if depth > DEPTH_MAX:
            raise self._error("too many levels")
        found: list[Placed] = []
        while True:
            self._skip()
            if self.text.startswith("]", self.at):
                self.at += 1
                return found
            found.append(self._value(scopes, depth))

    def _bare(self, text: str, scopes: list[Map]) -> Any:
        if self.environment is not None and text.startswith("$") and not text.startswith(BCRYPT):
            name = text[1:]
            for scope in reversed(scopes):
                if name in scope:
                    self.used.add(name)
                    return scope[name].value
            if name not in self.environment:
                raise self._error(f"the variable {name} is not set, neither in the file nor in the environment")
            return self._bare(self.environment[name], [])
        return plain_value(text, self.environment is not None)

    def _skip(self) -> None:
        self._match(BLANKS)

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
        return found

    def _need(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = self._match(pattern)
        if found is None:
            raise self._error(f"expected {what}")
        return found

    def _unquoted(self, quoted: re.Match[str]) -> str:
        if quoted[1] is None:
            return quoted[2]
        text = re.sub(r"\\x([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), quoted[1])
        return re.sub(r'\\([ntr"\\])', lambda found: ESCAPES[found[1]], text)

    def _where(self) -> str:
        return f"{self.path}:{self.text.count(chr(10), 0, self.at) + 1}"

    def _error(self, what: str) -> MigrationError:
        return MigrationError(f"{self._where()}: {what}")
