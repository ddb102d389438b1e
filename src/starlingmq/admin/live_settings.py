"""The settings in force, without what is secret in them; reading them anew; where clients come in."""

from __future__ import annotations

import logging
from typing import Any

from msgspec import to_builtins

from starlingmq.admin.local_node import LocalNode
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.sessions import by
from starlingmq.config.secret_masking import masked
from starlingmq.net.control_socket import Action, Report

log = logging.getLogger("starlingmq.admin")

Arguments = dict[str, str]
Result = dict[str, Any]


class SettingActions:
    def __init__(self, place: LocalNode) -> None:
        self.place = place

    def actions(self) -> dict[str, Action]:
        return {"config": self.config, "reload": self.reload, "listeners": self.listeners}

    async def config(self, report: Report, arguments: Arguments) -> Result:
        shown: Result = to_builtins(masked(self.place.config()))
        return shown

    async def reload(self, report: Report, arguments: Arguments) -> Result:
        """``restart``: settings that have changed and count only after a restart. Raises AdminError; then nothing has
        changed."""
        try:
            restart = self.place.reload()
        except Exception as error:
            if not type(error).__module__.startswith("starlingmq.") and not isinstance(error, OSError):
                raise
            raise AdminError(409, f"the settings were not changed: {error}") from None
        log.info("%s reloaded the settings", by(arguments))
        return {"reloaded": True, "restart": restart}

    async def listeners(self, report: Report, arguments: Arguments) -> Result:
        found = [
            {"address": one.address, "connections": one.gate.connections, "refused": dict(one.gate.refused)}
            for one in self.place.listeners()
        ]
        return {"listeners": found, "total": self.place.state.ctx.counters.connections_open}
