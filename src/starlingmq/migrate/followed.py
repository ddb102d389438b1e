"""The settings of a broker that follows an old one (``starlingmq migrate ... --follow``): the bridge between them.

The new broker begins empty. Retained messages come over the bridge, which is both ways and carries ``#``; sessions are
moved when their clients connect (``follower``), and in no other way: what the old broker writes to its file now would
be outdated by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from starlingmq.config.section_types import ConfigError
from starlingmq.migrate.described import Address, BridgeLink, Description

NAME: Final = "old"
MQTT_TOPICS: Final[list[dict[str, Any]]] = [
    {"filter": "#", "direction": "both"},
    {"filter": "$follow/#", "direction": "both"},  # markers of moves
]
NATS_TOPICS: Final[list[dict[str, Any]]] = [{"filter": "#", "direction": "both"}]
SCHEMES: Final = {"mosquitto": ("mqtt",), "emqx": ("mqtt",), "nats": ("nats",)}
ANYWHERE: Final = ("", "loopback", "0.0.0.0", "::")  # noqa: S104  # nosec B104


@dataclass(frozen=True, slots=True)
class Old:
    """The old broker, as the command line names it. ``listen``: URLs in place of its own addresses."""

    kind: str
    url: str = ""
    username: str = ""
    password_file: Path | None = None
    listen: tuple[str, ...] = ()


def follow(found: Description, old: Old) -> None:
    """Add the bridge. Raises ConfigError where the files and the options do not say how to connect."""
    url = old.url or _address(found, SCHEMES[old.kind])
    if not url:
        raise ConfigError("the files have no plain listener: name the old broker with --old URL")
    anonymous = found.settings.get("auth.allow_anonymous", False)
    if not old.username and not anonymous:
        raise ConfigError(
            "the old broker wants a login: give --username and --password-file of a user that may publish and "
            "subscribe to #, $follow/# and $SYS/broker/clients/connected there"
        )
    link = BridgeLink(NAME, [url], NATS_TOPICS if old.kind == "nats" else MQTT_TOPICS, username=old.username)
    if old.password_file is not None:
        link.password = old.password_file.read_text().removesuffix("\n")
    for each in found.bridges:
        remedy = "the old broker keeps it until it ends: then run this command without --follow for its settings"
        found.needs(f"connection {each.name}", NAME, remedy)
    if old.kind != "mosquitto":
        remedy = "only those of a mosquitto are moved: let its clients receive what waits before they move"
        found.needs("sessions", NAME, f"{remedy}; then: starlingmq ctl link drain {NAME}")
    elif found.database:
        link.options["follow"] = {
            "database": found.database,
            **({"pid_file": found.pid_file} if found.pid_file else {}),
        }
        if not found.pid_file:
            remedy = "name it (pid_file), so that sessions are written when they move; until then as last written"
            found.needs("pid_file", NAME, remedy)
    else:
        found.needs("sessions", NAME, "without persistence true they are not moved: set it, and restart mosquitto")
    found.attention = [each for each in found.attention if each.option != "persistence true"]  # it is not stopped
    found.bridges, found.retained, found.sessions = [link], [], []
    for what in ("bridges", "retained messages", "sessions", "subscriptions", "queued messages", "messages in flight"):
        found.carried.pop(what, None)
    found.carried.pop("QoS 2 messages received and not released", None)
    found.persistent = True
    if old.listen:
        found.addresses = [_listener(each) for each in old.listen]


def _address(found: Description, schemes: tuple[str, ...]) -> str:
    for each in found.addresses:
        if each.scheme in schemes:
            host = "127.0.0.1" if each.host in ANYWHERE else f"[{each.host}]" if ":" in each.host else each.host
            return f"{each.scheme}://{host}:{each.port}"
    return ""


def _listener(url: str) -> Address:
    scheme, _, rest = url.partition("://")
    host, colon, port = rest.rpartition(":")
    if not colon or not port.isdecimal():
        raise ConfigError(f"--listen {url}: expected a URL such as mqtt://0.0.0.0:1884")
    return Address(scheme, host.strip("[]"), int(port))
