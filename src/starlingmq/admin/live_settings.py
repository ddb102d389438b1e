"""The settings in force, without secrets; reloading and changing them while the broker serves, with the differences for
the log of actions; and the listeners.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, Struct, json, to_builtins

from starlingmq.admin.declared_actions import NODE, TARGET, action
from starlingmq.admin.expirations import expiry_lines
from starlingmq.admin.local_node import LocalNode
from starlingmq.admin.node_rpc import Answers, Missing, NodeRpc
from starlingmq.admin.operator_problem import AdminError
from starlingmq.config.live_changes import TEXT_MAX, LiveSetting, Value, changed, live_settings
from starlingmq.config.secret_masking import masked
from starlingmq.config.section_types import ConfigError
from starlingmq.config.settings import Config

if TYPE_CHECKING:
    from starlingmq.auth.acl import Rule
    from starlingmq.auth.chain import Chain


class SettingChange(Struct, frozen=True):
    path: Annotated[str, Meta(min_length=1, max_length=100, description="Path of the setting, such as mqtt.max_qos.")]
    value: Annotated[str, Meta(max_length=TEXT_MAX, description="As in a settings file, such as 10s or 64KiB.")]
    only_check: Annotated[
        bool, Meta(description="Report the difference, and change nothing.", extra={"ctl": "--check"})
    ] = False


class SettingSearch(Struct, frozen=True):
    part: Annotated[str, Meta(max_length=100, description="Only settings whose path contains this text.")] = ""


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
    async def listed(self, request: SettingSearch) -> list[LiveSetting]:
        """List the settings that can be changed while the broker serves."""
        return [one for one in live_settings(self._local_node.config()) if request.part in one.path]

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


NAMES_MAX: Final = 20  # of users, and of rules
VALUE_MAX: Final = 200  # characters

Difference = tuple[dict[str, str], dict[str, str]]
"""The values before, and those after; without those that are the same in both."""


def setting_differences(before: Config, after: Config) -> Difference:
    """Values by the paths of settings. A secret that has changed is ``***`` in both."""
    old, new = dict(_flat("", to_builtins(before))), dict(_flat("", to_builtins(after)))
    shown_old, shown_new = dict(_flat("", to_builtins(masked(before)))), dict(_flat("", to_builtins(masked(after))))
    paths = [path for path in {**old, **new} if old.get(path) != new.get(path)]
    return (
        {path: _text(shown_old[path]) for path in paths if path in shown_old},
        {path: _text(shown_new[path]) for path in paths if path in shown_new},
    )


def access_differences(before: Chain | None, after: Chain | None) -> Difference:
    """The rules and the users of the password file that were removed or changed, and those that were added or
    changed. A change of the order of rules is none."""
    rules = _differing(_rules(before), _rules(after))
    users = _differing(_users(before), _users(after))
    found: Difference = {}, {}
    for name, parts in (("rules", rules), ("users", users)):
        for side, names in zip(found, parts, strict=True):
            if names:
                more = f" and {len(names) - NAMES_MAX:,} more" if len(names) > NAMES_MAX else ""
                side[name] = ", ".join(names[:NAMES_MAX]) + more
    return found


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[list[str], list[str]]:
    changed = {name for name in {**old, **new} if old.get(name) != new.get(name)}
    return [name for name in old if name in changed], [name for name in new if name in changed]


def _rules(chain: Chain | None) -> dict[str, str]:
    """Texts by themselves."""
    given = [] if chain is None else [_given(rule) for rule in chain.acl.rules]
    return {text: text for text in given}


def _given(rule: Rule) -> str:
    """The rule of the file, as JSON."""
    default = type(rule.given)()
    names = (name for name in rule.given.__struct_fields__ if getattr(rule.given, name) != getattr(default, name))
    return _text({name: getattr(rule.given, name) for name in names})


def _users(chain: Chain | None) -> Mapping[str, str]:
    return {} if chain is None else chain.stored_users()


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield path, value
        return
    for name, below in value.items():
        yield from _flat(f"{path}.{name}" if path else name, below)


def _text(value: object) -> str:
    text = json.encode(value).decode()
    return text if len(text) <= VALUE_MAX else text[:VALUE_MAX] + "…"


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
