"""Every option of mosquitto.conf has an outcome: a setting, or a line with its file and number that says what to do."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from starlingmq.config.settings import Config, from_tree
from starlingmq.config.tree_builder import read_yaml, settings
from starlingmq.migrate.described import Description
from starlingmq.migrate.mosquitto_conf import read_mosquitto
from starlingmq.migrate.mosquitto_options import (
    HARMLESS,
    NO_EQUIVALENT,
    NOT_NEEDED,
    OF_BRIDGES,
    OF_LISTENERS,
    READ,
    SETTINGS,
    known,
)
from starlingmq.migrate.written_settings import settings_tree
from tests.cli.commands import run

OF_THE_MANUAL = """
    accept_protocol_versions acl_file address addresses allow_anonymous allow_duplicate_messages
    allow_zero_length_clientid auth_plugin auth_plugin_deny_special_chars auto_id_prefix autosave_interval
    autosave_on_changes bind_address bind_interface bridge_alpn bridge_attempt_unsubscribe bridge_bind_address
    bridge_cafile bridge_capath bridge_certfile bridge_ciphers bridge_identity bridge_insecure bridge_keyfile
    bridge_max_packet_size bridge_max_topic_alias bridge_outgoing_retain bridge_protocol_version bridge_psk
    bridge_receive_maximum bridge_reload_type bridge_require_ocsp bridge_session_expiry_interval
    bridge_tcp_keepalive bridge_tcp_user_timeout bridge_tls_use_os_certs bridge_tls_version cafile capath
    certfile check_retain_source ciphers ciphers_tls1.3 cleansession clientid_prefixes connection
    connection_messages crlfile dhparamfile disable_client_cert_date_checks enable_control_api
    enable_proxy_protocol global_max_clients global_max_connections global_plugin http_dir idle_timeout
    include_dir keepalive_interval keyfile listener listener_allow_anonymous listener_auto_id_prefix
    local_cleansession local_clientid local_password local_username log_dest log_facility log_timestamp
    log_timestamp_format log_type max_connections max_inflight_bytes max_inflight_messages max_keepalive
    max_packet_size max_qos max_queued_bytes max_queued_messages max_topic_alias max_topic_alias_broker
    memory_limit message_size_limit mount_point notification_topic notifications notifications_local_only
    packet_buffer_size password_file per_listener_settings persistence persistence_file persistence_location
    persistent_client_expiration pid_file plugin plugin_load plugin_opt_x plugin_use auth_opt_x port protocol
    proxy_protocol_v2_require_tls psk_file psk_hint queue_qos0_messages remote_clientid remote_password
    remote_username require_certificate restart_timeout retain_available retain_expiry_interval retry_interval
    round_robin set_tcp_nodelay socket_domain start_type store_clean_interval sys_interval threshold tls_engine
    tls_engine_kpass_sha1 tls_keyform tls_version topic try_private upgrade_outgoing_qos
    use_identity_as_username use_subject_as_username use_username_as_clientid user websockets_headers_size
    websockets_log_level websockets_origin
"""
"""Names of options in mosquitto.conf(5) of 2.0.11 and 2.1.2."""


def read(tmp_path: Path, text: str) -> Description:
    path = tmp_path / "mosquitto.conf"
    path.write_text(text, encoding="utf-8")
    return read_mosquitto([path], 0.0)


def tree_of(tmp_path: Path, text: str, ipv6: bool = False) -> dict[str, Any]:
    tree = settings_tree(read(tmp_path, text), tmp_path, ipv6)
    from_tree(tree)
    return tree


def test_every_option_of_the_manual_is_known() -> None:
    assert [name for name in OF_THE_MANUAL.split() if not known(name)] == []
    tables = [*SETTINGS, *READ, *OF_BRIDGES, *NOT_NEEDED, *NO_EQUIVALENT]
    assert len(tables) == len(set(tables)), "an option has one outcome"
    assert [name for name in (*OF_LISTENERS, *HARMLESS) if not known(name)] == []


def test_every_setting_of_the_table_exists() -> None:
    ours = {setting.path for setting in settings(Config)}
    assert [path for path, _ in SETTINGS.values() if path not in ours] == []
    named = {word for text in READ.values() for word in text.split(", ") if "." in word and "[" not in word}
    assert named - ours == set()


@pytest.mark.parametrize("option", sorted(NO_EQUIVALENT))
def test_an_option_without_equivalent_is_named_with_its_place_and_the_remedy(option: str, tmp_path: Path) -> None:
    found = read(tmp_path, f"\n{option} 7\n")
    (line,) = found.attention
    assert (line.where, line.remedy) == (f"{tmp_path}/mosquitto.conf:2", NO_EQUIVALENT[option])
    assert line.option.split()[0] == option
    for harmless in HARMLESS.get(option, ()):
        assert read(tmp_path, f"{option} {harmless}\n").attention == []


def test_options_that_are_not_needed_or_unknown_are_named(tmp_path: Path) -> None:
    for option in NOT_NEEDED:
        found = read(tmp_path, f"{option} 1\n")
        assert [line.option for line in found.not_needed] == [option] and found.attention == []
    assert [line.option for line in read(tmp_path, "no_such_option 1\n").attention] == ["no_such_option"]


@pytest.mark.parametrize(
    ("lines", "path", "value"),
    [
        ("allow_zero_length_clientid false", "mqtt.empty_client_id", False),
        ("global_max_clients 7", "limits.sessions", 7),
        ("global_max_connections -1", "limits.max_connections", 0),
        ("max_inflight_messages 7", "mqtt.max_inflight", 7),
        ("max_keepalive 70", "mqtt.max_keep_alive", 70),
        ("max_packet_size 700", "limits.max_packet_size", 700),
        ("max_packet_size 0", "limits.max_packet_size", 268_435_455),
        ("", "limits.max_packet_size", 268_435_455),
        ("max_queued_bytes 0", "limits.queue_bytes", 0),
        ("max_queued_messages 5000", "mqtt.max_mqueue_len", 5000),
        ("memory_limit 70000", "limits.memory", 70000),
        ("queue_qos0_messages true", "mqtt.mqueue_store_qos0", True),
        ("", "mqtt.mqueue_store_qos0", False),
        ("retain_available false", "mqtt.retain_available", False),
        ("sys_interval 0", "mqtt.sys_interval", 0),
        ("persistent_client_expiration 2d", "mqtt.session_expiry_v3", 172_800),
        ("persistent_client_expiration 2d", "mqtt.max_session_expiry", 172_800),
        ("", "mqtt.session_expiry_v3", 0xFFFFFFFF),
        ("connection_messages false", "log.connections", False),
        ("listener 1\nmax_qos 1\nlistener 2\nmax_qos 1", "mqtt.max_qos", 1),
        ("listener 1\nmax_topic_alias 3", "mqtt.topic_alias_max", 3),
        ("", "auth.allow_anonymous", True),
        ("listener 1", "auth.allow_anonymous", False),
        ("listener 1\nallow_anonymous true", "auth.allow_anonymous", True),
    ],
)
def test_an_option_becomes_a_setting(lines: str, path: str, value: object, tmp_path: Path) -> None:
    tree: Any = tree_of(tmp_path, lines)
    for key in path.split("."):
        tree = tree[key]
    assert tree == value


@pytest.mark.parametrize(
    ("lines", "listeners"),
    [
        ("", ["mqtt://127.0.0.1:1883", "mqtt://[::1]:1883"]),
        ("listener 1884", ["mqtt://0.0.0.0:1884", "mqtt://[::]:1884"]),
        ("listener 1884\nsocket_domain ipv4", ["mqtt://0.0.0.0:1884"]),
        ("listener 1884\nsocket_domain ipv6", ["mqtt://[::]:1884"]),
        ("listener 1884 10.1.1.1", ["mqtt://10.1.1.1:1884"]),
        ("listener 1884 fe80::1", ["mqtt://[fe80::1]:1884"]),
        ("port 1885\nbind_address localhost", ["mqtt://localhost:1885"]),
        ("bind_address 127.0.0.1\nlistener 1884 127.0.0.1", ["mqtt://127.0.0.1:1883", "mqtt://127.0.0.1:1884"]),
        ("listener 0 /run/m.sock", ["unix:///run/m.sock"]),
        (
            "listener 9001 127.0.0.1\nprotocol websockets\nwebsockets_origin https://a",
            [{"url": "ws://127.0.0.1:9001/*", "subprotocol": "optional", "origins": ["https://a"]}],
        ),
        ("listener 1884 127.0.0.1\nmax_connections 7", [{"url": "mqtt://127.0.0.1:1884", "max_connections": 7}]),
        ("listener 1884 127.0.0.1\nmax_connections -1", ["mqtt://127.0.0.1:1884"]),
        (
            "listener 8883 127.0.0.1\ncafile /ca\ncertfile /c\nkeyfile /k\ncrlfile /r\nrequire_certificate true\n"
            "tls_version tlsv1.3\nuse_identity_as_username true",
            [
                {
                    "url": "mqtts://127.0.0.1:8883",
                    "tls": {
                        "ca": "/ca",
                        "cert": "/c",
                        "key": "/k",
                        "crl": ["/r"],
                        "require_client_cert": True,
                        "use_identity_as_username": True,
                        "min_version": "1.3",
                    },
                }
            ],
        ),
    ],
)
def test_listeners_have_the_same_addresses(lines: str, listeners: list[object], tmp_path: Path) -> None:
    tree = tree_of(tmp_path, lines, ipv6=True)
    assert tree["listeners"] == listeners
    assert ("use_identity" in lines) == (tree["auth"].get("methods") == ["certificate"])


def test_included_files_are_read_in_order_with_their_own_line_numbers(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/b.conf").write_text("max_queued_messages 2\nmount_point x/\n", encoding="utf-8")
    (tmp_path / "conf.d/a.conf").write_text("max_queued_messages 1\n", encoding="utf-8")
    (tmp_path / "conf.d/ignored").write_text("no_such_option 1\n", encoding="utf-8")
    found = read(tmp_path, "listener 1884\ninclude_dir conf.d\nmax_inflight_messages 3\n")
    assert found.settings["mqtt.max_mqueue_len"] == 2 and found.settings["mqtt.max_inflight"] == 3
    assert [line.where for line in found.attention] == [f"{tmp_path}/conf.d/b.conf:2"]


BRIDGE = """\
connection hub
addresses a.example:1884 b.example
topic sensors/# out 1 local/ remote/
topic "with space/#" in 2 "" there/
topic plain
topic # both 0
remote_clientid site
remote_username ann
remote_password top-secret
bridge_protocol_version mqttv50
start_type lazy
bridge_cafile /ca.pem
bridge_insecure true
bridge_alpn mqtt
keepalive_interval 17
bridge_receive_maximum 9
bridge_outgoing_retain false
try_private true
round_robin true
notifications false
connection second
address c.example:99
topic "" out 0 here there
topic x in 1
topic $SYS/# in 1
bridge_capath /certs
notifications_local_only true
remote_clientid two
"""
BRIDGES = [
    {
        "name": "hub",
        "servers": ["mqtts://a.example:1884", "mqtts://b.example:8883"],
        "topics": [
            {"filter": "sensors/#", "direction": "out", "qos": 1, "local_prefix": "local/", "remote_prefix": "remote/"},
            {"filter": "with space/#", "direction": "in", "qos": 2, "remote_prefix": "there/"},
            {"filter": "plain", "direction": "out", "qos": 0},
            {"filter": "#", "direction": "both", "qos": 0},
        ],
        "version": "5.0",
        "notifications": "off",
        "start": "lazy",
        "keep_alive": 17,
        "max_inflight": 9,
        "retain": False,
        "client_id": "site",
        "credentials": {"username": "ann", "password_file": "{out}/bridge-hub.password"},
        "tls": {"ca": "/ca.pem", "insecure": True, "alpn": ["mqtt"]},
    },
    {
        "name": "second",
        "servers": ["mqtts://c.example:99"],
        "topics": [
            {"filter": "", "direction": "out", "qos": 0, "local_prefix": "here", "remote_prefix": "there"},
            {"filter": "x", "direction": "in", "qos": 1},
        ],
        "version": "3.1.1",
        "notifications": "local",
        "client_id": "two",
    },
]


def test_bridges_become_entries_and_their_secrets_private_files(tmp_path: Path) -> None:
    settings, out = tmp_path / "mosquitto.conf", tmp_path / "out"
    settings.write_text(BRIDGE, encoding="utf-8")
    code, output, errors = run("migrate", "mosquitto", str(settings), "--out", str(out))
    assert code == 3 and b"top-secret" not in output and "top-secret" not in errors
    assert b"mosquitto.conf:25: topic $SYS/# in 1" in output
    found = read_yaml(out / "starlingmq.yaml")["bridges"]
    assert found == json.loads(json.dumps(BRIDGES).replace("{out}", str(out)))
    secret = out / "bridge-hub.password"
    assert secret.read_text(encoding="utf-8") == "top-secret\n"
    assert {stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()} == {0o600}


def test_the_command_writes_nothing_when_asked_and_refuses_a_directory_with_files(tmp_path: Path) -> None:
    settings, out = tmp_path / "mosquitto.conf", tmp_path / "out"
    settings.write_text("listener 1884 127.0.0.1\nmessage_size_limit 100\n", encoding="utf-8")
    code, output, _ = run("migrate", "mosquitto", str(settings), "--out", str(out), "--dry-run")
    assert (code, out.exists()) == (3, False)
    assert f"{settings}:2: message_size_limit 100: ".encode() in output
    out.mkdir()
    (out / "mine").touch()
    code, _, errors = run("migrate", "mosquitto", str(settings), "--out", str(out))
    assert code == 2 and errors == f"error: {out}: is not an empty directory; give another one with --out\n"
    code, _, errors = run("migrate", "mosquitto", str(tmp_path / "none"), "--out", str(tmp_path / "new"))
    assert code == 2 and "none: cannot be read: " in errors


def test_what_is_written_starts_a_broker_or_the_report_says_what_is_missing(tmp_path: Path) -> None:
    settings, out = tmp_path / "mosquitto.conf", tmp_path / "out"
    settings.write_text("listener 8883 127.0.0.1\ncertfile /no/cert\nkeyfile /no/key\n", encoding="utf-8")
    code, output, _ = run("migrate", "mosquitto", str(settings), "--out", str(out), "--json")
    (line,) = json.loads(output)["attention"]
    assert code == 3 and "/no/" in line["remedy"] and line["option"] == "settings"


def test_rules_of_a_listener_with_certificates_are_for_the_users_that_they_name(tmp_path: Path) -> None:
    (tmp_path / "acl").write_text("user device\ntopic read a\npattern write p/%u\n", encoding="utf-8")
    (tmp_path / "acl2").write_text("topic read open\n", encoding="utf-8")
    tls = "certfile /c\nuse_identity_as_username true\nrequire_certificate true"
    first = f"listener 8883\n{tls}\nacl_file {tmp_path}/acl\n"
    found = read(
        tmp_path, f"per_listener_settings true\n{first}listener 1883\nallow_anonymous true\nacl_file {tmp_path}/acl2\n"
    )
    assert found.rules == [
        {"allow": ["subscribe", "group"], "users": ["device"], "topics": ["a"]},
        {"allow": ["publish"], "users": ["device"], "topics": ["p/%u"]},
        {"allow": ["subscribe", "group"], "users": [""], "topics": ["open"]},
    ]
    assert [line.option for line in found.attention] == ["per_listener_settings true", "allow_anonymous"]
