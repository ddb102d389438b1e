"""The bridges of a mosquitto.conf. ``mosquitto_options.OF_BRIDGES`` has the keys that their options become."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from starlingmq.migrate.described import BridgeLink, BridgeTopic, Description
from starlingmq.migrate.mosquitto_options import Line

VERSIONS: Final = {"mqttv31": "3.1.1", "mqttv311": "3.1.1", "mqttv50": "5.0"}
DIRECTIONS: Final = ("in", "out", "both")
STARTS: Final = ("automatic", "lazy", "once")
TLS_PORT: Final = 8883
PORT: Final = 1883
TRUE: Final = ("true", "1")
TLS_KEYS: Final = {"bridge_cafile": "ca", "bridge_certfile": "certificate", "bridge_keyfile": "key"}


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
        self.current = BridgeLink(line.value)
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
        if not link.client_id:
            remedy = (
                "mosquitto's is HOSTNAME.NAME: set client_id of the bridge to it, for what waits at the other broker"
            )
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
        elif option in ("remote_clientid", "clientid"):
            link.client_id = value
        elif option in ("remote_username", "username"):
            link.username = value
        elif option in ("remote_password", "password"):
            link.password = value
        elif option in TLS_KEYS:
            self._secure = True
            link.tls[TLS_KEYS[option]] = str(path)
        elif option == "bridge_tls_use_os_certs":
            self._secure = self._secure or value in TRUE
        elif option == "bridge_insecure":
            if value in TRUE:
                link.tls["verify"] = False
        elif option == "bridge_alpn":
            link.tls["alpn"] = value
        elif option == "bridge_outgoing_retain":
            link.retain = value in TRUE
        elif option == "bridge_protocol_version" and value in VERSIONS:
            link.version = VERSIONS[value]
        elif option == "start_type" and value in STARTS:
            link.start = value
        elif option == "keepalive_interval" and value.isdecimal():
            link.keepalive = int(value)
        else:
            self.into.needs(f"{option} {value}", line.where, "this value is not known: set it in bridges")

    def _topic(self, link: BridgeLink, line: Line) -> None:
        try:
            words = shlex.split(line.value)
        except ValueError:
            words = []
        pattern, direction, qos, local, remote = [*words, *["", "out", "0", "", ""][len(words) :]][:5]
        if not words or len(words) > 5 or direction not in DIRECTIONS or qos not in ("0", "1", "2"):
            self.into.needs(f"topic {line.value}", line.where, "expected PATTERN DIRECTION QOS PREFIX PREFIX")
        elif not pattern:
            remedy = "a bridge that only renames one topic is not supported: publish to the other name"
            self.into.needs(f"topic {line.value}", line.where, remedy)
        else:
            link.topics.append(BridgeTopic(pattern, direction, int(qos), local, remote))
