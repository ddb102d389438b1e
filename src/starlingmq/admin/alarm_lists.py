"""Alarms and certificates of all nodes."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from starlingmq.admin.alarm_conditions import CertificateInfo
from starlingmq.admin.alarms import Alarm, AlarmsReply, CertificatesReply
from starlingmq.admin.node_rpc import Missing, NodeRpc
from starlingmq.admin.typed_actions import NoArguments, typed
from starlingmq.net.control_socket import Action, Report


class AlarmsAt(Struct, frozen=True):
    """A node, or "" for all."""

    node: str = ""


class ListedAlarms(Struct, frozen=True):
    """Critical alarms come first, then the newest ones; of those that have ended, the last one."""

    node: str
    alarms: list[Alarm]
    history: list[Alarm]
    missing: list[Missing]


class ListedCertificates(Struct, frozen=True):
    """The one that ends first comes first."""

    node: str
    certificates: list[CertificateInfo]
    missing: list[Missing]


class AlarmLists:
    def __init__(self, rpc: NodeRpc) -> None:
        self._rpc = rpc

    def actions(self) -> dict[str, Action]:
        return {"alarms.all": typed(AlarmsAt, self.alarms), "certificates.all": typed(AlarmsAt, self.certificates)}

    async def alarms(self, report: Report, request: AlarmsAt) -> ListedAlarms:
        answers = await self._rpc.everywhere("alarms", NoArguments(), AlarmsReply, request.node)
        active = [replace(one, node=node) for node, reply in answers.results.items() for one in reply.alarms]
        active.sort(key=lambda one: one.since, reverse=True)
        active.sort(key=lambda one: one.severity != "critical")
        history = [replace(one, node=node) for node, reply in answers.results.items() for one in reply.history]
        history.sort(key=lambda one: one.ended or "", reverse=True)
        return ListedAlarms(self._rpc.name, active, history, answers.missing)

    async def certificates(self, report: Report, request: AlarmsAt) -> ListedCertificates:
        answers = await self._rpc.everywhere("certificates", NoArguments(), CertificatesReply, request.node)
        found = [replace(one, node=node) for node, reply in answers.results.items() for one in reply.certificates]
        found.sort(key=lambda one: one.ends_at or "")
        return ListedCertificates(self._rpc.name, found, answers.missing)
