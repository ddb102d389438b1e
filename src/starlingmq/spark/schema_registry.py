"""Schemas by id, from a registry with the HTTP interface of Confluent's.

    the registry                                   consequence
    gives the schema                               it is kept (SCHEMAS_MAX, the oldest use goes first)
    knows no such id (404)                         the payload cannot be decoded; asked again after UNKNOWN_SECONDS
    does not answer, or answers 429 or 5xx         asked again (ATTEMPTS), then the query fails and may be restarted
    refuses (401, 403), or answers anything else   the query fails

A schema never changes under its id, so it is asked for once by each Python worker.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Protocol
from urllib.parse import quote

import msgspec

from starlingmq.spark.option_error import OptionError
from starlingmq.spark.secret_reference import SecretReference, secret_text

SCHEMAS_MAX: Final = 1000
UNKNOWN_MAX: Final = 10_000
UNKNOWN_SECONDS: Final = 60.0
ATTEMPTS: Final = 3
PAUSE_SECONDS: Final = 0.5  # before the second attempt; doubles
ANSWER_BYTES_MAX: Final = 4 << 20
REFERENCES_MAX: Final = 100  # schemas on which one depends, with those on which these depend
SERIALIZED: Final = "format=serialized"  # Protobuf as a FileDescriptorProto instead of text
PROTOBUF: Final = "PROTOBUF"
AVRO: Final = "AVRO"


class RegistryError(Exception):
    """The registry cannot be used; no payload is at fault."""


class RegistryUnreachable(RegistryError):
    """It does not answer now."""


class SchemaError(ValueError):
    """A payload names a schema that is unknown or cannot be used."""


class RegistrySchema(msgspec.Struct, frozen=True):
    """``text``: Avro as JSON, Protobuf as base64 of a FileDescriptorProto. ``references``: by the name by which the
    text refers to them, each after those on which it depends.
    """

    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class SchemaReference(msgspec.Struct, frozen=True):
    name: str
    subject: str
    version: int


class RegistryAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """An answer of the registry to a request for a schema."""

    schema: str
    schema_type: str = AVRO
    references: tuple[SchemaReference, ...] = ()


class Schemas(Protocol):
    def find(self, id: int) -> RegistrySchema:
        """Raises SchemaError, RegistryError."""


class RegistryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``ca``: path of a PEM file; "": the authorities of the system. ``timeout``: seconds for an answer."""

    url: str
    user: str = ""
    password: str | SecretReference = ""
    ca: str = ""
    timeout: float = 10.0


class SchemaRegistry:
    """``now`` and ``pause`` are those of ``time``. Each Python worker has its own, used by one thread."""

    def __init__(
        self,
        options: RegistryOptions,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.options = options
        self._now = now
        self._pause = pause
        self._known: OrderedDict[int, RegistrySchema] = OrderedDict()
        self._unknown: OrderedDict[int, float] = OrderedDict()  # until when
        self._opener: urllib.request.OpenerDirector | None = None

    def find(self, id: int) -> RegistrySchema:
        found = self._known.get(id)
        if found is not None:
            self._known.move_to_end(id)
            return found
        if self._now() < self._unknown.get(id, 0.0):
            raise SchemaError(f"schema {id} is unknown")
        told = self._ask(f"/schemas/ids/{id}?{SERIALIZED}")
        if told is None:
            self._unknown[id] = self._now() + UNKNOWN_SECONDS
            self._unknown.move_to_end(id)
            if len(self._unknown) > UNKNOWN_MAX:
                self._unknown.popitem(last=False)
            raise SchemaError(f"schema {id} is unknown")
        references: dict[str, str] = {}
        self._collect(told, references, set())
        found = RegistrySchema(told.schema_type, told.schema, tuple(references.items()))
        self._known[id] = found
        if len(self._known) > SCHEMAS_MAX:
            self._known.popitem(last=False)
        return found

    def _collect(self, told: RegistryAnswer, found: dict[str, str], above: set[str]) -> None:
        """Add the schemas on which this one depends, deepest first."""
        for each in told.references:
            if each.name in found or each.name in above:
                continue
            if len(found) + len(above) >= REFERENCES_MAX:
                raise SchemaError(f"the schema depends on more than {REFERENCES_MAX} others")
            below = self._ask(f"/subjects/{quote(each.subject, safe='')}/versions/{each.version}?{SERIALIZED}")
            if below is None:
                raise SchemaError(f"the schema depends on {each.subject}, which is unknown")
            self._collect(below, found, above | {each.name})
            found[each.name] = below.schema

    def _ask(self, path: str) -> RegistryAnswer | None:
        """Return the answer; None if there is no such thing."""
        for attempt in range(ATTEMPTS):
            if attempt:
                self._pause(PAUSE_SECONDS * 2 ** (attempt - 1))
            try:
                return self._ask_once(path)
            except RegistryUnreachable:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("not reached")

    def _ask_once(self, path: str) -> RegistryAnswer | None:
        url = self.options.url.rstrip("/") + path
        request = urllib.request.Request(url, headers={"accept": "application/json"})  # noqa: S310  checked in config
        if self.options.user:
            request.add_unredirected_header("authorization", f"Basic {self._login()}")
        if self._opener is None:
            self._opener = _opener(self.options.ca)
        until = self._now() + self.options.timeout
        try:
            with self._opener.open(request, timeout=self.options.timeout) as answer:
                return msgspec.json.decode(self._body(answer, until), type=RegistryAnswer)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.HTTPStatus.NOT_FOUND:
                return None
            text = f"the schema registry {self.options.url} answers {error.code}"
            if error.code == http.HTTPStatus.TOO_MANY_REQUESTS or error.code >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
                raise RegistryUnreachable(f"{text}: the schema registry does not answer") from None
            raise RegistryError(f"{text}; check decode.registry") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise RegistryUnreachable(
                f"{self.options.url}: the schema registry does not answer: {' '.join(str(reason).split())}"
            ) from None
        except msgspec.DecodeError:
            raise RegistryError(f"{self.options.url} is not a schema registry; check decode.registry.url") from None

    def _body(self, answer: http.client.HTTPResponse, until: float) -> bytes:
        body = b""
        while chunk := answer.read1(1 << 16):
            body += chunk
            if len(body) > ANSWER_BYTES_MAX:
                raise RegistryError(f"{self.options.url}: a schema has more than {ANSWER_BYTES_MAX} bytes")
            if self._now() > until:
                raise TimeoutError("timed out")
        return body

    def _login(self) -> str:
        try:
            password = secret_text(self.options.password)
        except OptionError as error:
            raise RegistryError(str(error)) from None
        return base64.b64encode(f"{self.options.user}:{password}".encode()).decode()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _opener(ca: str) -> urllib.request.OpenerDirector:
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as error:
        raise RegistryError(f"decode.registry.tls_ca: {ca} cannot be read: {error.strerror or error}") from None
    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context), _NoRedirect)
    return urllib.request.build_opener(*handlers)


def avro_schema(schema: RegistrySchema) -> Any:
    """Return the schema as fastavro has it. Raises SchemaError."""
    import fastavro

    named: dict[str, Any] = {}
    try:
        for _, text in schema.references:
            fastavro.parse_schema(json.loads(text), named_schemas=named)
        return fastavro.parse_schema(json.loads(schema.text), named_schemas=named)
    except (ValueError, TypeError, LookupError, AttributeError, fastavro.schema.SchemaParseException) as error:
        raise SchemaError(f"not an Avro schema: {error}") from None
