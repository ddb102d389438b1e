"""The section ``alarms``: thresholds, and the address that is told."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from starlingmq.config.secret_masking import SECRET
from starlingmq.config.section_types import ConfigError, Count, Duration, Section

Share = Annotated[float, Meta(ge=0.0, le=1.0)]


class AlarmsConfig(Section, frozen=True):
    disk_free: Annotated[
        Share, Meta(description="Alarm below this free share of the data directory's file system; 0: never.")
    ] = 0.1
    memory: Annotated[Share, Meta(description="Alarm above this share of limits.memory; 0: never.")] = 0.9
    certificate_days: Annotated[
        Count,
        Meta(
            description="Alarm this many days before a certificate, authority, revocation list, key set or token that "
            "this node uses ends; before those that live for less than three times as long, in their last third. 0: "
            "only when it has ended."
        ),
    ] = 30
    dropped_rate: Annotated[
        float,
        Meta(
            ge=0.0,
            le=1e9,
            description="Alarm if more messages per second are dropped for one reason, averaged over a minute; "
            "0: never.",
        ),
    ] = 1.0
    unacknowledged: Annotated[
        Duration,
        Meta(
            description="Alarm if a connected client has acknowledged nothing for so long while ten messages or more "
            "are in flight to it; longer than clients need for one message. 0: never."
        ),
    ] = 30.0
    site: Annotated[
        str,
        Meta(
            description="Address of a copy of this documentation (make site), such as https://docs.example.org/mq/. "
            "Each alarm then has the whole address of its page. Empty: only the name of the page."
        ),
    ] = ""
    webhook: Annotated[
        str,
        Meta(
            description="URL that receives a POST of JSON when an alarm begins or ends; a user and password in it "
            "are sent as Basic authentication. Empty: none. It is secret, because it may contain a password or token.",
            extra=SECRET,
        ),
    ] = ""


def check_alarms(alarms: AlarmsConfig) -> None:
    """Raises ConfigError for what no type excludes."""
    for name, url in (("site", alarms.site), ("webhook", alarms.webhook)):
        if url and not _is_web_address(url):
            raise ConfigError(f"alarms.{name}: is not a URL starting with http:// or https://")


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return whole and url.isascii() and url.isprintable() and " " not in url
