"""No secret of the settings is shown: a canary in each one that is marked, and a look at all that shows settings."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from msgspec import inspect, structs, to_builtins

from starlingmq.cli.config_cmd import lines
from starlingmq.cli.workers import _child, _settings
from starlingmq.config import secret_masking
from starlingmq.config.secret_masking import masked, without_login
from starlingmq.config.section_types import Section
from starlingmq.config.settings import Config, ConfigError, exposed_secrets, load_config, refuse_open_listeners
from starlingmq.config.tree_builder import build
from starlingmq.net.listeners.urls import ListenerError, parse_listener
from tests.api.conftest import BEARER, TOKEN, Ask, Serve, ask, join, serve, token_file
from tests.api.conftest import _serve as _serve
from tests.cli.commands import run

__all__ = ["ask", "join", "serve", "token_file"]

CANARY: Final = "canary-7c1e-0123456789abcdef"
SMELL: Final = re.compile(r"password|passphrase|secret|token|credential|key|header|login|cookie")
HARMLESS: Final = {
    "listeners[].tls.key": "the path of a file",
    "cluster.tls.key": "the path of a file",
    "cluster.etcd.tls.key": "the path of a file",
    "bridges[].tls.key": "the path of a file",
    "links[].tls.key": "the path of a file",
    "nats.nkeys[]": "public keys",
    "rules[].sink.key[]": "names of columns",
}


def texts(kind: inspect.Type, path: str = "", mark: str = "") -> Iterator[tuple[str, str]]:
    """Each setting that can hold text, as path and mark; a path has [] for the items of a list."""
    if isinstance(kind, inspect.Metadata):
        yield from texts(kind.type, path, (kind.extra or {}).get("secret", mark))
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from texts(one, path, mark)
    elif isinstance(kind, inspect.VarTupleType | inspect.ListType):
        yield from texts(kind.item_type, f"{path}[]", mark)
    elif isinstance(kind, inspect.DictType):
        yield from texts(kind.value_type, f"{path}[]", mark)
    elif isinstance(kind, inspect.StructType):
        for field in kind.fields:
            yield from texts(field.type, f"{path}.{field.name}" if path else field.name)
    elif isinstance(kind, inspect.StrType | inspect.AnyType | inspect.BytesType):
        yield path, mark


TEXTS: Final = dict(texts(inspect.type_info(Config)))
MARKED: Final = {path: mark for path, mark in TEXTS.items() if mark}
URL: Final = f"http://user-{CANARY}:password-{CANARY}@127.0.0.1:1/path?query={CANARY}#fragment-{CANARY}"
BRIDGE: Final = {"name": "b", "servers": ["mqtt://127.0.0.1"], "topics": [{"filter": "a/#"}]}
RULE: Final = {"name": "r", "source": {"topics": ["a/#"]}, "sink": {"format": "http", "url": "http://127.0.0.1"}}
NEEDED: Final[dict[str, Any]] = {
    "listeners[].tls": {"cert": "cert.pem"},
    "listeners[]": {"url": "mqtts://127.0.0.1:0"},
    "bridges[]": BRIDGE,
    "links[]": BRIDGE,
    "rules[]": RULE,
}


def tree_with(path: str, value: Any, tree: dict[str, Any] | None = None) -> dict[str, Any]:
    """A tree of settings that has this value at a path."""
    root: dict[str, Any] = {} if tree is None else tree
    here, sofar = root, ""
    *parts, last = path.split(".")
    for part in parts:
        sofar = f"{sofar}.{part}" if sofar else part
        needed = dict(NEEDED.get(sofar, {}))
        listed = part.endswith("[]")
        below = here.setdefault(part.removesuffix("[]"), [needed] if listed else needed)
        here = below[0] if listed else below
    here[last.removesuffix("[]")] = [value] if last.endswith("[]") else value
    return root


def everything() -> Config:
    """Unchecked settings with canaries wherever a secret can be."""
    tree: dict[str, Any] = {}
    for path, mark in MARKED.items():
        tree_with(path, CANARY if mark == "all" else URL, tree)
    return build(Config, tree)


def test_these_settings_are_marked() -> None:
    """Beside others: the list is here so that none of them loses its mark."""
    assert MARKED.keys() >= {
        *(
            "cluster.secret",
            "cluster.etcd.password",
            "cluster.etcd.endpoints[]",
            "streams.token",
            "auth.http.headers[]",
        ),
        *("auth.http.url", "tracing.endpoint", "listeners[].tls.key_password", "listeners[].url"),
    }


@pytest.mark.parametrize("path", [path for path in TEXTS if SMELL.search(path.rpartition(".")[2])])
def test_a_setting_whose_name_smells_of_a_secret_is_marked(path: str) -> None:
    name = path.rpartition(".")[2]
    assert path in MARKED or path in HARMLESS or name.endswith("_file"), f"{path}: mark it with extra=SECRET"


@pytest.mark.parametrize("path", [path for path in TEXTS if re.search(r"url|endpoint", path.rpartition(".")[2])])
def test_a_setting_that_holds_urls_is_marked(path: str) -> None:
    assert path in MARKED or path == "nats.connect_urls[]", f"{path}: mark it with extra=SECRET_URL"


def test_no_form_of_the_settings_shows_a_secret() -> None:
    config = everything()
    assert CANARY in json.dumps(to_builtins(config))
    forms = [
        repr(config),
        str(config),
        f"{config!r} {config.cluster!r} {config.listeners}",
        "\n".join(lines(masked(config))),
        json.dumps(to_builtins(masked(config))),
        repr(list(config.__rich_repr__())),
    ]
    for form in forms:
        assert CANARY not in form and "***" in form and "127.0.0.1" in form
    assert masked(config) == masked(masked(config))
    assert masked(Config()) == Config(node=Config().node)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://a:b@host:1/path?x=y#z", "http://***@host:1/path?***"),
        ("http://a@host", "http://***@host"),
        ("a:b@host:2379", "***@host:2379"),
        ("host:2379", "host:2379"),
        ("http://host/path#secret", "http://host/path#***"),
        ("http://a:b/c@host:1/x", "http://***@host:1/x"),
        ("http://a:b@c@host", "http://***@host"),
        ("unix:///run/a.sock", "unix:///run/a.sock"),
        ("mqtt://[::1]:1883", "mqtt://[::1]:1883"),
        ("http://a:b?c@host", "http://***@host"),
        ("http://host/?a://b", "http://host/?***"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_its_login(url: str, shown: str) -> None:
    assert without_login(url) == shown


BAD: Final[list[Any]] = [
    "!{} x",
    "*{}",
    "&{} *{}",
    "!!int {}",
    "!!timestamp {}",
    "!!binary {}é",
    "%{}",
    "{{{}",
    "[{}",
    '"\\{}',
    "'{}",
    "[[{}]]",
    "{{a: {}}}",
    "{}\t: {}: {}",
    "- {}\n {}: 1",
    "{}",
    "http://x:{}@[::1",
    "http://x:{}@host:port",
    "ftp://{}:{}@host?{}",
    "a{}@:x",
]


@pytest.mark.parametrize("path", MARKED)
def test_the_error_line_of_a_bad_value_does_not_have_it(path: str, tmp_path: Path) -> None:
    key = path.replace("[]", "")
    refused = 0
    for template in BAD:
        if MARKED[path] == "url" and "@" not in template and template[0] not in "!*&":
            continue  # the host of a URL is shown
        text = template.replace("{{", "{").replace("}}", "}").replace("{}", CANARY)
        sources: list[dict[str, Any]] = [
            {"overrides": [f"{key}={text}"]},
            {"env": {"STARLINGMQ_" + key.upper().replace(".", "__"): text}},
        ]
        (tmp_path / "file.yaml").write_text(yaml.safe_dump(tree_with(path, "x")).replace(": x", f": {text}"))
        sources.append({"path": str(tmp_path / "file.yaml")})
        for source in sources:
            try:
                config = load_config(source.pop("path", None), **source)
                refuse_open_listeners(config, authenticated=False)
                [parse_listener(one) for one in config.listeners]
            except (ConfigError, ListenerError) as error:
                refused += 1
                assert CANARY not in str(error), (path, text)
                assert error.__suppress_context__ or CANARY not in repr(error.__cause__)
    assert refused


def test_an_override_without_a_value_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(None, [f"cluster.secret:{CANARY}"])
    assert CANARY not in str(raised.value) and "cluster.secret" in str(raised.value)


GOOD: Final[dict[str, Any]] = {
    "auth": {
        "http": {"url": f"http://user:{CANARY}@127.0.0.1:9/?key={CANARY}", "headers": [f"Authorization: {CANARY}"]},
        "failures": {"delay": 0},
    },
    "cluster": {"secret": CANARY, "etcd": {"username": "u", "password": CANARY, "endpoints": [f"u:{CANARY}@host:1"]}},
    "streams": {"token": CANARY},
    "tracing": {"endpoint": f"http://127.0.0.1:9/?key={CANARY}", "ratio": 0.0},
    "log": {"level": "debug"},
}


def test_the_commands_show_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "starlingmq.yaml"
    path.write_text(yaml.safe_dump(GOOD), encoding="utf-8")
    for words in (["show"], ["show", "--json"], ["check"]):
        code, output, errors = run("config", *words, "-c", str(path))
        assert code == 0
        assert CANARY not in output.decode() + errors
        assert words[0] == "check" or "***" in output.decode()
    path.write_text(yaml.safe_dump({**GOOD, "streams": {"token": f"{CANARY[:8]}"}}), encoding="utf-8")
    for words in (["serve"], ["--debug", "config", "check"]):
        code, output, errors = run(*words, "-c", str(path))
        assert code == 2 and CANARY[:8] not in output.decode() + errors


async def test_a_broker_tells_no_secret_in_its_log_or_by_its_api(
    serve: Serve, ask: Ask, token_file: str, caplog: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    ask = partial(ask, headers=BEARER)
    good = {key: value for key, value in GOOD.items() if key not in ("log", "tracing")}
    broker = await serve(**{**good, "auth": {**good["auth"], "api": {"token_file": token_file}}})
    document = (await ask(broker, "GET", "/api/v1/openapi.json")).json()
    told = []
    for path, operations in document["paths"].items():
        if "get" in operations and "text/event-stream" not in json.dumps(operations["get"]["responses"]):
            told.append((await ask(broker, "GET", path)).text)
    settings = (await ask(broker, "GET", "/api/v1/config")).json()
    assert settings["cluster"]["secret"] == settings["auth"]["http"]["headers"][0] == "***"
    assert settings["auth"]["http"]["url"] == "http://***@127.0.0.1:9/?***"
    broker.reload(broker.config)
    told += [(await ask(broker, "GET", "/api/v1/log", params={"level": "debug"})).text]
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("starlingmq")]
    assert not [text for text in (*told, *ours) if CANARY in text or TOKEN in text]
    assert os.environ.get("STARLINGMQ_CLUSTER__SECRET") is None


@pytest.mark.parametrize(
    ("override", "advice"),
    [
        (
            f"cluster.secret={CANARY}",
            "the variable STARLINGMQ_CLUSTER__SECRET or cluster.secret_file, or a settings file",
        ),
        (f"streams.token={CANARY}", "the variable STARLINGMQ_STREAMS__TOKEN or streams.token_file, or a settings file"),
        (
            f"auth.http.url=http://user:{CANARY}@127.0.0.1/",
            "the variable STARLINGMQ_AUTH__HTTP__URL, or a settings file",
        ),
        (f'auth.http.headers=["x-key: {CANARY}"]', "the variable STARLINGMQ_AUTH__HTTP__HEADERS, or a settings file"),
        (f"cluster={{secret: {CANARY}}}", "the variable STARLINGMQ_CLUSTER, or a settings file"),
        ("auth.http.url=http://127.0.0.1/", ""),
        ("cluster.secret_file=secret", ""),
        ("cluster.secret=", ""),
        ("mqtt.max_qos=1", ""),
        ("no.such.setting=1", ""),
    ],
)
def test_a_secret_on_the_command_line_is_warned_of(override: str, advice: str) -> None:
    """``ps`` shows it to every account of the machine."""
    found = exposed_secrets([override])
    assert CANARY not in str(found)
    assert [line.partition("; use ")[2] for line in found] == ([advice] if advice else [])


def test_only_the_sections_of_the_command_line_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """A description of all settings takes as long as a tenth of the other work of a start."""
    described = set()

    def fields(section: type[Section]) -> object:
        described.add(section.__name__)
        return found(section)

    found = structs.fields
    secret_masking._fields.cache_clear()
    monkeypatch.setattr(structs, "fields", fields)
    overrides = ["log.format=text", "auth.jwt.secret_file=f"]
    assert exposed_secrets(overrides) == [] and load_config(None, overrides).log.format == "text"
    assert described.isdisjoint({"ClusterConfig", "LimitsConfig", "NatsConfig", "StorageConfig"})
    assert described >= {"Config", "LogConfig", "AuthConfig", "JwtConfig"}


def test_config_check_warns_of_a_secret_on_the_command_line() -> None:
    told = run("config", "check", "--set", f"streams.token={CANARY}")
    assert told[0] == 0 and "the command line has the secret of streams.token" in told[2] and CANARY not in told[2]


def test_secrets_of_the_settings_are_not_in_the_arguments_of_workers() -> None:
    """As the passphrase of a listener's key, which the first process passes on to its workers."""
    listener = {"url": "mqtts://127.0.0.1:0", "tls": {"cert": "c", "key": "k", "key_password": CANARY}}
    config = build(Config, {"listeners": [listener], "log": {"format": "json"}})
    for settings in _settings(config, 2, config.listeners, [], "/sockets"):
        child = _child(0, ["-c", "file"], settings, {"A": "b"})
        assert CANARY not in str(child._words) and CANARY in child._settings["STARLINGMQ_OVERRIDES"]
    plain = build(Config, {"listeners": [{"url": "mqtt://127.0.0.1:0"}], "log": {"format": "json"}})
    for settings in _settings(plain, 2, plain.listeners, [], "/sockets"):
        child = _child(0, ["-c", "file"], settings, {"A": "b"})
        assert child._settings == {"A": "b"} and all(setting in child._words for setting in settings)
