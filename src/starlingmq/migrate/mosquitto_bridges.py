"""The bridges of a mosquitto.conf. ``mosquitto_options.OF_BRIDGES`` has the keys that their options become."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, Final

from starlingmq.config.bridges_section import BridgeConfig, BridgeTopic, check_bridges
from starlingmq.config.section_types import ConfigError
from starlingmq.config.tree_builder import build
from starlingmq.migrate.described import BridgeLink, Description
from starlingmq.migrate.mosquitto_options import Line

VALUES: Final[dict[str, dict[str, Any]]] = {
    "bridge_protocol_version": {"mqttv31": "3.1.1", "mqttv311": "3.1.1", "mqttv50": "5.0"},
    "bridge_outgoing_retain": {"true": True, "1": True, "false": False, "0": False},
    "notifications": {"true": "both", "1": "both", "false": "off", "0": "off"},
    "notifications_local_only": {"true": "local", "1": "local", "false": "both", "0": "both"},
    "start_type": {"automatic": "automatic", "lazy": "lazy", "once": "once"},
}
KEYS: Final = {
    "bridge_protocol_version": "version",
    "bridge_outgoing_retain": "retain",
    "bridge_receive_maximum": "max_inflight",
    "keepalive_interval": "keep_alive",
    "notifications": "notifications",
    "notifications_local_only": "notifications",
    "start_type": "start",
}
TLS_KEYS: Final = {"bridge_cafile": "ca", "bridge_certfile": "cert", "bridge_keyfile": "key"}
TEXTS: Final = {
    "clientid": "client_id",
    "password": "password",
    "remote_clientid": "client_id",
    "remote_password": "password",
    "remote_username": "username",
    "username": "username",
}
TLS_PORT: Final = 8883
PORT: Final = 1883
TRUE: Final = ("true", "1")
NAME: Final = r"[A-Za-z0-9._-]{1,64}"


class Bridges:
    """Call ``begin`` at each ``connection``, ``take`` for its options, and ``end`` at what ends it."""

    def __init__(self, into: Description) -> None:
        self.into = into
        self.current: BridgeLink | None = None
        self._where = ""
        self._addresses: list[str] = []
        self._secure = False

    def begin(self, line: Line) -> None:
        self.end()
        self.current = BridgeLink(line.value, options={"version": "3.1.1", "notifications": "both"})
        self._where, self._addresses, self._secure = line.where, [], False

    def end(self) -> None:
        link, self.current = self.current, None
        if link is None:
            return
        for address in self._addresses:
            host, colon, port = address.rpartition(":")
            if not colon or not port.isdecimal():
                host, port = address, str(TLS_PORT if self._secure else PORT)
            link.servers.append(f"{'mqtts' if self._secure else 'mqtt'}://{host}:{port}")
        if not link.servers or not link.topics:
            self.into.needs(f"connection {link.name}", self._where, "it has no address or no topic: left out")
            return
        if re.fullmatch(NAME, link.name) is None:
            remedy = "other signs than letters, digits, dots, dashes and underscores are underscores now"
            self.into.needs(f"connection {link.name}", self._where, remedy)
        if not link.client_id:
            remedy = "mosquitto's is HOSTNAME.NAME: set client_id to it, for messages that wait at the other broker"
            self.into.needs(f"connection {link.name}: no remote_clientid", self._where, remedy)
        self.into.bridges.append(link)
        self.into.count("bridges")

    def take(self, line: Line, path: Path) -> None:
        """``path``: the value as the name of a file."""
        link, option, value = self.current, line.option, line.value
        assert link is not None
        if option in ("address", "addresses"):
            self._addresses += value.split()
        elif option == "topic":
            self._topic(link, line)
        elif option in TEXTS:
            setattr(link, TEXTS[option], value)
        elif option in TLS_KEYS:
            self._secure = True
            link.tls[TLS_KEYS[option]] = str(path)
        elif option in ("bridge_tls_use_os_certs", "bridge_capath"):
            self._secure = self._secure or value not in ("false", "0")
        elif option == "bridge_insecure":
            link.tls |= {"insecure": True} if value in TRUE else {}
        elif option == "bridge_alpn":
            link.tls["alpn"] = [value]
        elif value in VALUES.get(option, ()):
            link.options[KEYS[option]] = VALUES[option][value]
        elif option in ("keepalive_interval", "bridge_receive_maximum") and value.isdecimal():
            link.options[KEYS[option]] = int(value)
        else:
            self.into.needs(f"{option} {value}", line.where, "this value is not known: set it in bridges")

    def _topic(self, link: BridgeLink, line: Line) -> None:
        try:
            words = shlex.split(line.value)
        except ValueError:
            words = []
        pattern, direction, qos, local, remote = [*words, *["", "out", "0", "", ""][len(words) :]][:5]
        if not words or len(words) > 5 or not qos.isdecimal():
            self.into.needs(f"topic {line.value}", line.where, "expected PATTERN DIRECTION QOS PREFIX PREFIX")
            return
        topic: dict[str, Any] = {"filter": pattern, "direction": direction, "qos": int(qos)}
        topic |= {key: text for key, text in (("local_prefix", local), ("remote_prefix", remote)) if text}
        try:
            known = build(BridgeTopic, topic)
            check_bridges((BridgeConfig(name="x", servers=("mqtt://x",), topics=(known,)),))
        except ConfigError as error:
            remedy = str(error).removeprefix("bridges[0].topics[0].")
            self.into.needs(f"topic {line.value}", line.where, f"it is left out: {remedy}")
            return
        link.topics.append(topic)
