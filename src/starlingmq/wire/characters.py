"""Characters that names are searched for, as integers.

``PLUS in topic`` takes a sixth of the time of ``b"+" in topic``, which CPython first tries to read as an integer, and
makes an error message of that attempt.
"""

from __future__ import annotations

from typing import Final

NUL: Final = 0x00
LINE_FEED: Final = 0x0A
RETURN: Final = 0x0D
HASH: Final = 0x23  # "#"
STAR: Final = 0x2A  # "*"
PLUS: Final = 0x2B  # "+"
DOT: Final = 0x2E  # "."
SLASH: Final = 0x2F  # "/"
GREATER: Final = 0x3E  # ">"
