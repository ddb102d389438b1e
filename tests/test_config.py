"""Settings: where they come from, how they are spelt, and the one line that a wrong one gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starlingmq.cli.config_cmd import lines
from starlingmq.config.cluster_section import cluster_secret
from starlingmq.config.section_types import format_duration, format_size, parse_duration, parse_seconds, parse_size
from starlingmq.config.settings import Config, ConfigError, load_config, refuse_open_listeners
from starlingmq.config.tree_builder import settings, yaml_value
from starlingmq.config.yaml_text import parse_yaml


def written(directory: Path, text: str) -> Path:
    path = directory / "broker.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_are_those_of_the_tree() -> None:
    config = load_config(None)
    assert config == Config()
    assert [listener.url for listener in config.listeners] == ["mqtt://127.0.0.1:1883"]
    assert (config.mqtt.retry_interval, config.mqtt.max_mqueue_len, config.mqtt.await_rel_timeout) == (
        30.0,
        1000,
        300.0,
    )
    assert config.mqtt.session_expiry_v3 == 7 * 24 * 3600


def test_every_key_has_a_sentence_of_help() -> None:
    for setting in settings(Config):
        assert setting.help.endswith("."), setting.path
        assert setting.help[0].isupper() or setting.help.startswith("$"), setting.path


def test_later_sources_win(tmp_path: Path) -> None:
    path = written(tmp_path, "mqtt: {retry_interval: 1s, max_qos: 1, max_inflight: 7}\n")
    env = {"STARLINGMQ_MQTT__RETRY_INTERVAL": "2s", "STARLINGMQ_MQTT__MAX_QOS": "0", "PATH": "/bin"}
    config = load_config(path, ["mqtt.retry_interval=500ms"], env)
    assert (config.mqtt.retry_interval, config.mqtt.max_qos, config.mqtt.max_inflight) == (0.5, 0, 7)


def test_only_variables_that_can_be_settings_are_read() -> None:
    env = {
        "STARLINGMQ_PURE": "1",
        "STARLINGMQ_PORT_1883_TCP": "tcp://10.0.0.1:1883",
        "STARLINGMQ_LISTENERS": "ws://[::1]:0",
    }
    assert load_config(None, env=env).listeners[0].url == "ws://[::1]:0"


def test_listeners_are_urls_or_sections(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "listeners:\n- mqtt://127.0.0.1:0\n- {url: 'mqtts://[::1]:0', tls: {cert: a.pem, require_client_cert: true}}\n",
    )
    plain, secure = load_config(path).listeners
    assert plain.url == "mqtt://127.0.0.1:0" and plain.tls is None
    assert secure.tls is not None and secure.tls.require_client_cert


def test_empty_file_and_empty_sections_are_defaults(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "")) == Config()
    assert load_config(written(tmp_path, "mqtt:\nlisteners:\n")) == Config()


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("mqtt.retry_intervl=5s", "mqtt.retry_intervl: unknown key; the nearest is mqtt.retry_interval"),
        ("retry_interval=5s", "retry_interval: unknown key; the nearest is mqtt.retry_interval"),
        ("mqqt.max_qos=1", "mqqt: unknown key; the nearest is mqtt"),
        ("listeners=[{url: ws://x, tsl: {}}]", "listeners[0].tsl: unknown key; the nearest is listeners[0].tls"),
        ("cluster.owners=etcd", "cluster.owners: no longer a setting, because the owners of client ids"),
        ("cluster.nodes=3", "cluster.nodes: unknown key; the nearest is"),
        ("cluster.etcd.endpoints=['http://x:1']", "cluster.etcd.endpoints[0]: 'http://x:1' is not host:port"),
        ("cluster.etcd.initial_members=['a:1']", "cluster.etcd.initial_members[0]: 'a:1' is not node name=host:port"),
        ("cluster.etcd.initial_members=['a=b:1']", "cluster.etcd.initial_members: this node, starling@"),
        ("mqtt.max_qos=3", "mqtt.max_qos: expected int <= 2"),
        ("mqtt.max_qos=two", "mqtt.max_qos: expected int, got str"),
        ("mqtt.retry_interval=-1", "mqtt.retry_interval: expected float >= 0"),
        ("mqtt.retry_interval=.inf", "mqtt.retry_interval: expected float <= "),
        ("mqtt.retry_interval=5 fortnights", "mqtt.retry_interval: 'fortnights' is not a unit of time"),
        ("mqtt.session_expiry_v3=100ms", "mqtt.session_expiry_v3: '100ms' is not a whole number of seconds"),
        ("limits.write_buffer=1 pint", "limits.write_buffer: 'pint' is not a unit of size"),
        ("limits.write_buffer=lots", "limits.write_buffer: expected a size such as"),
        ("limits=5", "limits: expected a section, got int"),
        ("mqtt.max_qos.deep=1", "mqtt.max_qos: expected int, got a section"),
        ("log.level=loud", "log.level: 'loud' is not one of "),
        ("storage.journal=rocksdb", "storage.journal: rocksdb needs a data directory; set node.data_dir"),
        ("storage.durability=disk", "storage.durability: 'disk' is not one of "),
        (
            "listeners=tcp://127.0.0.1:1",
            "listeners[0].url: 'tcp://127.0.0.1:1' is not a listener URL, such as mqtt://127.0.0.1:1883; it",
        ),
        (
            "listeners=[mqtts://127.0.0.1:1]",
            "listeners[0]: mqtts://127.0.0.1:1 needs a tls section with at least cert",
        ),
        ("cluster.name=a/b", "cluster.name: expected str matching regex"),
        ("cluster.listen=localhost", "cluster.listen: 'localhost' is not host:port"),
        ("cluster.listen='::1:7883'", "cluster.listen: '::1:7883' is not host:port (an IPv6 address needs brackets)"),
        ("cluster.listen=localhost:65536", "cluster.listen: 'localhost:65536' is not host:port"),
        (
            "cluster.advertise='0.0.0.0:7883'",
            "cluster.advertise: 0.0.0.0:7883 is not an address other nodes can connect to",
        ),
        (
            "listeners=[{url: 'mqtt://:1883', advertise: 'a:0'}]",
            "listeners[0].advertise: a:0 is not an address other nodes can connect to",
        ),
        ("cluster.advertise='[::1]:0'", "cluster.advertise: [::1]:0 is not an address other nodes can connect to"),
        (
            "cluster={enabled: yes, listen: ':7883'}",
            "cluster.advertise: :7883 is not an address other nodes can connect to; set cluster.advertise",
        ),
        ("cluster.copies=6", "cluster.copies: expected int <= 5"),
        ("cluster.copies=0", "cluster.copies: expected int >= 1"),
        ("cluster.min_copies=2", "cluster.min_copies: 2 is more than cluster.copies, 1; lower it or raise"),
        ("cluster={enabled: yes, copies: 2}", "cluster.copies: more than 1 requires node.data_dir"),
        (
            "cluster={copies: 2, copy_timeout: 1s}",
            "cluster.copy_timeout: must not be shorter than cluster.member_timeout",
        ),
        ("node.zone='a/b'", "node.zone: expected str matching regex"),
        ("cluster.member_timeout=500ms", "cluster.member_timeout: must be longer than cluster.heartbeat_interval"),
        ("cluster.secret=short", "cluster.secret: 5 bytes are too few for a secret; use 16 or more"),
        ("cluster={secret: 0123456789abcdef, secret_file: a}", "cluster.secret_file: cluster.secret is set as well"),
        (
            "listeners=[{url: 'mqtts://x:1', tls: {cert: a, use_identity_as_username: true, "
            "use_subject_as_username: true}}]",
            "listeners[0].tls: use_identity_as_username and use_subject_as_username are both set",
        ),
        ("cluster.tls.cert=a.pem", "cluster.tls: cert, key and ca are all required"),
        ("nats.nkeys=[UABC]", "nats.nkeys[0]: 'UABC' is not a public NKey of a user"),
        ("listeners=[5]", "listeners[0]: expected a section, got int"),
        ("mqtt={", "mqtt:1:2: "),
        ("mqtt", "--set mqtt: expected key.path=value"),
    ],
)
def test_a_wrong_setting_gets_one_line_that_names_it(override: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override])
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("copies", "min_copies", "required"), [(1, 0, 1), (2, 0, 1), (3, 0, 2), (3, 3, 3), (5, 1, 1)])
def test_one_copy_less_than_wanted_is_required_unless_set(copies: int, min_copies: int, required: int) -> None:
    config = load_config(None, [f"cluster={{copies: {copies}, min_copies: {min_copies}}}"])
    assert config.cluster.copies_required == required


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- a\n", "expected sections such as 'mqtt:' at the top level, got a list"),
        ("mqtt:\n  max_qos: 1\n  max_qos: 2\n", ":3:3: duplicate key 'max_qos'"),
        ("mqtt: [\n", ":2:1: "),
        ("mqtt: !!python/object:os.system {}\n", "could not determine a constructor"),
        ("\0", "is not valid YAML"),
        (
            "listener 1883 0.0.0.0\nuser mosquitto\n",
            "this looks like a mosquitto.conf; starlingmq migrate mosquitto reads",
        ),
        ("# edge: see below\nconnection hub\naddress a:1883\ntopic # out 1\n", "this looks like a mosquitto.conf"),
        ("pipeline: {sql: [\n  user STRING\n", ":3:1: "),
        (
            "user ann\ntopic readwrite home/#\n\npattern write s/%c/#\n",
            "looks like a rules file (acl_file) of mosquitto",
        ),
    ],
)
def test_a_broken_file_gets_one_line_that_names_it(tmp_path: Path, text: str, complaint: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(str(path))
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "latin1.yaml").write_bytes(b"node: {name: caf\xe9}")
    with pytest.raises(ConfigError, match="it is not UTF-8 text"):
        load_config(tmp_path / "latin1.yaml")


@pytest.mark.parametrize(
    ("url", "open_to_all"),
    [
        ("mqtt://127.0.0.1:1883", False),
        ("mqtt://127.9.9.9:1883", False),
        ("mqtt://[::1]:1883", False),
        ("ws://localhost:8080/mqtt", False),
        ("unix:///run/broker.sock", False),
        ("mqtt://0.0.0.0:1883", True),
        ("mqtt://:1883", True),
        ("mqtt://[::]:1883", True),
        ("mqtt://192.0.2.1:1883", True),
        ("mqtt://broker.example:1883", True),
        ("nats://0.0.0.0:4222", True),
    ],
)
def test_nobody_opens_a_broker_to_the_network_by_accident(url: str, open_to_all: bool) -> None:
    config = load_config(None, [f"listeners=['{url}']"])
    if not open_to_all:
        refuse_open_listeners(config, authenticated=False)
        return
    with pytest.raises(ConfigError, match=r"set auth\.allow_anonymous: true if this is intended"):
        refuse_open_listeners(config, authenticated=False)
    refuse_open_listeners(config, authenticated=True)
    for decided in ("true", "false"):
        decision = f"auth.allow_anonymous={decided}"
        refuse_open_listeners(load_config(None, [f"listeners=['{url}']", decision]), authenticated=False)


def test_client_certificates_count_as_authentication() -> None:
    tls = "tls: {cert: a, ca: b, require_client_cert: true}"
    config = load_config(None, [f"listeners=[{{url: 'mqtts://0.0.0.0:8883', {tls}}}]"])
    refuse_open_listeners(config, authenticated=False)


def test_a_node_is_among_the_members_that_begin_together_with_the_address_that_its_etcd_has() -> None:
    members = "cluster.etcd.initial_members=['b=192.0.2.1:2380', 'n=127.0.0.1:2380']"
    assert load_config(None, ["node.name=n", members]).cluster.etcd.peer_port == 2380
    with pytest.raises(ConfigError, match=r"lists this node with 192\.0\.2\.1:2380"):
        load_config(None, ["node.name=b", members])


SECURE = "tls: {cert: a, key: b, ca: c}, secret: 0123456789abcdef"


@pytest.mark.parametrize(
    ("settings", "lacking"),
    [
        ("listen: '127.0.0.1:7883'", ""),
        ("listen: '[::1]:7883'", ""),
        ("listen: 'localhost:7883'", ""),
        ("listen: '192.0.2.1:7883'", "set cluster.tls and cluster.secret or cluster.secret_file, or"),
        ("listen: 'node-1.example:7883', secret_file: a", "set cluster.tls, or"),
        ("listen: '0.0.0.0:0', advertise: 'a:1', tls: {cert: a, key: b, ca: c}", "set cluster.secret or"),
        ("listen: '192.0.2.1:7883', allow_insecure: true", ""),
        ("listen: '192.0.2.1:7883', " + SECURE, ""),
        ("etcd: {host: 192.0.2.1}", "set cluster.etcd.tls or cluster.tls"),
        ("etcd: {host: 192.0.2.1}, " + SECURE, "any certificate of the CA"),
        ("etcd: {host: 192.0.2.1, allowed_name: '*'}, " + SECURE, ""),
        ("etcd: {host: 192.0.2.1, allowed_name: node.example.com}, " + SECURE, ""),
        ("etcd: {host: 192.0.2.1, tls: {cert: a, key: b, ca: c}}", "any certificate of the CA"),
        ("etcd: {host: 192.0.2.1, tls: {cert: a, key: b, ca: c}, allowed_name: '*'}", ""),
        ("etcd: {endpoints: ['192.0.2.1:2379']}", ""),
    ],
)
def test_nobody_opens_the_inside_of_a_cluster_by_accident(settings: str, lacking: str) -> None:
    config = load_config(None, [f"cluster={{enabled: true, {settings}}}"])
    if not lacking:
        refuse_open_listeners(config, authenticated=False)
        return
    with pytest.raises(ConfigError, match=lacking):
        refuse_open_listeners(config, authenticated=True)
    refuse_open_listeners(load_config(None, [f"cluster={{enabled: false, {settings}}}"]), authenticated=False)


def test_a_member_has_a_name_that_can_be_a_key() -> None:
    with pytest.raises(ConfigError, match=r"node.name: 'a/b' contains a slash"):
        load_config(None, ["node.name=a/b", "cluster.enabled=true"])
    load_config(None, ["node.name=a/b"])


def test_names_end_where_they_end_and_forge_no_lines() -> None:
    for setting in (
        'node.name="a\\nb"',
        'node.name="a\\n"',
        f"node.name={'a' * 256}",
        f"cluster.name={'a' * 129}",
        'cluster.name="a\\n"',
        'cluster.etcd.allowed_name="a\\n"',
        'streams.define=[{name: "a\\n", topics: [a]}]',
        'streams.define=[{name: "a b", topics: [a]}]',
    ):
        with pytest.raises(ConfigError, match=r"name"):
            load_config(None, [setting, "node.data_dir=data"])


def test_the_settings_that_the_cluster_page_shows_are_settings(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "CLUSTER.md").read_text(encoding="utf-8")
    config = load_config(written(tmp_path, page.partition("```yaml\n")[2].partition("```")[0]))
    assert config.cluster.enabled and len(config.cluster.etcd.initial_members) == 3
    refuse_open_listeners(config, False)


def test_a_secret_is_read_from_its_file(tmp_path: Path) -> None:
    def secret(path: Path) -> bytes:
        return cluster_secret(load_config(None, [f"cluster.secret_file={path}"]).cluster)

    path = tmp_path / "secret"
    path.write_bytes(b"  0123456789abcdef\n")
    assert secret(path) == b"0123456789abcdef"
    assert cluster_secret(Config().cluster) == b""
    path.write_bytes(b"short\n")
    with pytest.raises(ConfigError, match=r"cluster\.secret_file: .*: 5 bytes are too few"):
        secret(path)
    with pytest.raises(ConfigError, match=r"cluster\.secret_file: .*none cannot be read: No such file"):
        secret(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30.0), ("5m", 300.0), ("1.5h", 5400.0), ("7d", 604800.0), ("12", 12.0)],
)
def test_spellings_of_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("512", 512), ("64KiB", 65536), ("1MiB", 1 << 20), ("2gib", 2 << 30), ("1 MB", 10**6), ("10B", 10)],
)
def test_spellings_of_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@given(st.one_of(st.integers(0, 10**9), st.floats(0, 10**6)))
def test_durations_are_printed_as_they_are_read(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(0, 10**12))
def test_sizes_and_whole_seconds_are_printed_as_they_are_read(number: int) -> None:
    assert parse_size(format_size(number)) == number
    assert parse_seconds(format_duration(number)) == number


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["listeners=[]"],
        ["listeners=['mqtt://127.0.0.1:0', {url: 'mqtts://[::1]:0', tls: {cert: 'é: #.pem'}, max_connections: 9}]"],
        [
            "node.name='yes'",
            "node.data_dir=2024",
            "mqtt.retry_interval=0.1",
            "limits.max_packet_size=65535",
            "auth.allow_anonymous=no",
            "cluster={enabled: yes, tls: {cert: a, key: b, ca: c}, secret: '0123456789 # yes'}",
        ],
        [
            "cluster.etcd.endpoints=['10.0.0.1:2379', '[::1]:2379']",
            "cluster.etcd.tls={ca: a.pem, cert: b.pem, key: c.pem}",
        ],
    ],
)
def test_the_output_of_config_show_loads_to_the_same_settings(tmp_path: Path, overrides: list[str]) -> None:
    overrides = [text.replace("data_dir=2024", "data_dir='2024'") for text in overrides]
    config = load_config(None, overrides)
    assert load_config(written(tmp_path, "\n".join(lines(config)))) == config


ALIKE = (
    *("0", "17", "-3", "010", "1_000", "1e5", "1.5", "0x1f", "true", "yes", "null", "~", "", "word", '"1"', '"a: b"'),
    *("[]", '["a", "b"]', "[1, 2]", "['a']", "{}", '{"a": "b"}', '"é"', " 7", "7 ", "99999999999999999999999"),
)


@pytest.mark.parametrize("text", ALIKE)
def test_a_text_has_the_value_that_yaml_gives_it_whether_or_not_yaml_is_loaded(text: str) -> None:
    assert repr(yaml_value(text, "source")) == repr(parse_yaml(text, "source"))
