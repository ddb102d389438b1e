"""The settings in force, without what is secret in them; reading them anew; where clients come in."""

from __future__ import annotations

import logging
import re
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import to_builtins

from starlingmq.admin.place import Place
from starlingmq.admin.problem import AdminError
from starlingmq.admin.sessions import by
from starlingmq.net.control import Action, Report

log = logging.getLogger("starlingmq.admin")

SECRET: Final = re.compile(r"(password|secret|token|headers|key_password|username)$")
HIDDEN: Final = "***"

Arguments = dict[str, str]
Result = dict[str, Any]


def without_secrets(value: Any, name: str = "") -> Any:
    """Settings as they may be shown: neither secrets, nor what a URL may have of them."""
    if isinstance(value, dict):
        return {key: without_secrets(below, key) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(one, name) for one in value]
    if isinstance(value, str) and value:
        if SECRET.search(name):
            return HIDDEN
        if "://" in value and (urlsplit(value).password or urlsplit(value).username):
            return HIDDEN
    return value


class SettingActions:
    def __init__(self, place: Place) -> None:
        self.place = place

    def actions(self) -> dict[str, Action]:
        return {"config": self.config, "reload": self.reload, "listeners": self.listeners}

    async def config(self, report: Report, arguments: Arguments) -> Result:
        shown: Result = without_secrets(to_builtins(self.place.config()))
        return shown

    async def reload(self, report: Report, arguments: Arguments) -> Result:
        """``restart``: settings that have changed and count only after a restart. Raises AdminError; then nothing has
        changed."""
        try:
            restart = self.place.reload()
        except Exception as error:
            if not type(error).__module__.startswith("starlingmq.") and not isinstance(error, OSError):
                raise
            raise AdminError(409, f"settings are unchanged: {error}") from None
        log.info("%s had the settings read anew", by(arguments))
        return {"reloaded": True, "restart": restart}

    async def listeners(self, report: Report, arguments: Arguments) -> Result:
        found = [
            {"address": one.address, "connections": one.gate.connections, "refused": dict(one.gate.refused)}
            for one in self.place.listeners()
        ]
        return {"listeners": found, "total": self.place.state.ctx.counters.connections_open}
