"""What a way of finding out who a client is has to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from starlingmq.wire.reasons import Reason

if TYPE_CHECKING:
    from starlingmq.auth.acl import Rule
    from starlingmq.hooks import AuthRequest


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reason`` as in AuthResult. ``username`` renames the client; ``rules`` come before those of everybody,
    None: nothing is said of what it may do; ``valid`` is how many seconds it holds, 0 for as long as the connection.
    ``proof`` is what the client was held against, for ``Method.holds``."""

    reason: int = Reason.SUCCESS
    username: str | None = None
    data: bytes | None = None
    rules: Sequence[Rule] | None = None
    valid: float = 0.0
    proof: object = field(default=None, repr=False)


REFUSED = Verdict(Reason.BAD_USER_NAME_OR_PASSWORD)
BUSY = Verdict(Reason.SERVER_BUSY)


class Method(Protocol):
    async def check(self, request: AuthRequest) -> Verdict | None:
        """None: this method does not know the client, another one may."""

    def holds(self, username: str, proof: object) -> bool:
        """Whether a client that it let in with this proof would be let in now; None: with which is not known."""

    async def close(self) -> None:
        """Let go of what it holds."""
