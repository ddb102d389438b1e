"""Reads a mosquitto.conf with everything that it names: ``include_dir``, passwords, rules, the persistence file.

``mosquitto_options`` has the table of options. Those of a listener belong to the ``listener`` before them, or to the
default listener; those of a bridge to the ``connection`` before them. The rest is of the whole broker, except
passwords, rules and ``allow_anonymous`` with ``per_listener_settings``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from starlingmq.migrate.described import Address, Attention, Description, MigrationError, read_bytes, read_text
from starlingmq.migrate.mosquitto_access import ANONYMOUS, AccessLines, read_passwords, read_rules
from starlingmq.migrate.mosquitto_bridges import Bridges
from starlingmq.migrate.mosquitto_db import NEVER, is_persistence_file, read_database
from starlingmq.migrate.mosquitto_options import (
    HARMLESS,
    NO_EQUIVALENT,
    NOT_NEEDED,
    OF_BRIDGES,
    OF_LISTENERS,
    PREFIXES,
    READ,
    SETTINGS,
    Line,
)

MAX_PACKET: Final = 268_435_455
BOOLS: Final = {"true": True, "1": True, "false": False, "0": False}
UNITS: Final = {"h": 3600, "d": 86400, "w": 7 * 86400, "m": 30 * 86400, "y": 365 * 86400}
TLS_FILES: Final = {"cafile": "ca", "certfile": "cert", "keyfile": "key"}
TLS_FLAGS: Final = {
    "require_certificate": "require_client_cert",
    "use_identity_as_username": "use_identity_as_username",
    "use_subject_as_username": "use_subject_as_username",
}
SECURITY: Final = ("acl_file", "allow_anonymous", "password_file")
INCLUDED_MAX: Final = 1000  # files


@dataclass(slots=True)
class _Listener:
    port: int
    host: str
    where: str
    given: dict[str, Line] = field(default_factory=dict)


def read_mosquitto(files: list[Path], now: float) -> Description:
    """The first file is the settings; one that is a persistence file takes the place of the one that they name.
    Raises MigrationError."""
    into = Description()
    data = {path: read_bytes(path) for path in files}
    databases = [path for path in files if is_persistence_file(data[path])]
    settings = [path for path in files if path not in databases]
    conf = _Conf(into)
    for path in settings:
        conf.read(path)
    conf.finish()
    named = conf.database()
    database = databases[0] if databases else named
    if len(databases) > 1:
        raise MigrationError(f"{databases[1]}: more than one persistence file is given; give one")
    if database is not None:
        into.persistent = True
        _take_data(into, data.get(database) or read_bytes(database), str(database), now, conf.expiration)
    return into


def _take_data(into: Description, data: bytes, name: str, now: float, expiration: int) -> None:
    found = read_database(data, name, now)
    into.retained = found.retained
    for session in found.sessions:
        if _is_of_bridge(session.client_id, into):
            waiting = len(session.queued) + len(session.in_flight)
            remedy = f"it is of a bridge, and left out with {waiting} messages: let mosquitto send them before it stops"
            into.needs(f"session {session.client_id}", name, remedy)
            continue
        into.sessions.append(session)
        if session.expiry == NEVER and expiration:
            session.expiry = expiration
    into.count("retained messages", len(found.retained))
    into.count("sessions", len(into.sessions))
    for session in into.sessions:
        into.count("subscriptions", len(session.subscriptions))
        into.count("queued messages", len(session.queued))
        into.count("messages in flight", len(session.in_flight))
        into.count("QoS 2 messages received and not released", len(session.held))
    if found.missing:
        into.needs("messages", name, f"{found.missing} references to messages that the file lacks were left out")


def _is_of_bridge(client_id: str, into: Description) -> bool:
    """Whether a session is the local side of a bridge: its client is part of mosquitto."""
    return client_id.startswith("local.") and any(
        client_id == f"local.{link.client_id}" if link.client_id else client_id.endswith(f".{link.name}")
        for link in into.bridges
    )


class _Conf:
    def __init__(self, into: Description) -> None:
        self.into = into
        self.lines: list[Line] = []
        self.globals: dict[str, Line] = {}
        self.listeners: list[_Listener] = []
        self.default: _Listener | None = None
        self.bridges = Bridges(into)
        self.per_listener = False
        self.expiration = 0

    # Reading

    def read(self, path: Path) -> None:
        self.lines += self._lines(path, [])
        self.per_listener = any(line.option == "per_listener_settings" and BOOLS.get(line.value) for line in self.lines)
        for line in self.lines:
            self._take(line)
        self.lines = []

    def _lines(self, path: Path, seen: list[Path]) -> Iterator[Line]:
        seen.append(path)
        if len(seen) > INCLUDED_MAX:
            raise MigrationError(f"{path}: include_dir names more than {INCLUDED_MAX} files")
        for number, text in enumerate(read_text(path).split("\n"), 1):
            option, _, value = text.strip().partition(" ")
            line = Line(option, value.strip(), f"{path}:{number}")
            if not option or text.startswith("#"):
                continue
            if option != "include_dir":
                yield line
                continue
            directory = self._path(line)
            if not directory.is_dir():
                raise MigrationError(f"{line.where}: include_dir {line.value}: there is no such directory")
            for each in sorted(each for each in directory.iterdir() if each.suffix == ".conf"):
                yield from self._lines(each, seen)

    def _path(self, line: Line) -> Path:
        """Of a file that a line names: relative ones are looked for here, and beside the file with the line."""
        path = Path(line.value)
        beside = Path(line.where.rpartition(":")[0]).parent / path
        return (path if path.is_absolute() or path.exists() else beside).absolute()

    def _take(self, line: Line) -> None:
        option = line.option
        if option == "connection":
            self.bridges.begin(line)
        elif option == "listener":
            self.bridges.end()
            self._begin_listener(line)
        elif self.bridges.current is not None and (option in OF_BRIDGES or option == "bridge_capath"):
            self.bridges.take(line, self._path(line))
        elif option in OF_BRIDGES:
            self.into.needs(option, line.where, "it does not follow a connection: remove it")
        elif option in OF_LISTENERS or (self.per_listener and option in SECURITY):
            self._listener_option(line)
        else:
            self.globals[option] = line
        if option in NOT_NEEDED:
            self.into.not_needed.append(Attention(option, line.where, NOT_NEEDED[option]))
        elif option in NO_EQUIVALENT and line.value not in HARMLESS.get(option, ()):
            self.into.needs(f"{option} {_shown(line)}".strip(), line.where, NO_EQUIVALENT[option])
        elif option in SETTINGS:
            self._setting(line)
        elif not any(option in table for table in (READ, OF_BRIDGES, NO_EQUIVALENT)) and not option.startswith(
            PREFIXES
        ):
            self.into.needs(option, line.where, "unknown option; see what it does in mosquitto.conf(5)")

    def _setting(self, line: Line) -> None:
        path, kind = SETTINGS[line.option]
        value: int | bool | None = self._bool(line) if kind == "bool" else self._number(line)
        if value is not None and not (line.option == "max_packet_size" and value == 0):
            self.into.settings[path] = value
            self.into.count("settings")

    def _bool(self, line: Line) -> bool | None:
        if line.value not in BOOLS:
            self.into.needs(f"{line.option} {_shown(line)}", line.where, "expected true or false: correct the value")
        return BOOLS.get(line.value)

    def _number(self, line: Line) -> int | None:
        try:
            return max(0, int(line.value))
        except ValueError:
            self.into.needs(f"{line.option} {_shown(line)}", line.where, "expected a number: correct the value")
            return None

    # Listeners

    def _begin_listener(self, line: Line) -> None:
        port, _, host = line.value.partition(" ")
        if not port.isdecimal() or int(port) > 65535:
            self.into.needs(f"listener {line.value}", line.where, "expected a port: add the listener to listeners")
            port = "0"
        self.listeners.append(_Listener(int(port), host.strip(), line.where))

    def _listener_option(self, line: Line) -> None:
        if not self.listeners and self.default is None:
            self.default = _Listener(1883, "", line.where)
        listener = self.listeners[-1] if self.listeners else self.default
        assert listener is not None
        if line.option == "port" and listener is self.default:
            listener.port = self._number(line) or 1883
        elif line.option == "bind_address":
            listener.host = line.value
        listener.given[line.option] = line

    def finish(self) -> None:
        """Everything is read: what depends on several lines."""
        into = self.into
        self.bridges.end()
        if self.default is not None:
            self.listeners.insert(0, self.default)
        local = not self.listeners
        for listener in self.listeners or [_Listener(1883, "loopback", "")]:
            self._address(listener)
        self._same_everywhere("max_qos", "mqtt.max_qos")
        self._same_everywhere("max_topic_alias", "mqtt.topic_alias_max")
        into.settings.setdefault("limits.max_packet_size", MAX_PACKET)
        into.settings.setdefault("mqtt.mqueue_store_qos0", False)
        self._expiry()
        if "pid_file" in self.globals:
            into.pid_file = str(self._path(self.globals["pid_file"]))
        if "connection_messages" in self.globals:
            into.settings["log.connections"] = self._bool(self.globals["connection_messages"]) or False
        if "clientid_prefixes" in self.globals:
            self._prefix(self.globals["clientid_prefixes"])
        self._security(local)

    def _address(self, listener: _Listener) -> None:
        into, given = self.into, listener.given
        protocol = given["protocol"].value if "protocol" in given else "mqtt"
        if protocol not in ("mqtt", "websockets"):
            into.needs(f"protocol {protocol}", given["protocol"].where, NO_EQUIVALENT["http_api"])
            return
        options: dict[str, Any] = {}
        tls = self._tls(listener)
        if tls:
            options["tls"] = tls
        if limit := "max_connections" in given and self._number(given["max_connections"]):
            options["max_connections"] = limit
        scheme = "mqtts" if tls else "mqtt"
        path = ""
        if protocol == "websockets":
            scheme, path = "wss" if tls else "ws", "/*"
            options["subprotocol"] = "optional"
            if "websockets_origin" in given:
                options["origins"] = given["websockets_origin"].value.split()
        elif listener.port == 0 and listener.host.startswith("/"):
            scheme, path = "unix", listener.host
        elif listener.port == 0:
            return  # said in _begin_listener
        host = listener.host
        family = given["socket_domain"].value if "socket_domain" in given else ""
        if not host and family in ("ipv4", "ipv6"):
            host = "0.0.0.0" if family == "ipv4" else "::"  # noqa: S104
        into.addresses.append(Address(scheme, host, listener.port, path, options))
        into.count("listeners")

    def _tls(self, listener: _Listener) -> dict[str, Any]:
        given, tls = listener.given, dict[str, Any]()
        if "certfile" not in given:
            return tls
        for option, key in TLS_FILES.items():
            if option in given:
                tls[key] = str(self._path(given[option]))
        if "crlfile" in given:
            tls["crl"] = [str(self._path(given["crlfile"]))]
        for option, key in TLS_FLAGS.items():
            if option in given and self._bool(given[option]):
                tls[key] = True
        if "tls_version" in given:
            version = given["tls_version"].value.removeprefix("tlsv")
            tls["min_version"] = version if version in ("1.2", "1.3") else "1.2"
            if version not in ("1.2", "1.3"):
                self.into.needs(
                    f"tls_version {given['tls_version'].value}",
                    given["tls_version"].where,
                    "1.2 is the lowest version here: update clients that need an older one",
                )
        return tls

    def _same_everywhere(self, option: str, path: str) -> None:
        """One setting for all listeners: the highest of their values."""
        lines = [each.given[option] for each in self.listeners if option in each.given]
        numbers = [number for line in lines if (number := self._number(line)) is not None]
        if not numbers:
            return
        alike = len(lines) == len(self.listeners) and len(set(numbers)) == 1
        default = 2 if option == "max_qos" else 10
        self.into.settings[path] = numbers[0] if alike else max(*numbers, default)
        if not alike:
            remedy = f"{path} is one setting for all listeners, and has the highest value: lower it, or run two brokers"
            self.into.needs(f"{option} {lines[0].value}", lines[0].where, remedy)

    def _expiry(self) -> None:
        line = self.globals.get("persistent_client_expiration")
        self.into.settings["mqtt.session_expiry_v3"] = NEVER
        if line is None:
            return
        match = re.fullmatch(r"(\d+)([hdwmy])", line.value)
        if match is None:
            self.into.needs(f"{line.option} {line.value}", line.where, "set mqtt.session_expiry_v3, such as 7d")
            return
        self.expiration = min(NEVER - 1, int(match[1]) * UNITS[match[2]])
        self.into.settings["mqtt.session_expiry_v3"] = self.into.settings["mqtt.max_session_expiry"] = self.expiration

    def _prefix(self, line: Line) -> None:
        if re.search(r"[*?%]", line.value):
            self.into.needs(f"{line.option} {line.value}", line.where, "write clients at the top of the file of rules")
        elif line.value:
            self.into.client_ids.append(f"{line.value}*")

    # Users and rules

    def _security(self, local: bool) -> None:
        into = self.into
        sources = [each.given for each in self.listeners] if self.per_listener and self.listeners else [self.globals]
        sources = [{name: each[name] for name in SECURITY if name in each} for each in sources]
        apart = len({tuple((name, line.value) for name, line in sorted(each.items())) for each in sources}) > 1
        open_to: list[bool] = []
        rules: list[dict[str, Any]] = []
        limited = any("acl_file" in each for each in sources)
        for given in sources:
            users = self._users(given)
            may = self._bool(given["allow_anonymous"]) if "allow_anonymous" in given else local
            open_to.append(bool(may))
            names = sorted(users) + [ANONYMOUS] * bool(may)
            if "acl_file" in given:
                path = self._path(given["acl_file"])
                lines = read_rules(read_text(path), str(path), into)
                if not may:
                    lines.users.pop(ANONYMOUS, None)
                unknown = [] if users else [user for user in lines.users if user]  # of certificates, or a plugin
                rules += _of(lines, unknown + names if apart else None)
            elif limited and names:
                rules.append({"allow": ["publish", "subscribe", "group"], "users": names, "topics": ["#", "$SYS/#"]})
        for listener in self.listeners:
            if (line := listener.given.get("listener_allow_anonymous")) is not None:
                open_to.append(bool(self._bool(line)))
        into.settings["auth.allow_anonymous"] = all(open_to)
        self._say_apart(apart, open_to)
        if limited:
            into.rules = rules
            into.settings["auth.acl.filter"] = "deliver"
        elif into.client_ids:
            into.rules, into.rule_default = [], "allow"
        self._certificates()

    def _users(self, given: dict[str, Line]) -> dict[str, str]:
        if "password_file" not in given:
            return {}
        path = self._path(given["password_file"])
        users = read_passwords(read_text(path), str(path), self.into)
        for name, secret in users.items():
            if self.into.users.setdefault(name, secret) != secret:
                remedy = "another listener has another password for this name, which counts: rename one of the users"
                self.into.needs(f"password of {name}", str(path), remedy)
        self.into.carried["users"] = len(self.into.users)
        return users

    def _say_apart(self, apart: bool, open_to: list[bool]) -> None:
        if apart:
            where = next(line.where for each in self.listeners for line in each.given.values())
            remedy = (
                "users and rules apply to every listener here: a user of one listener may log in at the others, with "
                "the same rights; where that must not be, run a broker for each listener"
            )
            self.into.needs("per_listener_settings true", where, remedy)
        if any(open_to) and not all(open_to):
            where = next(
                line.where
                for each in self.listeners
                for name, line in each.given.items()
                if name in ("allow_anonymous", "listener_allow_anonymous")
            )
            remedy = (
                "auth.allow_anonymous is for all listeners, and false: give those clients a login, or run two brokers"
            )
            self.into.needs("allow_anonymous", where, remedy)

    def _certificates(self) -> None:
        tls = [each.options["tls"] for each in self.into.addresses if "tls" in each.options]
        if any("use_identity_as_username" in each or "use_subject_as_username" in each for each in tls):
            self.into.settings["auth.methods"] = ["certificate", *["password"] * bool(self.into.users)]

    # Data

    def database(self) -> Path | None:
        """The persistence file that the settings name, if there is one."""
        line = self.globals.get("persistence")
        if line is None or not self._bool(line):
            return None
        self.into.persistent = True
        location = self.globals.get("persistence_location")
        name = self.globals["persistence_file"].value if "persistence_file" in self.globals else "mosquitto.db"
        path = self._path((location or line)._replace(value=str(Path(location.value if location else "", name))))
        self.into.database = str(path)
        if not path.exists():
            remedy = f"{path} does not exist: stop mosquitto, so that it writes the file, or give its copy as FILE"
            self.into.needs("persistence true", line.where, remedy)
            return None
        return path


def _of(lines: AccessLines, names: list[str] | None) -> list[dict[str, Any]]:
    """The rules of one listener; ``names``: its users, where other listeners have others."""
    if names is not None:
        lines.users = {user: topics for user, topics in lines.users.items() if user in names}
        if not names:
            lines.patterns = {}
    return lines.rules(names)


def _shown(line: Line) -> str:
    """The value, unless it may be a secret."""
    return "" if re.search("password|psk|kpass|identity|_opt_", line.option) else line.value
