"""Names given by people and programs: bounded, and without characters that could forge log lines."""

from __future__ import annotations

from typing import Final

NAME_BYTES_MAX: Final = 255


def plain_name(name: str) -> bool:
    """Whether the name is 1 to ``NAME_BYTES_MAX`` bytes of printable UTF-8; a space is the only white space allowed."""
    if not name or len(name) > NAME_BYTES_MAX or not name.isprintable():
        return False
    try:
        return len(name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
