"""The answer to ``$SYS.REQ.USER.INFO``, by which a NATS client reads its own account and permissions, in nats-server's
JSON format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlingmq.admin.nats_monitor import ACCOUNT, NANOSECONDS
from starlingmq.admin.nats_stats import Json
from starlingmq.core.limits.access import PUBLISH, SUBSCRIBE, Grant, ReplyGrant, Rights
from starlingmq.core.session.session import Client
from starlingmq.wire.nats_subjects import subject_of

SHOWN_MAX: Final = 100  # subjects of each kind


def user_info(client: Client, now: float) -> Json:
    info: Json = {"user": client.username, "account": ACCOUNT}
    if client.rights is not None:
        info["permissions"] = permissions(client.rights)
    if client.valid_until:
        info["expires"] = int(max(client.valid_until - now, 0.0) * NANOSECONDS)
    return info


def permissions(rights: Rights) -> Json:
    """Rules of this broker are ordered, and the first match decides; nats-server has two lists, of which the denials
    take precedence. So the answer has the subjects that the rules name; where rules overlap, it may differ from what
    they mean."""
    replies = [grant for grant in rights.grants if isinstance(grant, ReplyGrant) and grant.allow]
    told: Json = {"publish": _subjects(rights, PUBLISH), "subscribe": _subjects(rights, SUBSCRIBE)}
    if replies:  # nats-server writes -1 for no limit
        first = replies[0]
        told["responses"] = {"max": first.count or -1, "ttl": int(first.seconds * NANOSECONDS) or -1}
    return told


def _subjects(rights: Rights, action: int) -> Json:
    about = [grant for grant in rights.grants if grant.actions & action]
    allowed = _spelled(grant for grant in about if grant.allow)
    if rights.default:
        allowed.append(">")
    denied = _spelled(grant for grant in about if not grant.allow)
    return {kind: subjects for kind, subjects in (("allow", allowed), ("deny", denied)) if subjects}


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
