"""Settings are listed and changed while the broker serves; a change is checked first, and can be only checked."""

from __future__ import annotations

import logging

from msgspec import Struct

from starlingmq.admin.local_node import LocalNode
from starlingmq.admin.node_rpc import Missing, NodeRpc
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.sessions import name_of
from starlingmq.admin.typed_actions import NoArguments, typed
from starlingmq.config.live_changes import LiveSetting, Value, changed, live_settings
from starlingmq.config.section_types import ConfigError
from starlingmq.net.control_socket import Action, Report

log = logging.getLogger("starlingmq.admin")


class SettingChange(Struct, frozen=True):
    """``only_check``: report the difference, and change nothing. ``by``: the operator, for the log."""

    path: str = ""
    value: str = ""
    only_check: bool = False
    by: str = ""


class SettingChangeAt(SettingChange, frozen=True):
    """``node``: see ``NodeRpc.target``."""

    node: str = ""


class LiveSettings(Struct, frozen=True):
    settings: list[LiveSetting]


class SettingChanged(Struct, frozen=True):
    """``applied``: false if the change was only checked, or changes nothing."""

    before: Value
    after: Value
    applied: bool


class SettingChangedAt(Struct, frozen=True):
    path: str
    nodes: dict[str, SettingChanged]
    missing: list[Missing]


class LiveChangeActions:
    """The part of one node."""

    def __init__(self, local_node: LocalNode) -> None:
        self._local_node = local_node

    def actions(self) -> dict[str, Action]:
        return {
            "settings": typed(NoArguments, self._list),
            "settings.change": typed(SettingChange, self._change),
        }

    async def _list(self, report: Report, request: NoArguments) -> LiveSettings:
        return LiveSettings(live_settings(self._local_node.config()))

    async def _change(self, report: Report, request: SettingChange) -> SettingChanged:
        """Raises AdminError, and then nothing has changed."""
        present = self._local_node.config()
        try:
            wanted = changed(present, request.path, request.value)
            before, after = _value(live_settings(present), request), _value(live_settings(wanted), request)
            apply = not request.only_check and before != after
            if apply:
                self._local_node.apply(wanted)
        except (ConfigError, OSError) as error:
            raise AdminError(400, str(error)) from None
        if apply:
            log.info("%s changed %s from %r to %r", name_of(request.by), request.path, before, after)
        return SettingChanged(before, after, apply)


def _value(listed: list[LiveSetting], request: SettingChange) -> Value:
    return next(one.value for one in listed if one.path == request.path)


class LiveChangeLists:
    """The same at any node."""

    def __init__(self, rpc: NodeRpc) -> None:
        self._rpc = rpc

    def actions(self) -> dict[str, Action]:
        return {"settings.change.at": typed(SettingChangeAt, self._change)}

    async def _change(self, report: Report, request: SettingChangeAt) -> SettingChangedAt:
        """Each node checks the change itself. Raises AdminError."""
        node = self._rpc.target(request.node)
        asked = SettingChange(request.path, request.value, request.only_check, request.by)
        answers = await self._rpc.everywhere("settings.change", asked, SettingChanged, node)
        return SettingChangedAt(request.path, answers.results, answers.missing)
