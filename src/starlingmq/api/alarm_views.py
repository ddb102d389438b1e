"""Alarms, and the certificates that nodes use."""

from __future__ import annotations

from litestar import get
from litestar.handlers import HTTPRouteHandler
from msgspec import convert

from starlingmq.admin.alarm_lists import ListedAlarms, ListedCertificates
from starlingmq.api.paged_views import Node
from starlingmq.api.served import served


def routes() -> list[HTTPRouteHandler]:
    @get("/alarms", summary="List active alarms of all nodes, and those that have ended")
    async def alarms(node: Node = "") -> ListedAlarms:
        return convert(await served().ask("alarms.all", node=node), ListedAlarms)

    @get(
        "/certificates",
        summary="List certificates, revocation lists, key sets and tokens that nodes use, and when they end",
    )
    async def certificates(node: Node = "") -> ListedCertificates:
        return convert(await served().ask("certificates.all", node=node), ListedCertificates)

    return [alarms, certificates]
