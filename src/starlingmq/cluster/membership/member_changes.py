"""Differences between two states of the membership."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from starlingmq.cluster.links.control_frames import MemberInfo, Membership


@dataclass(frozen=True, slots=True)
class MemberChange:
    """``left``: neither registered nor joining any more. ``incarnation``: it has restarted. ``changed``: another
    address or software version in the same incarnation."""

    kind: Literal["joining", "joined", "left", "online", "offline", "incarnation", "changed"]
    member: MemberInfo


@dataclass(frozen=True, slots=True)
class Seen:
    membership: Membership
    joining: tuple[MemberInfo, ...]
    online: dict[int, int]  # number -> incarnation


def differences(before: Seen, after: Seen) -> list[MemberChange]:
    """The changes in the order in which they have to be handled: nodes that left first, then all others by number."""
    were = {member.number: member for member in before.membership.members}
    are = {member.number: member for member in after.membership.members}
    were_joining = {member.number: member for member in before.joining}
    are_joining = {member.number: member for member in after.joining}
    changes = [
        MemberChange("left", member)
        for member in (*were.values(), *were_joining.values())
        if member.number not in are and member.number not in are_joining
    ]
    for number, member in are_joining.items():
        if were_joining.get(number) != member:
            changes.append(MemberChange("joining", member))
    for number, member in are.items():
        old = were.get(number)
        if old is None:
            changes.append(MemberChange("joined", member))
        elif old.incarnation != member.incarnation:
            changes.append(MemberChange("incarnation", member))
        elif old != member:
            changes.append(MemberChange("changed", member))
        if (number in after.online) != (number in before.online):
            changes.append(MemberChange("online" if number in after.online else "offline", member))
    return changes
