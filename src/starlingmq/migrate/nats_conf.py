"""Reads a nats-server.conf (2.9 to 2.12).

``SETTINGS``: a setting with the same meaning. ``READ``: read here, into the named setting. ``NOT_NEEDED``: nothing has
to be done. ``NO_EQUIVALENT``: what to do. Users of accounts are not carried over: they would share one name space.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from starlingmq.auth.password_file import BCRYPT_HASH, HASHER
from starlingmq.auth.token_file import TOKEN_SIGNS_MIN
from starlingmq.config.nkeys import user_key
from starlingmq.migrate.described import Address, Attention, Description, read_text
from starlingmq.migrate.nats_text import Map, Placed, parse_nats
from starlingmq.wire.nats_subjects import filter_of

SETTINGS: Final = {
    "lame_duck_duration": "nats.lame_duck_duration",
    "max_connections": "limits.max_connections",
    "max_conn": "limits.max_connections",
    "max_control_line": "nats.max_control_line",
    "max_payload": "nats.max_payload",
    "max_pending": "limits.queue_bytes",
    "max_subs": "limits.subscriptions_per_client",
    "max_subscriptions": "limits.subscriptions_per_client",
    "no_auth_user": "nats.no_auth_user",
    "ping_interval": "nats.ping_interval",
    "ping_max": "nats.max_pings_out",
    "server_name": "node.name",
}
READ: Final = {
    "accounts": "auth.allow_anonymous",
    "addr": "listeners[].url",
    "authorization": "auth.password.file, auth.acl.file, nats.nkeys, nats.token_file",
    "client_advertise": "nats.connect_urls",
    "host": "listeners[].url",
    "http": "listeners[].url",
    "http_port": "listeners[].url",
    "https": "listeners[].url",
    "https_port": "listeners[].url",
    "listen": "listeners[].url",
    "monitor_port": "listeners[].url",
    "mqtt": "listeners[].url",
    "net": "listeners[].url",
    "operator": "auth.allow_anonymous",
    "port": "listeners[].url",
    "tls": "listeners[].tls",
    "websocket": "listeners[].url",
    "ws": "listeners[].url",
}
_LOG: Final = "log lines are written to stderr; log.level, starlingmq ctl trace"
NOT_NEEDED: Final = {
    **dict.fromkeys(
        [
            "connect_error_reports", "debug", "log_file", "log_max_num", "log_size_limit", "logfile", "logfile_max_num",
            "logfile_size_limit", "logtime", "logtime_utc", "max_traced_msg_len", "reconnect_error_reports",
            "remote_syslog", "syslog", "trace", "trace_verbose",
        ],
        _LOG,
    ),
    "disable_sublist_cache": "caches need no setting",
    "http_base_path": "the monitoring pages have no prefix",
    "lame_duck_grace_period": "nats.lame_duck_duration is the whole time",
    "max_closed_clients": "GET /api/v1/clients and the log have what was closed",
    "no_fast_producer_stall": "limits.publisher_hold",
    "no_header_support": "headers are supported",
    "pid_file": "the service manager knows the process (deploy/systemd)",
    "pidfile": "the service manager knows the process (deploy/systemd)",
    "ports_file_dir": "the line ready has the addresses",
    "prof_port": "starlingmq ctl trace",
    "server_metadata": "node.name and node.zone name a node",
    "server_tags": "node.name and node.zone name a node",
    "write_deadline": "limits.queue_bytes bounds what waits for a slow client",
}  # fmt: skip
_JETSTREAM: Final = "JetStream needs no settings here, and streams have to be created again (docs/NATS.md)"
_OPERATOR: Final = "there are no accounts and JWTs of operators: list users in authorization, and migrate again"
_ACCOUNTS: Final = (
    "accounts are not kept apart here: run a broker for each; or move the users into authorization with permissions "
    "for topics of their own, and migrate again"
)
NO_EQUIVALENT: Final = {
    "accounts": _ACCOUNTS,
    "auth_callout": "set auth.http, or the hook authenticate",
    "cluster": "members are in etcd: see docs/CLUSTER.md, and starlingmq cluster --help",
    "default_js_domain": _JETSTREAM,
    "default_sentinel": _OPERATOR,
    "gateway": "there are no super-clusters: nodes of one cluster may be in several zones (node.zone)",
    "jetstream": _JETSTREAM,
    "leaf": "there are no leaf nodes: let the clients connect to this broker, or keep nats-server at the site",
    "leafnodes": "there are no leaf nodes: let the clients connect to this broker, or keep nats-server at the site",
    "mappings": "subjects are not mapped: let the hook on_publish change the topic",
    "maps": "subjects are not mapped: let the hook on_publish change the topic",
    "no_advertise": "set nats.connect_urls to the addresses that clients may learn",
    "no_system_account": _ACCOUNTS,
    "ocsp": "OCSP is not stapled: use short-lived certificates",
    "operator": _OPERATOR,
    "resolver": _OPERATOR,
    "resolver_preload": _OPERATOR,
    "store_dir": _JETSTREAM,
    "system_account": "a rule allows requests to $SYS/REQ: allow: publish, users: [...], topics: ['$SYS/REQ/#']",
    "trusted": _OPERATOR,
    "trusted_keys": _OPERATOR,
}
EVERYTHING: Final = {"allow": ["publish", "subscribe", "group"], "topics": ["#"]}
DURATIONS: Final = {"nats.lame_duck_duration", "nats.ping_interval"}
GO_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
MONITORING: Final = "it has no login: set auth.api.token_file, then the address of this listener"
DEFAULT_PORT: Final = 4222


def read_nats(path: Path, environment: Mapping[str, str]) -> Description:
    """Raises MigrationError."""
    found = _Nats(parse_nats(read_text(path), path, environment, read_text), path)
    found.read()
    return found.into


class _Nats:
    def __init__(self, top: Map, path: Path) -> None:
        self.into = Description()
        self.top = _lower(top)
        self.path = path
        self.rules: list[dict[str, Any]] = []
        self.limited = False

    def read(self) -> None:
        into = self.into
        for key, found in self.top.items():
            if key in NOT_NEEDED:
                into.not_needed.append(Attention(key, found.where, NOT_NEEDED[key]))
            elif key in NO_EQUIVALENT and found.value not in (False, {}):
                into.needs(key, found.where, NO_EQUIVALENT[key])
            elif key in SETTINGS:
                self._setting(key, found)
            elif key not in READ and key not in NO_EQUIVALENT:
                into.needs(key, found.where, "unknown option; see what it does in the documentation of nats-server")
        self._listeners()
        self._authorization()
        if "client_advertise" in self.top:
            into.settings["nats.connect_urls"] = [str(self.top["client_advertise"].value)]

    def _setting(self, key: str, found: Placed) -> None:
        path, value = SETTINGS[key], found.value
        if path in DURATIONS:
            value = _seconds(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            value = max(0, value)  # -1 is no limit
        elif path not in ("node.name", "nats.no_auth_user"):
            value = None
        if value is None:
            self.into.needs(key, found.where, f"this value is not understood: set {path}")
            return
        self.into.settings[path] = value
        self.into.count("settings")

    # Listeners

    def _listeners(self) -> None:
        host, port = self._address(self.top, DEFAULT_PORT)
        tls = self._tls(self.top.get("tls"))
        self._add("tls" if tls else "nats", host, port, tls)
        for name, plain, secure in (
            ("websocket", "nats+ws", "nats+wss"),
            ("ws", "nats+ws", "nats+wss"),
            ("mqtt", "mqtt", "mqtts"),
        ):
            if name in self.top and isinstance(self.top[name].value, dict):
                self._other(_lower(self.top[name].value), plain, secure)
        for name, scheme in (
            ("http", "http"),
            ("http_port", "http"),
            ("monitor_port", "http"),
            ("https", "https"),
            ("https_port", "https"),
        ):
            if name in self.top and self.top[name].value:
                self._monitoring(name, scheme, tls)

    def _other(self, section: Map, plain: str, secure: str) -> None:
        """The section ``websocket`` or ``mqtt``."""
        host, port = self._address(section, 0)
        tls = self._tls(section.get("tls"))
        if port:
            options = (
                {"origins": [str(each) for each in _plain(section["allowed_origins"])]}
                if "allowed_origins" in section
                else {}
            )
            self._add(secure if tls else plain, host, port, tls, "/" if plain == "nats+ws" else "", options)
        known = {
            "host",
            "port",
            "listen",
            "net",
            "tls",
            "no_tls",
            "allowed_origins",
            "max_ack_pending",
            "ack_wait",
            "compression",
            "same_origin",
            "handshake_timeout",
        }
        if plain == "mqtt" and "max_ack_pending" in section:
            self.into.settings["mqtt.max_inflight"] = section["max_ack_pending"].value
        if plain == "mqtt" and "ack_wait" in section and (wait := _seconds(section["ack_wait"].value)) is not None:
            self.into.settings["mqtt.retry_interval"] = wait
        for key in section.keys() - known:
            self.into.needs(key, section[key].where, "no equivalent: see docs/MIGRATE-NATS.md")

    def _monitoring(self, name: str, scheme: str, tls: dict[str, Any]) -> None:
        found = self.top[name]
        host, port = _host_port(found.value, 0)
        local = host in ("127.0.0.1", "localhost", "::1")
        self._add(scheme, host if local else "127.0.0.1", port, tls if scheme == "https" else {})
        if not local:
            self.into.needs(
                f"{name} {found.value}", found.where, f"the monitoring pages listen on 127.0.0.1: {MONITORING}"
            )

    def _add(
        self,
        scheme: str,
        host: str,
        port: int,
        tls: dict[str, Any],
        path: str = "",
        options: dict[str, Any] | None = None,
    ) -> None:
        everywhere = host in ("", "0.0.0.0", "::")  # noqa: S104  # nosec B104
        self.into.addresses.append(
            Address(
                scheme, "" if everywhere else host, port, path, {**({"tls": tls} if tls else {}), **(options or {})}
            )
        )
        self.into.count("listeners")

    def _address(self, section: Map, port: int) -> tuple[str, int]:
        host = str(section["host"].value) if "host" in section else ""
        host = str(section["net"].value) if "net" in section else host
        if "port" in section and isinstance(section["port"].value, int):
            port = section["port"].value
        return _host_port(section["listen"].value, port) if "listen" in section else (host, port)

    def _tls(self, found: Placed | None) -> dict[str, Any]:
        if found is None or not isinstance(found.value, dict):
            return {}
        section, tls = _lower(found.value), dict[str, Any]()
        for theirs, ours in (("cert_file", "cert"), ("key_file", "key"), ("ca_file", "ca")):
            if theirs in section:
                path = Path(str(section[theirs].value))
                tls[ours] = str((path if path.is_absolute() or path.exists() else self.path.parent / path).absolute())
        if any(key in section and section[key].value is True for key in ("verify", "verify_and_map")):
            tls["require_client_cert"] = True
        if "min_version" in section and str(section["min_version"].value) in ("1.2", "1.3"):
            tls["min_version"] = str(section["min_version"].value)
        remedies = {
            "verify_and_map": "set tls.use_subject_as_username (or identity), and auth.methods: [certificate]",
            "allow_non_tls": "add a listener nats:// on another port for clients without TLS",
            "handshake_first": "TLS begins after INFO: set tls_first of the clients to false",
            "pinned_certs": "certificates are not pinned: use a CA of your own",
        }
        for key, remedy in remedies.items():
            if key in section and section[key].value:
                self.into.needs(f"tls.{key}", section[key].where, remedy)
        return tls if "cert" in tls else {}

    # Users

    def _authorization(self) -> None:
        into, found = self.into, self.top.get("authorization")
        section = _lower(found.value) if found is not None and isinstance(found.value, dict) else {}
        default = section.get("default_permissions")
        users = section["users"].value if "users" in section and isinstance(section["users"].value, list) else []
        for each in users:
            self._user(_lower(each.value) if isinstance(each.value, dict) else {}, each.where, default)
        if found is not None and ("user" in section or "username" in section):
            self._user(section, found.where, None)
        if "token" in section:
            self._token(section["token"])
        if "auth_callout" in section:
            into.needs("auth_callout", section["auth_callout"].where, NO_EQUIVALENT["auth_callout"])
        if self.limited:
            into.rules = self.rules
            into.settings["auth.acl.filter"] = "deliver"
        closed = bool(section) or any(key in self.top for key in ("accounts", "operator", "trusted", "trusted_keys"))
        into.settings["auth.allow_anonymous"] = not closed

    def _user(self, user: Map, where: str, default: Placed | None) -> None:
        into = self.into
        name = str((user.get("user") or user.get("username") or Placed("", "")).value)
        if "nkey" in user:
            name = str(user["nkey"].value)
            try:
                user_key(name)
            except ValueError as error:
                into.needs("nkey", where, str(error))
                return
            into.settings.setdefault("nats.nkeys", []).append(name)
            into.count("NKeys")
        elif not name or re.search(r"[:*?\s]", name):
            into.needs(f"user {name!r}", where, "this name cannot be in rules or in the password file: use another one")
            return
        elif secret := _secret(user):
            into.users[name] = secret
            into.count("users")
        else:
            into.needs(f"password of {name}", where, "it has none: set it with starlingmq passwd")
        permissions = user.get("permissions") or user.get("permission") or user.get("authorization") or default
        if permissions is None or not isinstance(permissions.value, dict):
            self.rules.append({**EVERYTHING, "users": [name]})
            return
        self.limited = True
        self._permissions(name, _lower(permissions.value))

    def _permissions(self, name: str, permissions: Map) -> None:
        replies = permissions.get("allow_responses") or permissions.get("allow_response")
        if replies is not None and replies.value:
            limits = _lower(replies.value) if isinstance(replies.value, dict) else {}
            count = limits["max"].value if "max" in limits else 1
            expires = _seconds(limits["expires"].value) if "expires" in limits else 120.0
            rule = {
                "allow": "reply",
                "users": [name],
                "max_replies": max(0, count),
                "reply_expires": max(0.0, expires or 0.0),
            }
            self.rules.append(rule)
        for action, short in (("publish", "pub"), ("subscribe", "sub")):
            found = permissions.get(action) or permissions.get(short)
            section = _lower(found.value) if found is not None and isinstance(found.value, dict) else {}
            allowed = found if found is not None and not section else section.get("allow")
            if replies is not None and found is None and action == "publish":
                allowed = Placed([], replies.where)  # nats-server then allows replies only
            if "deny" in section:
                self._rules(name, "deny", action, section["deny"])
            self._rules(name, "allow", action, allowed)

    def _rules(self, name: str, kind: str, action: str, found: Placed | None) -> None:
        actions = [action, *["group"] * (action == "subscribe" and kind == "allow")]
        if found is None:
            self.rules.append({kind: actions, "users": [name], "topics": ["#"]})
            return
        topics = []
        for text in map(str, _plain(found)):
            subject, _, queue = text.partition(" ")
            topic = filter_of(subject.encode()).decode()
            if not topic or re.search("[*>]", queue) or (queue and kind == "deny"):
                self.into.needs(
                    f"permission {text!r} of {name}", found.where, "no equivalent: write a rule (docs/SECURITY.md)"
                )
            elif queue:
                self.rules.append({kind: "group", "users": [name], "topics": [topic], "groups": [queue.strip()]})
            else:
                topics.append(topic)
            self.into.count("permissions")
        if topics:
            self.rules.append({kind: actions, "users": [name], "topics": topics})

    def _token(self, found: Placed) -> None:
        token = str(found.value)
        if token.startswith("$2") or len(token) < TOKEN_SIGNS_MIN:
            remedy = f"write one of at least {TOKEN_SIGNS_MIN} characters, not hashed, into nats.token_file"
            self.into.needs("token", found.where, remedy)
            return
        self.into.secrets["tokens"] = f"{token}\n"
        self.into.secret_settings["nats.token_file"] = "tokens"
        self.into.count("tokens")


def _lower(section: Map) -> Map:
    return {key.lower(): found for key, found in section.items()}


def _plain(found: Placed) -> list[Any]:
    """The values of a list, or of the one value that stands for it."""
    return [each.value for each in found.value] if isinstance(found.value, list) else [found.value]


def _secret(user: Map) -> str:
    """The hash of a password, which may be one already; "" if there is none."""
    found = user.get("password") or user.get("pass")
    if found is None or not str(found.value):
        return ""
    text = str(found.value)
    return text if BCRYPT_HASH.fullmatch(text) else HASHER.hash(text)


def _host_port(value: Any, port: int) -> tuple[str, int]:
    """Of ``port``, ``:port`` or ``host:port``."""
    host, _, last = str(value).rpartition(":")
    return host.strip("[]"), int(last) if last.isdecimal() else port


def _seconds(value: Any) -> float | None:
    """Of a Go duration (``1h30m``, ``500ms``) or a number of seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    parts = GO_DURATION.findall(str(value))
    if "".join(number + unit for number, unit in parts) != str(value) or not parts:
        return None
    return sum(float(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit] for number, unit in parts)
