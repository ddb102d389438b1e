"""Whether the next connection to a server is compressed: a server that does not know zstd closes it without an answer.

So does one that is being restarted. Only a server that then answers a plain connection has refused zstd:

| state | next connection | it was answered | it was not |
|---|---|---|---|
| TRYING | compressed | TRYING | DOUBTING |
| DOUBTING | plain | REFUSED for ``AGAIN_S`` | TRYING |
| REFUSED | plain; after ``AGAIN_S`` compressed, as in TRYING | REFUSED | REFUSED |
"""

from __future__ import annotations

from math import inf
from typing import Final

TRYING: Final = 0
DOUBTING: Final = 1
REFUSED: Final = 2

AGAIN_S: Final = 600.0


class Compression:
    """For one server, or several that are alike."""

    def __init__(self) -> None:
        self.state = TRYING
        self._until = inf
        self._said = False

    def wanted(self, now: float) -> bool:
        """Whether the connection that is opened now is to be compressed."""
        if self.state == REFUSED and now >= self._until:
            self.state = TRYING
        return self.state == TRYING

    def answered(self, now: float) -> bool:
        """The server has answered the connection. Returns whether the log is to say that it refuses zstd: once, until
        it has taken it again."""
        if self.state == TRYING:
            self._said = False
            return False
        if self.state == REFUSED:
            return False
        self.state = REFUSED
        self._until = now + AGAIN_S
        says = not self._said
        self._said = True
        return says

    def failed(self) -> None:
        """The connection has ended without an answer."""
        if self.state != REFUSED:
            self.state = DOUBTING if self.state == TRYING else TRYING
