"""Settings of the NATS side: the section ``nats`` of the tree."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from starlingmq.config.section_types import ConfigError, Duration, PositiveDuration, PositiveSize, Section
from starlingmq.nkeys import user_key


class NatsConfig(Section, frozen=True):
    max_payload: Annotated[
        PositiveSize, Meta(le=64 * 1024 * 1024, description="Largest payload a client may publish, headers included.")
    ] = 1024 * 1024
    max_control_line: Annotated[
        int, Meta(ge=256, le=1024 * 1024, description="Bytes a line with a command may have, CONNECT included.")
    ] = 4096
    ping_interval: Annotated[
        PositiveDuration, Meta(description="How long a client may be silent before it is sent a PING.")
    ] = 120.0
    max_pings_out: Annotated[
        int, Meta(ge=1, description="PINGs that may go unanswered before the connection is stale and closed.")
    ] = 2
    connect_urls: Annotated[
        tuple[str, ...],
        Meta(description="What clients are told they may reconnect to, host:port; by default all nodes' listeners."),
    ] = ()
    lame_duck_duration: Annotated[
        Duration,
        Meta(description="How long the clients of a node that leaves its cluster are closed one after the other."),
    ] = 10.0
    max_pending_replies: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Requests that a client has received, and may reply to by a rule (allow: reply), at once; "
            "the oldest can not be answered any more.",
        ),
    ] = 16384
    nkeys: Annotated[
        tuple[str, ...],
        Meta(description="Public keys (U...) of users who may come in; with any, NATS clients have to sign with one."),
    ] = ()
    token_file: Annotated[
        str,
        Meta(description="File with a token on each line, of 16 signs or more; NATS clients have to show one of them."),
    ] = ""
    no_auth_user: Annotated[
        str,
        Meta(description="User name of NATS clients that show no credentials; empty: they stay anonymous."),
    ] = ""


def check_nats(nats: NatsConfig) -> None:
    """Raise ConfigError for what no type checks."""
    for index, text in enumerate(nats.nkeys):
        try:
            user_key(text)
        except ValueError as error:
            raise ConfigError(f"nats.nkeys[{index}]: {error}") from None
