"""A real broker, asked whatever its own OpenAPI document allows, and what it nearly allows: it never fails, and
answers as the document says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.cli.commands import Command, start

from .conftest import TOKEN

pytestmark = pytest.mark.slow

PATIENCE: Final = 30.0
INJECTED: Final = "\n2026-01-01 00:00:00 ERROR   forged\r\x1b[2J\u2028forged"
DIALECT: Final = {"string", "integer", "number", "boolean", "null", "array", "object"}
WORDS: Final = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["#", "+/x", "$SYS/#", "../../etc/passwd", "%00", "\0", INJECTED, "x" * 30_000]),
)
ODD: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    WORDS,
    st.lists(st.integers(), max_size=3),
    st.just({"a": None}),
)


class Broker:
    """The broker's API description, and the requests built from it."""

    def __init__(self, command: Command, client: httpx.Client) -> None:
        self.command = command
        self.client = client
        self.document = client.get("/api/v1/openapi.json").json()
        self._known: dict[str, st.SearchStrategy[Any]] = {}
        self.operations = [
            (path, method, operation)
            for path, operations in self.document["paths"].items()
            for method, operation in operations.items()
            if "text/event-stream" not in operation["responses"].get("200", {}).get("content", {})  # it never ends
            and path != "/api/v1/restart"  # it ends this process, and the next one has other ports
        ]

    def whole(self, schema: dict[str, Any]) -> dict[str, Any]:
        """With what it refers to."""
        return {**schema, "components": self.document["components"]}

    def values(self, schema: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
        """Values that fit the schema."""
        key = f"{depth} {json.dumps(schema)}"
        if key not in self._known:
            self._known[key] = self._values(schema, depth)
        return self._known[key]

    def _values(self, schema: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
        """Fails for words that it does not know."""
        if "$ref" in schema:
            return self.values(self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], depth + 1)
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        if "allOf" in schema:
            (one,) = schema["allOf"]  # with a description beside it
            return self.values(one, depth + 1)
        for several in ("oneOf", "anyOf"):
            if several in schema:
                rest = {key: value for key, value in schema.items() if key != several}
                return st.one_of([self.values({**rest, **each}, depth + 1) for each in schema[several]])
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert set(kinds) <= DIALECT, schema
        return st.one_of([self.of_kind(kind, schema, depth) for kind in kinds])

    def of_kind(self, kind: str, schema: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
        if kind == "string":
            least, most = schema.get("minLength", 0), min(schema.get("maxLength", 60), 60)
            return st.text(min_size=least, max_size=most) | st.just("a/b")
        if kind in ("integer", "number"):
            least, most = schema.get("minimum", -1e6), schema.get("maximum", 1e6)
            integers = st.integers(int(least), int(most))
            return integers if kind == "integer" else integers | st.floats(float(least), float(most))
        if kind == "boolean":
            return st.booleans()
        if kind == "array":
            return st.lists(self.values(schema["items"], depth + 1), min_size=schema.get("minItems", 0), max_size=3)
        if kind == "object" and depth < 5:
            required = schema.get("required", [])
            below = {name: self.values(one, depth + 1) for name, one in schema.get("properties", {}).items()}
            return st.fixed_dictionaries(
                {name: one for name, one in below.items() if name in required},
                optional={name: one for name, one in below.items() if name not in required},
            )
        return st.none()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("fuzzed")
    (directory / "tokens").write_text(f"{TOKEN}\n")
    (directory / "users").write_text("ann:$argon2id$v=19$m=1024,t=1,p=1$c29tZXNhbHRzb21lc2FsdA$" + "A" * 43 + "\n")
    command = start(
        "serve",
        *("--listen", "mqtt://127.0.0.1:0", "--listen", "http://127.0.0.1:0", "--data-dir", str(directory / "data")),
        *("--set", f"auth.api.token_file={directory / 'tokens'}", "--set", f"auth.password.file={directory / 'users'}"),
        *("--set", "auth.failures.limit=0", "--set", "log.level=debug", "--set", "log.format=text"),
        *("--set", "limits.retained_messages=1000"),
    )
    with ExitStack() as stack:
        stack.callback(command.process.kill)  # if it still runs then
        assert command.process.stdout is not None
        ready = command.process.stdout.readline().decode().split()
        url = next(word for word in ready if word.startswith("http://"))
        headers = {"authorization": f"Bearer {TOKEN}"}
        client = httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE, headers=headers)
        yield Broker(command, stack.enter_context(client))
        forge(client)
        said = ended(command)
    assert TOKEN not in said
    assert "Traceback" not in said and "forged" in said
    assert not [line for line in said.splitlines() if line.startswith("forged") or "ERROR   forged" in line[:40]]
    assert "\x1b" not in said and "\r" not in said


def ended(command: Command) -> str:
    """All that it has logged."""
    command.process.terminate()
    code, _, errors = command.finish()
    assert code == 0, errors[-2000:]
    return errors


@given(data=st.data())
@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_documented_request_is_answered_as_documented(broker: Broker, data: st.DataObject) -> None:
    check(broker, data)


@pytest.mark.long(kept="tests/api/test_fuzz.py::test_every_documented_request_is_answered_as_documented")
@pytest.mark.timeout(600)
@given(data=st.data())
@settings(max_examples=2_000, deadline=None, suppress_health_check=list(HealthCheck))
def test_and_much_more_of_it(broker: Broker, data: st.DataObject) -> None:
    check(broker, data)


def check(broker: Broker, data: st.DataObject) -> None:
    path, method, operation = data.draw(st.sampled_from(broker.operations))
    query = {}
    for one in operation.get("parameters", []):
        assert one["in"] == "query"
        if one.get("required") or data.draw(st.booleans()):
            fits = data.draw(st.integers(0, 9)) < 7
            query[one["name"]] = data.draw(broker.values(one["schema"]) if fits else ODD)
    body = None
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        fits = data.draw(st.integers(0, 9)) < 7
        body = data.draw(broker.values(schema) if fits else st.dictionaries(WORDS, ODD, max_size=4) | ODD)
    given_ = {name: text(value) for name, value in query.items() if value is not None}
    content = None if body is None else json.dumps(body).encode("utf-8", "surrogatepass")
    answer = broker.client.request(
        method.upper(), path, params=given_, content=content, headers={"content-type": "application/json"}
    )
    told = (method, path, given_, body, answer.status_code, answer.text[:500])
    assert answer.status_code < 500 or (path == "/health/ready" and answer.status_code == 503), told
    described = operation["responses"].get(str(answer.status_code)) or operation["responses"]["default"]
    if "application/json" in described.get("content", {}):
        schema = broker.whole(described["content"]["application/json"]["schema"])
        errors = list(Draft202012Validator(schema).iter_errors(answer.json()))
        assert not errors, (told, errors[0].message)
    if answer.status_code >= 400:
        assert answer.json()["error"].isprintable(), told


def text(value: Any) -> str:
    """As it is put into a query."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else json.dumps(value)


def test_input_of_clients_cannot_forge_log_lines(broker: Broker) -> None:
    """The fixture looks at the log in the end."""
    forge(broker.client)


def forge(client: httpx.Client) -> None:
    body = {"kind": "client", "name": f"evil{INJECTED}", "seconds": 1, "reason": f"because{INJECTED}"}
    assert client.post("/api/v1/bans", json=body).status_code == 201
    body = {"topic": f"evil{INJECTED}", "payload": "x", "retain": True}
    assert client.post("/api/v1/publish", json=body).status_code == 200
    deleted = client.delete("/api/v1/retained/message", params={"topic": f"evil{INJECTED}"})
    assert deleted.status_code == 200
