"""The operator for whom the running task acts: set where a request arrives, sent on with requests to other nodes."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

from starlingmq.log import NAME_MAX, printable


class Operator(NamedTuple):
    """``name``: as all nodes show it; "": the request is not that of an operator. ``address``: where it came from.
    ``request``: the same for all that is done for one request, at any node."""

    name: str = ""
    address: str = ""
    request: str = ""


NOBODY: Final = Operator()
acting: Final[ContextVar[Operator]] = ContextVar("acting", default=NOBODY)


def operator(name: str, address: str) -> Operator:
    """For a new request. ``name``: of any length."""
    return Operator(printable(name[:NAME_MAX]), printable(address), os.urandom(8).hex())


def system_user(number: int | None, node: str) -> Operator:
    """A user of the machine of this node; None: the system does not tell which."""
    try:
        name = "somebody" if number is None else pwd.getpwuid(number).pw_name
    except KeyError:
        name = str(number)
    at = f" on {node}" if node else ""
    return operator(f"system user {name}{at}", "control socket")


@contextmanager
def on_behalf_of(one: Operator) -> Iterator[None]:
    before = acting.set(one)
    try:
        yield
    finally:
        acting.reset(before)
