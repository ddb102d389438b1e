"""Reads what ``emqx ctl data export`` of EMQX 5 and 6 has written, or single files of it.

| in the archive | here |
|---|---|
| `cluster.hocon` | settings, by the tables below |
| `mnesia/emqx_authn_mnesia`; users as JSON or CSV | passwords: bcrypt, plain, and PBKDF2 with SHA-512 |
| `mnesia/emqx_acl`; `acl.conf` or the rules in `cluster.hocon` | rules (``emqx_rules``) |
| `mnesia/emqx_retainer_message` | retained messages |
| `mnesia/emqx_banned`, `emqx_app`, `emqx_admin`, `emqx_psk`, `emqx_authn_scram_mnesia` | named with what to do |

Sessions are not in an export.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tarfile
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from starlingmq.auth.hashing import PBKDF2_HASH
from starlingmq.auth.password_file import BCRYPT_HASH, HASHER
from starlingmq.core.topics.topics import valid_topic
from starlingmq.migrate.described import Address, Attention, Description, MigrationError, StoredMessage, read_bytes
from starlingmq.migrate.emqx_rules import rules_of
from starlingmq.migrate.erlang_terms import HEADER, parse_terms, read_table
from starlingmq.migrate.nats_text import Map, Placed, parse_nats, plain_value
from starlingmq.wire.properties import RULES, Properties, encode_property_bytes

SETTINGS: Final = {
    "await_rel_timeout": "mqtt.await_rel_timeout",
    "max_awaiting_rel": "mqtt.max_awaiting_rel",
    "max_clientid_len": "limits.client_id_length",
    "max_inflight": "mqtt.max_inflight",
    "max_mqueue_len": "mqtt.max_mqueue_len",
    "max_packet_size": "limits.max_packet_size",
    "max_qos_allowed": "mqtt.max_qos",
    "max_subscriptions": "limits.subscriptions_per_client",
    "max_topic_alias": "mqtt.topic_alias_max",
    "max_topic_levels": "limits.topic_levels",
    "mqueue_store_qos0": "mqtt.mqueue_store_qos0",
    "response_information": "mqtt.response_information",
    "retain_available": "mqtt.retain_available",
    "retry_interval": "mqtt.retry_interval",
    "server_keepalive": "mqtt.server_keep_alive",
    "session_expiry_interval": "mqtt.session_expiry_v3",
    "shared_subscription": "mqtt.shared_subscription",
    "shared_subscription_strategy": "queue_groups.strategy",
    "wildcard_subscription": "mqtt.wildcard_subscription",
}
"""Of the section ``mqtt``."""
STRATEGIES: Final = {"hash_clientid": "hash_client", "local": "local_first"}
MQTT_DIFFERENT: Final = {
    "exclusive_subscription": "there are no exclusive subscriptions",
    "mqueue_priorities": "queues have no priorities",
    "peer_cert_as_username": "set tls.use_identity_as_username (cn) or use_subject_as_username (dn) of the listener",
    "peer_cert_as_clientid": "bind client ids to users with clients: ['%u'] in the file of rules",
    "upgrade_qos": "a message is delivered at the lower QoS of publication and subscription [MQTT-3.8.4-8]",
    "use_username_as_clientid": "bind client ids to users with clients: ['%u'] in the file of rules",
}
"""Of the section ``mqtt``, where they are switched on."""
_DATA: Final = "write a pipeline or a hook for it (docs/SPARK.md, docs/PYTHON.md)"
NO_EQUIVALENT: Final = {
    "actions": _DATA,
    "api_key": "write a token for auth.api.token_file (docs/HTTP.md)",
    "auto_subscribe": "let the clients subscribe",
    "bridges": _DATA,
    "cluster": "members are in etcd: see docs/CLUSTER.md, and starlingmq cluster --help",
    "connectors": _DATA,
    "dashboard": "add a listener http:// with auth.api.users (docs/HTTP.md)",
    "delayed": "there is no delayed publication",
    "exhook": "write a hook in Python (docs/PYTHON.md)",
    "file_transfer": "there is no file transfer over MQTT",
    "flapping_detect": "set auth.flapping",
    "gateway": "there are no gateways, except NATS: keep EMQX for those clients",
    "limiter": "set limits.message_rate, limits.byte_rate and limits.connect_rate",
    "message_transformation": _DATA,
    "psk_authentication": "TLS uses certificates here: give the clients certificates, or passwords over TLS",
    "rewrite": "let the hook on_publish change the topic",
    "rule_engine": _DATA,
    "schema_registry": _DATA,
    "schema_validation": _DATA,
    "sources": _DATA,
    "zones": "there is one set of settings: run a broker for each zone that differs",
}
NOT_NEEDED: Final = dict.fromkeys(
    [
        "alarm", "broker", "conn_congestion", "crl_cache", "durable_sessions", "durable_storage", "force_gc",
        "force_shutdown", "license", "log", "node", "opentelemetry", "persistent_session_store", "plugins",
        "prometheus", "retainer", "rpc", "session_persistence", "slow_subs", "sys_topics", "sysmon",
        "telemetry", "trace",
    ],
    "has its own defaults here (docs/CONFIGURATION.md)",
)  # fmt: skip
READ: Final = ("authentication", "authorization", "listeners", "mqtt")
TABLES: Final = {
    "emqx_admin": "set auth.api.users, and their passwords with starlingmq passwd",
    "emqx_app": NO_EQUIVALENT["api_key"],
    "emqx_authn_scram_mnesia": "set the passwords with starlingmq passwd, which writes keys for SCRAM",
    "emqx_banned": "ban them with starlingmq ctl ban",
    "emqx_enhanced_authn_scram_mnesia": "set the passwords with starlingmq passwd, which writes keys for SCRAM",
    "emqx_psk": NO_EQUIVALENT["psk_authentication"],
}
SCHEMES: Final = {"tcp": ("mqtt", ""), "ssl": ("mqtts", ""), "ws": ("ws", "/mqtt"), "wss": ("wss", "/mqtt")}
NOTHING: Final = ("infinity", "disabled", "undefined")
EVERYTHING: Final = {"allow": ["publish", "subscribe", "group"], "topics": ["#", "$SYS/#"]}
ARCHIVE_MAX: Final = 1 << 30  # bytes of all files in it


def read_emqx(files: list[Path]) -> Description:
    """Raises MigrationError."""
    export = _Export()
    for path in files:
        for name, data in _parts(path):
            export.take(name, data)
    export.finish()
    return export.into


def _parts(path: Path) -> Iterator[tuple[str, bytes]]:
    """The names and contents of an archive, or of a single file."""
    data = read_bytes(path)
    if not data.startswith(b"\x1f\x8b"):
        yield str(path), data
        return
    left = ARCHIVE_MAX
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            for member in archive:
                left -= member.size
                if left < 0:
                    raise MigrationError(f"{path}: the files in it have more than {ARCHIVE_MAX} bytes")
                content = archive.extractfile(member)
                if content is not None:
                    yield f"{path}/{member.name}", content.read()
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise MigrationError(f"{path}: this archive is damaged: {error}") from None


class _Export:
    def __init__(self) -> None:
        self.into = Description()
        self.conf: Map = {}
        self.users: list[tuple[str, str, str, bool, str]] = []  # name, hash, salt, superuser, where
        self.tables: dict[str, list[tuple[Any, ...]]] = {}
        self.texts: list[tuple[str, str]] = []  # rules as text, with the name of the file
        self.legacy = True

    def take(self, name: str, data: bytes) -> None:
        base = name.rpartition("/")[2]
        if data.startswith(HEADER):
            self.tables[base] = read_table(data, name)
            return
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise MigrationError(f"{name}: this is no file of EMQX that is known") from None
        if base == "META.hocon":
            version = re.search(r'version\s*=\s*"?(\d+)\.(\d+)', text)
            self.legacy = version is None or (int(version[1]), int(version[2])) < (6, 3)
        elif base.endswith((".hocon", "emqx.conf")):
            self.conf |= _expanded(parse_nats(text, Path(name), None, _no_include))
        elif base.endswith(".csv"):
            self.users += [_row(row, name) for row in csv.DictReader(io.StringIO(text))]
        elif base.endswith(".json"):
            try:
                self.users += [_row(row, name) for row in json.loads(text)]
            except (ValueError, TypeError, AttributeError):
                raise MigrationError(f"{name}: expected a list of users as the dashboard of EMQX imports it") from None
        elif base.endswith(".conf"):
            self.texts.append((text, name))
        elif "/certs/" not in name:
            self.into.needs(base, name, "unknown file: it was not read")

    def finish(self) -> None:
        into = self.into
        for key, found in self.conf.items():
            if key in NO_EQUIVALENT and found.value not in ([], {}) and _enabled(found.value):
                into.needs(key, found.where, NO_EQUIVALENT[key])
            elif key in NOT_NEEDED:
                into.not_needed.append(Attention(key, found.where, NOT_NEEDED[key]))
            elif key not in READ and key not in NO_EQUIVALENT:
                into.needs(key, found.where, "unknown section; see what it does in the documentation of EMQX")
        for name, remedy in TABLES.items():
            if self.tables.get(name):
                into.needs(f"{len(self.tables[name])} rows", name, remedy)
        for (_, user), hash_, salt, superuser, *_ in self.tables.get("emqx_authn_mnesia", []):
            self.users.append((_text(user), _text(hash_), _text(salt), superuser == "true", "emqx_authn_mnesia"))
        self._mqtt(_section(self.conf.get("mqtt")))
        self._listeners()
        rules = self._authentication()
        self._authorization(rules)
        self._retained()
        into.needs("sessions", "export", "EMQX does not export them: move subscribers first, then publishers")

    def _mqtt(self, section: Map) -> None:
        for key, found in section.items():
            value = found.value
            if isinstance(value, str):
                value = plain_value(value, sizes=key == "max_packet_size")
            if key in SETTINGS:
                value = 0 if value in NOTHING else STRATEGIES.get(str(value), value)
                self.into.settings[SETTINGS[key]] = value
                self.into.count("settings")
            elif key in MQTT_DIFFERENT and value not in (False, "disabled", "", {}, []):
                self.into.needs(f"mqtt.{key}", found.where, MQTT_DIFFERENT[key])

    # Listeners

    def _listeners(self) -> None:
        into, found = self.into, self.conf.get("listeners")
        if found is None:
            into.addresses += [Address("mqtt", "", 1883), Address("ws", "", 8083, "/mqtt")]
            into.count("listeners", 2)
            remedy = "the defaults mqtt 1883 and ws 8083 were written: add mqtts 8883 and wss 8084 with certificates"
            into.needs("listeners", "cluster.hocon", remedy)
            return
        for kind, named in _section(found).items():
            for name, entry in _section(named).items():
                listener = _section(entry)
                if not all(_plain(listener, key, True) for key in ("enable", "enabled")):
                    continue
                if kind in SCHEMES:
                    self._listener(kind, name, listener, entry.where)
                else:
                    into.needs(f"listeners.{kind}.{name}", entry.where, "this protocol is not supported: use mqtts://")

    def _listener(self, kind: str, name: str, listener: Map, where: str) -> None:
        scheme, path = SCHEMES[kind]
        host, _, port = str(_plain(listener, "bind", "")).rpartition(":")
        options: dict[str, Any] = {}
        limit = _plain(listener, "max_connections", 0)
        if isinstance(limit, int) and limit:
            options["max_connections"] = limit
        if kind in ("ssl", "wss"):
            options["tls"] = self._tls(_section(listener.get("ssl_options")), f"listeners.{kind}.{name}", where)
        if kind in ("ws", "wss"):
            path = str(_plain(_section(listener.get("websocket")), "mqtt_path", path))
        everywhere = host in ("", "0.0.0.0", "[::]", "::")  # noqa: S104  # nosec B104
        self.into.addresses.append(
            Address(scheme, "" if everywhere else host.strip("[]"), int(port or 0), path, options)
        )
        self.into.count("listeners")
        remedies = {
            "authentication": "methods are the same at all listeners: set auth.methods",
            "mountpoint": "no topic is changed: keep users apart by rules with %u, or rewrite topics in on_publish",
            "proxy_protocol": "set proxy_protocol of the listener to the networks of the balancer",
        }
        for key, remedy in remedies.items():
            if _plain(listener, key, ""):
                self.into.needs(f"listeners.{kind}.{name}.{key}", listener[key].where, remedy)

    def _tls(self, ssl: Map, name: str, where: str) -> dict[str, Any]:
        tls: dict[str, Any] = {}
        for theirs, ours in (("certfile", "cert"), ("keyfile", "key"), ("cacertfile", "ca")):
            value = str(_plain(ssl, theirs, ""))
            if value.startswith("-----BEGIN"):
                file = f"{name.replace('.', '-')}-{ours}.pem"
                self.into.secrets[file] = value
                tls[ours] = file  # in the directory that is written
            elif value:
                tls[ours] = value
        if any("${" in str(value) for value in tls.values()):
            self.into.needs(name, where, "copy its certificates, and name the copies in tls of the listener")
        if _plain(ssl, "verify", "") == "verify_peer" and _plain(ssl, "fail_if_no_peer_cert", False):
            tls["require_client_cert"] = True
        return tls

    # Users

    def _authentication(self) -> list[dict[str, Any]]:
        """Also the rules of superusers, which precede all others."""
        into, found = self.into, self.conf.get("authentication")
        chain = [] if found is None else found.value if isinstance(found.value, list) else [found]
        hashing: Map = {}
        for each in chain:
            method = _section(each)
            kind = [str(_plain(method, key, "")) for key in ("mechanism", "backend")]
            if kind == ["password_based", "built_in_database"]:
                hashing = _section(method.get("password_hash_algorithm"))
                if _plain(method, "user_id_type", "username") == "clientid":
                    into.needs(
                        "user_id_type clientid", each.where, "users log in by name: set user names in the clients"
                    )
            elif kind[0] != "scram":
                remedy = "set auth.jwt" if kind[0] == "jwt" else "set auth.http, or the hook authenticate"
                into.needs(f"authentication {' '.join(kind).strip()}", each.where, f"{remedy} (docs/SECURITY.md)")
        into.settings["auth.allow_anonymous"] = not (chain or self.users)
        lost: list[tuple[str, str]] = []
        for name, hash_, salt, _, where in self.users:
            if secret := _accepted(hashing, hash_, salt):
                into.users[name] = secret
            else:
                lost.append((name, where))
        into.count("users", len(into.users))
        if lost:
            remedy = f"their hash ({_plain(hashing, 'name', 'sha256')}) is not accepted; set it with starlingmq passwd"
            into.needs(f"passwords of {len(lost)} users, such as {lost[0][0]}", lost[0][1], remedy)
        above = [name for name, _, _, superuser, _ in self.users if superuser]
        return [{**EVERYTHING, "users": above}] if above else []

    # Rules

    def _authorization(self, rules: list[dict[str, Any]]) -> None:
        into, section = self.into, _section(self.conf.get("authorization"))
        sources = section["sources"].value if "sources" in section else []
        given = [("file", name, text) for text, name in self.texts]
        for each in sources:
            source = _section(each)
            kind = str(_plain(source, "type", ""))
            if not _plain(source, "enable", True) or kind not in ("file", "built_in_database"):
                if _plain(source, "enable", True):
                    into.needs(f"authorization {kind}", each.where, "set auth.http, whose answers may have rules")
            elif "rules" in source:
                given.append((kind, f"{each.where} (rules)", str(source["rules"].value)))
            else:
                given.append((kind, each.where, ""))
        if self.tables.get("emqx_acl") and all(kind != "built_in_database" for kind, _, _ in given):
            given.append(("built_in_database", "emqx_acl", ""))
        for kind, name, text in given:
            for term, where in self._stored() if kind == "built_in_database" else parse_terms(text, name):
                found, problems = rules_of(term, self.legacy)
                rules += found
                into.count("rules", len(found))
                for problem in problems:
                    into.needs("rule", where, problem)
        if _plain(section, "deny_action", "ignore") == "disconnect":
            into.needs("deny_action disconnect", section["deny_action"].where, "clients are told, and stay connected")
        into.rule_default = "deny" if _plain(section, "no_match", "allow") == "deny" else "allow"
        if rules or into.rule_default == "deny":
            into.rules = rules

    def _stored(self) -> list[tuple[Any, str]]:
        """The rules of the built-in database: those of client ids first, then of users, then of all."""
        found = []
        rows = self.tables.get("emqx_acl", [])
        for key, rules, *_ in sorted(rows, key=lambda row: -row[0][0] if isinstance(row[0], tuple) else 0):
            who: Any = "all" if key == 0 else ("username" if key[0] == 1 else "clientid", key[1])
            for rule in rules:
                condition = who if len(rule) == 3 or rule[1] == "all" else ("and", [who, rule[1]])
                found.append(((rule[0], condition, rule[-2], [rule[-1]]), "emqx_acl"))
        return found

    def _retained(self) -> None:
        for _, message, expires_at, *_ in self.tables.get("emqx_retainer_message", []):
            _, _, qos, publisher, _, headers, topic, payload, *_ = message
            if not isinstance(topic, bytes) or not valid_topic(topic) or topic.startswith(b"$SYS/"):
                continue
            properties = _properties(headers.get("properties", {}) if isinstance(headers, dict) else {})
            stored = StoredMessage(topic, bytes(payload), qos, True, properties, expires_at / 1000, _text(publisher))
            self.into.retained.append(stored)
        self.into.count("retained messages", len(self.into.retained))
        self.into.persistent = True


def _properties(given: dict[Any, Any]) -> bytes:
    names = {rule.name.replace(" ", "-"): number for number, rule in RULES.items()}
    found: Properties = {}
    for name, value in given.items():
        number = names.get(str(name), 0)
        if name == "User-Property":
            found[number] = [(_text(key), _text(text)) for key, text in value]
        elif name in ("Content-Type", "Response-Topic"):
            found[number] = _text(value)
        elif name in ("Correlation-Data", "Payload-Format-Indicator"):
            found[number] = value
    return encode_property_bytes(found)


def _accepted(hashing: Map, hash_: str, salt: str) -> str:
    """The hash in the form of ``auth.password.file``; "" if that has none."""
    kind = _plain(hashing, "name", "sha256")
    if BCRYPT_HASH.fullmatch(hash_):
        return hash_
    if kind == "plain" and hash_:
        return HASHER.hash(hash_)
    if kind == "pbkdf2" and _plain(hashing, "mac_fun", "") == "sha512":
        try:
            digest = b64encode(bytes.fromhex(hash_)).decode()
        except ValueError:
            return ""
        found = f"$7${_plain(hashing, 'iterations', 0)}${b64encode(salt.encode()).decode()}${digest}"
        return found if PBKDF2_HASH.fullmatch(found) else ""
    return ""


def _row(row: dict[str, Any], name: str) -> tuple[str, str, str, bool, str]:
    superuser = str(row.get("is_superuser", "")).lower() == "true"
    return str(row["user_id"]), str(row.get("password_hash", "")), str(row.get("salt", "")), superuser, name


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _section(found: Placed | None) -> Map:
    return found.value if found is not None and isinstance(found.value, dict) else {}


def _plain(section: Map, key: str, default: Any) -> Any:
    value = section[key].value if key in section else default
    return plain_value(value) if isinstance(value, str) else value


def _enabled(value: Any) -> bool:
    return not isinstance(value, dict) or bool(_plain(value, "enable", True))


def _expanded(found: Map) -> Map:
    """With a map for each level of a key such as ``listeners.tcp.default``."""
    whole: Map = {}
    for key, each in found.items():
        value = _expanded(each.value) if isinstance(each.value, dict) else each.value
        below, *levels = key.split(".")[::-1]
        for level in [below, *levels][:-1]:
            value = {level: Placed(value, each.where)}
        first = key.split(".")[0]
        known = whole.get(first)
        if known is not None and isinstance(known.value, dict) and isinstance(value, dict):
            value = _merged(known.value, value)
        whole[first] = Placed(value, each.where)
    return whole


def _merged(first: Map, second: Map) -> Map:
    both = dict(first)
    for key, found in second.items():
        known = both.get(key)
        if known is not None and isinstance(known.value, dict) and isinstance(found.value, dict):
            found = Placed(_merged(known.value, found.value), found.where)
        both[key] = found
    return both


def _no_include(path: Path) -> str:
    raise MigrationError(f"{path}: an included file is not read: give the file that emqx ctl data export writes")
