"""The interface of authentication methods."""

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
    """``reason`` as in AuthResult. ``username`` renames the client; in a refusal or a challenge it is the name that the
    client claims, under which a failure is counted and logged. ``rules`` precede those of the file; None: the
    method says nothing about rights. ``valid`` is the validity in seconds, 0 for as long as the connection. ``proof``
    is what the client was checked against, for ``Method.holds``. ``detail`` as in AuthResult."""

    reason: int = Reason.SUCCESS
    username: str | None = None
    data: bytes | None = None
    rules: Sequence[Rule] | None = None
    valid: float = 0.0
    proof: object = field(default=None, repr=False)
    detail: str = ""


def refused(claimed: str | None = None, detail: str = "") -> Verdict:
    """``claimed``: the name that the client claims, if it is not that of CONNECT. ``detail``: one line for the log."""
    return Verdict(Reason.BAD_USER_NAME_OR_PASSWORD, username=claimed, detail=detail)


REFUSED = refused()
BUSY = Verdict(Reason.SERVER_BUSY, detail="too many logins wait (waiting_per_address of auth.password and auth.http)")


class Method(Protocol):
    async def check(self, request: AuthRequest) -> Verdict | None:
        """None: this method does not know the client; another one may."""

    def holds(self, username: str, proof: object) -> bool:
        """Whether a client that this method admitted with this proof would be admitted now. None: the proof is
        unknown."""

    async def close(self) -> None:
        """Release resources."""
