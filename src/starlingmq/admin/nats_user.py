"""The answer to ``$SYS.REQ.USER.INFO``, by which a NATS client reads its own account and permissions, in nats-server's
JSON format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from starlingmq.admin.nats_monitor import ACCOUNT, NANOSECONDS
from starlingmq.core.limits.access import PUBLISH, SUBSCRIBE, Grant, ReplyGrant, Rights
from starlingmq.core.session.session import Client
from starlingmq.wire.nats_subjects import subject_of

SHOWN_MAX: Final = 100  # subjects of each kind


class Subjects(Struct, frozen=True, omit_defaults=True):
    allow: list[str] = []
    deny: list[str] = []


class Responses(Struct, frozen=True):
    max: int
    ttl: int


class Permissions(Struct, frozen=True):
    publish: Subjects
    subscribe: Subjects
    responses: Responses | UnsetType = UNSET


class UserInfo(Struct, frozen=True):
    user: str
    account: str
    permissions: Permissions | UnsetType = UNSET
    expires: int | UnsetType = UNSET


def user_info(client: Client, now: float) -> UserInfo:
    left = max(client.valid_until - now, 0.0)
    return UserInfo(
        client.username,
        ACCOUNT,
        UNSET if client.rights is None else permissions(client.rights),
        UNSET if client.valid_until == 0.0 else int(left * NANOSECONDS),
    )


def permissions(rights: Rights) -> Permissions:
    """Rules of this broker are ordered, and the first match decides; nats-server has two lists, of which the denials
    take precedence. So the answer has the subjects that the rules name; where rules overlap, it may differ from what
    they mean."""
    return Permissions(
        _subjects(rights, PUBLISH),
        _subjects(rights, SUBSCRIBE),
        next((_responses(grant) for grant in rights.grants if isinstance(grant, ReplyGrant) and grant.allow), UNSET),
    )


def _responses(grant: ReplyGrant) -> Responses:
    """nats-server writes -1 for no limit."""
    return Responses(grant.count or -1, int(grant.seconds * NANOSECONDS) or -1)


def _subjects(rights: Rights, action: int) -> Subjects:
    about = [grant for grant in rights.grants if grant.actions & action]
    allowed = _spelled(grant for grant in about if grant.allow)
    if rights.default:
        allowed.append(">")
    return Subjects(allowed, _spelled(grant for grant in about if not grant.allow))


def _spelled(grants: Iterable[Grant]) -> list[str]:
    found: dict[str, None] = {}
    for grant in grants:
        for subject in _subject(grant):
            found[subject] = None
        if len(found) >= SHOWN_MAX:
            break
    return list(found)


def _subject(grant: Grant) -> list[str]:
    """``a/#`` is ``a`` and ``a.>``. Empty for a rule that no topic matches, or whose topics have no subject."""
    tokens = ["*" if level is None else _token(level) for level in grant.levels]
    if "" in tokens:
        return []
    fixed = ".".join(tokens)
    if not grant.rest:
        return [fixed]
    return [fixed, f"{fixed}.>"] if fixed else [">"]


def _token(level: bytes) -> str:
    if not level:
        return "/"
    if level in (b"#", b"+"):
        return ""
    return subject_of(level).decode(errors="replace")
