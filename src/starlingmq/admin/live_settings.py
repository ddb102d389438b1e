"""The settings in force, without secrets; reloading them; and the listeners."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, to_builtins

from starlingmq.admin.declared_actions import NODE, TARGET, action
from starlingmq.admin.expirations import expiry_lines
from starlingmq.admin.local_node import LocalNode
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.setting_differences import access_differences, setting_differences
from starlingmq.config.secret_masking import masked


class Reloaded(Struct, frozen=True):
    """``restart``: changed settings that take effect only after a restart. ``warnings``: what ends soon or has
    ended. ``certificates``: the others that are in use now, and when they end. ``before`` and ``after``: what has
    changed, by the paths of settings, and "rules" and "users"; no secrets."""

    reloaded: bool
    restart: list[str]
    warnings: list[str] = []
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    certificates: list[str] = []


class ListenerView(Struct, frozen=True):
    """``refused``: refused connections, by reason."""

    address: str
    connections: int
    refused: dict[str, int]


class Listeners(Struct, frozen=True):
    """``total``: open connections on all of them."""

    listeners: list[ListenerView]
    total: int


class SettingActions:
    def __init__(self, local_node: LocalNode) -> None:
        self.local_node = local_node

    @action("config", "GET /config", NODE, ctl="config")
    async def config(self) -> dict[str, Any]:
        """Get the settings in force, without secrets."""
        found: dict[str, Any] = to_builtins(masked(self.local_node.in_force()))
        return found

    @action(
        "reload",
        "POST /reload",
        TARGET,
        ctl="reload",
        hint="All files that they name are read again, too.",
        audit="reloaded the settings",
    )
    async def reload(self) -> Reloaded:
        """Reload the settings; the response lists those that need a restart. Raises AdminError, and then nothing has
        changed."""
        earlier, access = self.local_node.config(), self.local_node.access
        chain = access.chain
        try:
            restart = self.local_node.reload()
        except Exception as error:
            if not type(error).__module__.startswith("starlingmq.") and not isinstance(error, OSError):
                raise
            raise AdminError(409, f"the settings were not changed: {error}") from None
        config = self.local_node.config()
        warnings, certificates = expiry_lines(config, self.local_node.driver.clock())
        old, new = setting_differences(earlier, config)
        old_access, new_access = access_differences(chain, access.chain)
        return Reloaded(True, restart, warnings, old | old_access, new | new_access, certificates)

    @action("listeners", "GET /listeners", NODE, ctl="listeners", columns="address, connections, refused")
    async def listeners(self) -> Listeners:
        """List listeners and their connections."""
        found = [
            ListenerView(one.address, one.gate.connections, dict(one.gate.refused))
            for one in self.local_node.listeners()
        ]
        return Listeners(found, self.local_node.state.ctx.counters.connections_open)
