"""Files of one entry per line. Only a line feed ends a line: Python's other line ends, such as U+2028, are text."""

from __future__ import annotations

from pathlib import Path


def read_lines(path: str | Path) -> list[tuple[int, str]]:
    """The lines with their numbers, from 1, without empty lines and comments (``#``). A carriage return at the end is
    removed. Raises OSError, UnicodeDecodeError."""
    lines = enumerate(Path(path).read_bytes().decode().split("\n"), 1)
    return [(number, line.removesuffix("\r")) for number, line in lines if line.strip() and line.lstrip()[0] != "#"]
