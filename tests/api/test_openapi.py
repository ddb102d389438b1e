"""The OpenAPI document: it is there, it is whole, and nothing that fits it, or nearly, upsets the broker."""

from __future__ import annotations

import random
from typing import Any, Final
from urllib.parse import quote

from starlingmq import Broker

from .conftest import Ask, Serve

ODD: Final[list[Any]] = [
    "", "0", "-1", "1", "100000000000000000000000", "1e9", "nan", "true", "null", "#", "+/+", "$SYS/#", "a/../b",
    "\0", "\n", "ä", "🦜", "' or 1=1", "<script>", "%00", "%2e%2e%2f", "x" * 3000, "{}", "[]",
]  # fmt: skip
BODIES: Final[list[Any]] = [None, True, 0, -1, 1e308, "", "x", [], {}, [None], {"a": None}, ODD]
ANSWERS: Final = (200, 201, 202, 400, 403, 404, 409, 413)


async def document(ask: Ask, broker: Broker) -> dict[str, Any]:
    answer = await ask(broker, "GET", "/api/v1/openapi.json")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def references(tree: Any) -> set[str]:
    if isinstance(tree, dict):
        own = {tree["$ref"]} if isinstance(tree.get("$ref"), str) else set()
        return own.union(*(references(below) for below in tree.values()))
    return set().union(*(references(below) for below in tree)) if isinstance(tree, list) else set()


def choices(tree: Any) -> list[list[Any]]:
    if isinstance(tree, list):
        return [found for each in tree for found in choices(each)]
    if not isinstance(tree, dict):
        return []
    own = [tree["oneOf"]] if "oneOf" in tree else []
    return own + [found for each in tree.values() for found in choices(each)]


async def test_no_number_fits_two_choices(serve: Serve, ask: Ask) -> None:
    found = choices(await document(ask, await serve()))
    assert {"type": "number"} in [each for choice in found for each in choice]
    assert not [each for each in found if {"type": "number"} in each and {"type": "integer"} in each]


async def test_the_document_describes_every_operation(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    found = await document(ask, broker)
    assert found["openapi"].startswith("3.1")
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (method, path)
            assert operation["tags"], (method, path)
    for reference in references(found):
        below: Any = found
        for key in reference.removeprefix("#/").split("/"):
            below = below[key]
    assert {"/api/v1/clients", "/api/v1/publish", "/api/v1/bans", "/health/ready", "/metrics"} <= set(found["paths"])


async def test_a_missing_object_is_reported_in_one_line(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    for path in (
        "/api/v1/nothing",
        "/api/v1",
        "/api/v1/nothing/at/all",
        "/nothing",
        "/ui/../api/app.py",
        "/ui/%2e%2e/app.py",
    ):
        answer = await ask(broker, "GET", path)
        assert answer.status_code == 404, path
        assert list(answer.json()) == ["error"], path


async def test_odd_values_never_cause_a_server_error(serve: Serve, ask: Ask) -> None:
    """Each operation with odd values for its parameters and its body, by a fixed seed: never a 500, and one line."""
    broker = await serve()
    chance = random.Random(8)
    found = await document(ask, broker)
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            if "text/event-stream" in operation["responses"].get("200", {}).get("content", {}):
                continue  # it never ends: tests.api.test_live
            for _ in range(12):
                parameters = {
                    one["name"]: chance.choice(ODD) for one in operation.get("parameters", []) if chance.random() < 0.8
                }
                query = "&".join(f"{key}={quote(str(value))}" for key, value in parameters.items())
                body = None
                if "requestBody" in operation:
                    body = chance.choice([*BODIES, _body(found, operation, chance)])
                answer = await ask(broker, method.upper(), f"{path}?{query}", json=body)
                assert answer.status_code in (200, 201, 202, 400, 403, 404, 409, 413), (
                    method,
                    path,
                    query,
                    answer.text,
                )
                if answer.status_code >= 400:
                    assert list(answer.json()) == ["error"] and "\n" not in answer.json()["error"]
    assert (await ask(broker, "GET", "/health/ready")).status_code == 200


def _body(found: dict[str, Any], operation: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """One of the right keys, and some of the right types."""
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    if "$ref" in schema:
        schema = found["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return {name: chance.choice([*BODIES, *ODD, "client", 1, 60]) for name in schema["properties"]}
