"""The settings of tracing with OpenTelemetry, and checks that involve several of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from starlingmq.config.secret_masking import SECRET_URL, without_login
from starlingmq.config.section_types import ConfigError, Section


class TracingConfig(Section, frozen=True):
    endpoint: Annotated[
        str,
        Meta(
            description="URL that spans are exported to by OTLP/HTTP, such as "
            "http://127.0.0.1:4318/v1/traces. Empty: tracing is off.",
            extra=SECRET_URL,
        ),
    ] = ""
    ratio: Annotated[
        float,
        Meta(ge=0.0, le=1.0, description="Fraction of messages without a trace context of their own that are traced."),
    ] = 0.01
    parents: Annotated[
        bool,
        Meta(description="Whether the sampled flag of a message's own traceparent overrides tracing.ratio."),
    ] = True
    rate: Annotated[
        int,
        Meta(ge=1, le=1000, description="Maximum number of traced messages per second; further ones are counted only."),
    ] = 100
    headers_file: Annotated[
        str | None,
        Meta(
            description="File with request headers for each export, one Name: value per line, for example "
            "for authentication."
        ),
    ] = None


def check_tracing(tracing: TracingConfig) -> None:
    """Raises ConfigError for combinations that no type excludes."""
    if not tracing.endpoint:
        if tracing.headers_file:
            raise ConfigError("tracing.headers_file: has no effect without tracing.endpoint; set tracing.endpoint")
        return
    try:
        parts = urlsplit(tracing.endpoint)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if whole and (parts.username or parts.password):
        raise ConfigError(
            "tracing.endpoint: a URL must not contain a user name or password; put them into tracing.headers_file"
        )
    if not whole:
        raise ConfigError(
            f"tracing.endpoint: {without_login(tracing.endpoint)!r} is not a URL starting with http:// or https://"
        )


def tracing_headers(tracing: TracingConfig) -> dict[str, str]:
    """The headers of each export. Raises ConfigError."""
    if tracing.headers_file is None:
        return {}
    try:
        text = Path(tracing.headers_file).read_text(encoding="ascii")
    except OSError as error:
        raise ConfigError(
            f"tracing.headers_file: {tracing.headers_file} cannot be read: {error.strerror or error}"
        ) from error
    except UnicodeDecodeError:
        raise ConfigError(f"tracing.headers_file: {tracing.headers_file} contains non-ASCII characters") from None
    headers = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or not value.strip() or not line.isprintable():
            raise ConfigError(f"tracing.headers_file: {tracing.headers_file}, line {number}: expected Name: value")
        headers[name.strip().lower()] = value.strip()
    return headers
