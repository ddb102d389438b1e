"""The OpenAPI document, with two additions and a correction: errors are one line, routes state their authorization, and
a value that may be a whole number or another one fits one choice.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

from litestar import Request
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.routes import HTTPRoute

from starlingmq.api.guard import OPEN

PROBLEM: Final = {
    "type": "object",
    "properties": {"error": {"type": "string", "description": "One line that states the reason."}},
    "required": ["error"],
}
NUMBER: Final = {"type": "number"}
INTEGER: Final = {"type": "integer"}
REFUSAL: Final = {
    "description": "The request failed, or the object does not exist.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
SCHEMES: Final = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token from auth.api.token_file."},
    "password": {"type": "http", "scheme": "basic", "description": "A user from auth.api.users."},
    "session": {
        "type": "http",
        "scheme": "bearer",
        "description": "The token that a login by OpenID Connect (/api/v1/login/start) ends with.",
    },
}


class Document(JsonRenderPlugin):
    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        open_to_all = {
            route.path
            for route in request.app.routes
            if isinstance(route, HTTPRoute) and any(OPEN in handler.opt for handler in route.route_handlers)
        }
        return super().render(request, amended(openapi_schema, open_to_all))


def amended(document: dict[str, Any], open_to_all: Container[str]) -> dict[str, Any]:
    document = _corrected(document)
    components = document.get("components", {})
    schemas = {**components.get("schemas", {}), "Problem": PROBLEM}
    return {
        **document,
        "components": {**components, "schemas": schemas, "securitySchemes": SCHEMES},
        "paths": {
            path: {method: _operation(operation, path in open_to_all) for method, operation in operations.items()}
            for path, operations in document["paths"].items()
        },
    }


def _corrected(part: Any) -> Any:
    """A whole number is a number: with a choice of both it would fit two of oneOf, which allows one."""
    if isinstance(part, list):
        return [_corrected(each) for each in part]
    if not isinstance(part, dict):
        return part
    changed = {name: _corrected(each) for name, each in part.items()}
    choices = changed.get("oneOf")
    if isinstance(choices, list) and NUMBER in choices:
        changed["oneOf"] = [each for each in choices if each != INTEGER]
    return changed


def _operation(operation: dict[str, Any], open_to_all: bool) -> dict[str, Any]:
    answers = {status: answer for status, answer in operation["responses"].items() if status != "400"}
    asked: list[dict[str, list[str]]] = []
    if not open_to_all:
        asked = [{}, {"token": []}, {"password": []}, {"session": []}]  # on loopback, no login may be required
    return {**operation, "responses": {**answers, "default": REFUSAL}, "security": asked}
