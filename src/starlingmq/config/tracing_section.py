"""The settings of traces for OpenTelemetry, and the checks that involve several of them."""

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
            description="Where spans go by OTLP/HTTP, as http://127.0.0.1:4318/v1/traces; empty traces nothing.",
            extra=SECRET_URL,
        ),
    ] = ""
    ratio: Annotated[
        float, Meta(ge=0.0, le=1.0, description="Share of the messages without a trace of their own that are traced.")
    ] = 0.01
    parents: Annotated[
        bool,
        Meta(description="Whether what a message's own traceparent says, sampled or not, goes before tracing.ratio."),
    ] = True
    rate: Annotated[
        int, Meta(ge=1, le=1000, description="Messages a second that are traced at most; those beyond are counted.")
    ] = 100
    headers_file: Annotated[
        str | None,
        Meta(description="File with a header, Name: value, on each line that every export brings, as for log-in."),
    ] = None


def check_tracing(tracing: TracingConfig) -> None:
    """Raise ConfigError for what no type checks."""
    if not tracing.endpoint:
        if tracing.headers_file:
            raise ConfigError("tracing.headers_file: there is nowhere to send it; set tracing.endpoint")
        return
    try:
        parts = urlsplit(tracing.endpoint)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if whole and (parts.username or parts.password):
        raise ConfigError("tracing.endpoint: names and passwords belong into tracing.headers_file")
    if not whole:
        raise ConfigError(f"tracing.endpoint: {without_login(tracing.endpoint)!r} is no URL of http:// or https://")


def tracing_headers(tracing: TracingConfig) -> dict[str, str]:
    """What each export brings. Raises ConfigError."""
    if tracing.headers_file is None:
        return {}
    try:
        text = Path(tracing.headers_file).read_text(encoding="ascii")
    except OSError as error:
        raise ConfigError(
            f"tracing.headers_file: {tracing.headers_file} cannot be read: {error.strerror or error}"
        ) from error
    except UnicodeDecodeError:
        raise ConfigError(f"tracing.headers_file: {tracing.headers_file} is not all ASCII") from None
    headers = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or not value.strip() or not line.isprintable():
            raise ConfigError(f"tracing.headers_file: {tracing.headers_file}, line {number}: expected Name: value")
        headers[name.strip().lower()] = value.strip()
    return headers
