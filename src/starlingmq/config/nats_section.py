"""The section ``nats``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from starlingmq.config.nkeys import user_key
from starlingmq.config.section_types import ConfigError, Duration, PositiveDuration, PositiveSize, Section


class NatsConfig(Section, frozen=True):
    max_payload: Annotated[
        PositiveSize, Meta(le=64 * 1024 * 1024, description="Largest payload a client may publish, including headers.")
    ] = 1024 * 1024
    max_control_line: Annotated[
        int, Meta(ge=256, le=1024 * 1024, description="Longest protocol line of a client in bytes, including CONNECT.")
    ] = 4096
    ping_interval: Annotated[PositiveDuration, Meta(description="Silence after which a client is sent a PING.")] = 120.0
    max_pings_out: Annotated[
        int, Meta(ge=1, description="Unanswered PINGs after which a connection is stale and closed.")
    ] = 2
    connect_urls: Annotated[
        tuple[str, ...],
        Meta(
            description="Addresses (host:port) sent to clients for reconnecting. Empty: the NATS listeners "
            "of all nodes."
        ),
    ] = ()
    lame_duck_duration: Annotated[
        Duration,
        Meta(
            description="Period over which a node in lame duck mode (SIGUSR2, starlingmq ctl drain) closes its NATS "
            "clients one by one. A node that is stopped by SIGTERM does not wait for it."
        ),
    ] = 10.0
    max_pending_replies: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Maximum number of received requests that a client may reply to by a rule with allow: reply; "
            "above it, replies to the oldest are refused.",
        ),
    ] = 16384
    nkeys: Annotated[
        tuple[str, ...],
        Meta(
            description="Public NKeys (U...) of users who may connect. If set, NATS clients must sign the "
            "server's nonce with one of them."
        ),
    ] = ()
    token_file: Annotated[
        str,
        Meta(
            description="File with one token per line, each of at least 16 characters. If set, NATS clients "
            "must present one of them."
        ),
    ] = ""
    no_auth_user: Annotated[
        str,
        Meta(description="User name given to NATS clients without credentials. Empty: they stay anonymous."),
    ] = ""


def check_nats(nats: NatsConfig) -> None:
    """Raises ConfigError for combinations that no type excludes."""
    for index, text in enumerate(nats.nkeys):
        try:
            user_key(text)
        except ValueError as error:
            raise ConfigError(f"nats.nkeys[{index}]: {error}") from None
