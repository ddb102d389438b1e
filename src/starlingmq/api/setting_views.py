"""Settings that can be changed while the broker serves."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, get, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody
from msgspec import Meta, Struct, convert

from starlingmq.admin.live_change_actions import LiveSettings, SettingChangedAt
from starlingmq.api.paged_views import AtNode
from starlingmq.api.served import served
from starlingmq.config.live_changes import TEXT_MAX


class NewSetting(Struct, frozen=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(min_length=1, max_length=100, description="Path of the setting, such as mqtt.max_qos.")]
    value: Annotated[str, Meta(max_length=TEXT_MAX, description="As in a settings file, such as 10s or 64KiB.")]
    only_check: Annotated[bool, Meta(description="Report the difference, and change nothing.")] = False
    node: Annotated[
        str, Meta(max_length=1000, description="The node, or * for all. Default: this node, with workers all.")
    ] = ""


def routes() -> list[HTTPRouteHandler]:
    @get("/settings", summary="List the settings that can be changed while the broker serves")
    async def listed(node: AtNode = "") -> LiveSettings:
        return convert(await served().ask("settings", node=node), LiveSettings)

    @put("/settings", status_code=200, summary="Check and change one setting until the next reload or restart")
    async def change(request: Request[Any, Any, Any], data: JSONBody[NewSetting]) -> SettingChangedAt:
        found = await served().ask(
            "settings.change.at",
            path=data.path,
            value=data.value,
            only_check="yes" if data.only_check else "no",
            node=data.node,
            by=served().who(request),
        )
        return convert(found, SettingChangedAt)

    return [listed, change]
