"""The OpenAPI document, with what the framework does not know of: refusals are one line, and who may ask."""

from __future__ import annotations

from typing import Any, Final

from litestar import Request
from litestar.openapi.plugins import JsonRenderPlugin

PROBLEM: Final = {
    "type": "object",
    "properties": {"error": {"type": "string", "description": "One line that says why."}},
    "required": ["error"],
}
REFUSAL: Final = {
    "description": "It was not done, or is not there.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
SCHEMES: Final = {
    "token": {"type": "http", "scheme": "bearer", "description": "A line of auth.api.token_file."},
    "password": {"type": "http", "scheme": "basic", "description": "One of auth.api.users."},
}
OPEN: Final = "/health/"  # below this nobody is asked who he is


class Document(JsonRenderPlugin):
    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return super().render(request, amended(openapi_schema))


def amended(document: dict[str, Any]) -> dict[str, Any]:
    components = document.get("components", {})
    schemas = {**components.get("schemas", {}), "Problem": PROBLEM}
    return {
        **document,
        "components": {**components, "schemas": schemas, "securitySchemes": SCHEMES},
        "paths": {
            path: {method: _operation(path, operation) for method, operation in operations.items()}
            for path, operations in document["paths"].items()
        },
    }


def _operation(path: str, operation: dict[str, Any]) -> dict[str, Any]:
    answers = {status: answer for status, answer in operation["responses"].items() if status != "400"}
    asked: list[dict[str, list[str]]] = []
    if not path.startswith(OPEN):
        asked = [{}, {"token": []}, {"password": []}]  # nobody is asked on loopback
    return {**operation, "responses": {**answers, "default": REFUSAL}, "security": asked}
