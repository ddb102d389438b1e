"""Settings are listed and changed while the broker serves; a change is checked first, and can be only checked."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from starlingmq.admin.declared_actions import NODE, TARGET, action
from starlingmq.admin.local_node import LocalNode
from starlingmq.admin.node_rpc import Answers, Missing, NodeRpc
from starlingmq.admin.operator_problem import AdminError
from starlingmq.config.live_changes import TEXT_MAX, LiveSetting, Value, changed, live_settings
from starlingmq.config.section_types import ConfigError


class SettingChange(Struct, frozen=True):
    path: Annotated[str, Meta(min_length=1, max_length=100, description="Path of the setting, such as mqtt.max_qos.")]
    value: Annotated[str, Meta(max_length=TEXT_MAX, description="As in a settings file, such as 10s or 64KiB.")]
    only_check: Annotated[
        bool, Meta(description="Report the difference, and change nothing.", extra={"ctl": "--check"})
    ] = False


class SettingSearch(Struct, frozen=True):
    part: Annotated[str, Meta(max_length=100, description="Only settings whose path contains this text.")] = ""


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


def changed_at(rpc: NodeRpc, answers: Answers[SettingChanged], request: SettingChange) -> SettingChangedAt:
    return SettingChangedAt(request.path, answers.results, answers.missing)


class LiveChangeActions:
    """Each node checks a change itself."""

    def __init__(self, local_node: LocalNode) -> None:
        self._local_node = local_node

    @action(
        "settings",
        "GET /settings",
        NODE,
        ctl="settings part?",
        columns="path: setting, value/text, default/text, help: meaning*",
        none="there are no settings",
    )
    async def listed(self, request: SettingSearch) -> LiveSettings:
        """List the settings that can be changed while the broker serves."""
        return LiveSettings([one for one in live_settings(self._local_node.config()) if request.part in one.path])

    @action(
        "settings.change",
        "PUT /settings",
        TARGET,
        body="NewSetting",
        merge=changed_at,
        ctl="set path value",
        hint="Write it to the settings file, too.",
        audit="changed {path} from {before!r} to {after!r}",
    )
    async def change(self, request: SettingChange) -> SettingChanged:
        """Check and change one setting until the next reload or restart. Raises AdminError, and then nothing has
        changed."""
        present = self._local_node.config()
        try:
            wanted = changed(present, request.path, request.value)
            before, after = _value(live_settings(present), request), _value(live_settings(wanted), request)
            apply = not request.only_check and before != after
            if apply:
                self._local_node.apply(wanted)
        except (ConfigError, OSError) as error:
            raise AdminError(400, str(error)) from None
        return SettingChanged(before, after, apply)


def _value(listed: list[LiveSetting], request: SettingChange) -> Value:
    return next(one.value for one in listed if one.path == request.path)
