"""Subject transforms as configurations have them, with the checks and the words of nats-server."""

from __future__ import annotations

import re
from typing import Final

from starlingmq.core.streams.subject_transforms import LITERAL, MappedToken, SubjectTransform

FUNCTION: Final = re.compile(
    rb"\{\{\s*([pP]artition|[wW]ildcard|[sS]plit(?:[fF]rom(?:[lL]eft|[rR]ight))?|[sS]lice[fF]rom(?:[lL]eft|[rR]ight)"
    rb"|[lL]eft|[rR]ight|[rR]andom)\s*\((.*)\)\s*\}\}"
)
NUMBER: Final = re.compile(rb"[+-]?[0-9]+")
COMMA: Final = re.compile(rb",\s*")
INT32: Final = 1 << 31
DESTINATION_MAX: Final = 1024  # characters: each message takes time for its functions
INVALID: Final = "invalid mapping destination: "
INVALID_SUBJECT: Final = INVALID + "invalid transform"


def subject_transform(source: str, destination: str) -> SubjectTransform:
    """Raises ValueError with nats-server's words."""
    wanted, tokens = (source or ">").encode().split(b"."), destination.encode().split(b".")
    rest = wanted[-1] == b">"
    if not _valid(wanted) or not _valid(tokens) or b"*" in tokens or (tokens[-1] == b">") != rest:
        raise ValueError("invalid subject")
    if len(destination) > DESTINATION_MAX:
        raise ValueError(f"the destination is longer than {DESTINATION_MAX} characters")
    wild = [at for at, token in enumerate(wanted) if token == b"*"]
    parts = [_part(token) for token in tokens]
    for part, token in zip(parts, tokens, strict=True):
        if not wild and not rest:
            if part.kind not in (LITERAL, b"random", b"partition"):
                raise _wrong("wildcard index out of range", token)
            part.places = []
        for place in part.places:
            if place > len(wild):
                raise _wrong("wildcard index out of range", b"%b: [%d]" % (token, place))
        part.places = [wild[place - 1] if place > 0 else 0 for place in part.places]
    return SubjectTransform(wanted, parts)


def check_destination(destination: str) -> None:
    """Raises ValueError with nats-server's words for a subject transform."""
    rest = False
    for token in destination.encode().split(b"."):
        if not token or rest:
            raise ValueError(f"{INVALID_SUBJECT} in {_text(token)}" if token else INVALID_SUBJECT)
        if _is_function(token):
            if FUNCTION.search(token) is None:
                raise _wrong("unknown function", token)
        elif len(token) != len(token.translate(None, b"\t\n\f\r ")):
            raise ValueError(INVALID_SUBJECT)
        rest = token == b">"


def _valid(tokens: list[bytes]) -> bool:
    return b"" not in tokens and b">" not in tokens[:-1]


def _is_function(token: bytes) -> bool:
    return len(token) > 4 and token.startswith(b"{{") and token.endswith(b"}}")


def _part(token: bytes) -> MappedToken:
    if token.startswith(b"$") and NUMBER.fullmatch(token, 1):
        return MappedToken(b"wildcard", b"", [int(token[1:])], 0)
    if not _is_function(token):
        return MappedToken(LITERAL, token, [], 0)
    found = FUNCTION.search(token)
    if found is None:
        raise _wrong("unknown function", token)
    kind = bytes(found[1]).lower()
    given = COMMA.split(found[2])
    if kind == b"random":
        if len(given) != 1:
            raise _wrong("not enough arguments passed to the function", token)
        return MappedToken(kind, b"", [], _number(given[0], token))
    if kind == b"partition":
        return MappedToken(kind, b"", [_number(each, token) for each in given[1:]], _number(given[0], token))
    wanted = 1 if kind == b"wildcard" else 2
    if len(given) < wanted or (wanted == 1 and given == [b""]):
        raise _wrong("not enough arguments passed to the function", token)
    if len(given) > wanted:
        raise _wrong("too many arguments passed to the function", token)
    place = _number(given[0], token)
    if kind == b"split":
        if b" " in given[1]:
            raise _wrong("function argument is invalid or in the wrong format", token)
        return MappedToken(kind, given[1], [place], 0)
    return MappedToken(kind, b"", [place], _number(given[1], token) if wanted == 2 else 0)


def _number(text: bytes, token: bytes) -> int:
    text = text.strip(b" ")
    if NUMBER.fullmatch(text) is None or len(text) > 11 or not -INT32 <= int(text) < INT32:
        raise _wrong("function argument is invalid or in the wrong format", token)
    return int(text)


def _wrong(why: str, token: bytes) -> ValueError:
    return ValueError(f"{INVALID}{why} in {_text(token)}")


def _text(token: bytes) -> str:
    return token.decode(errors="replace")
