"""Logins that only NATS has: a token, and a user for clients without credentials (nats-server's ``no_auth_user``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlingmq.auth.method import Verdict
from starlingmq.auth.token_file import digest_of, is_known, read_tokens
from starlingmq.config.nats_section import NatsConfig

if TYPE_CHECKING:
    from starlingmq.hooks import AuthRequest


class NatsLogin:
    """``required``: NATS clients that no method knows are refused. Raises ConfigError for an unusable file."""

    def __init__(self, config: NatsConfig) -> None:
        self._tokens = read_tokens(config.token_file, "nats.token_file") if config.token_file else []
        self._no_auth_user = config.no_auth_user
        self.keys = config.nkeys
        self.required = bool(self._tokens or config.nkeys)

    def check(self, request: AuthRequest) -> Verdict | None:
        """None if it does not decide: for an MQTT client, or credentials for another method."""
        if request.version != 0 or request.username is not None or request.nkey:
            return None
        if request.password is None:
            return Verdict(username=self._no_auth_user) if self._no_auth_user else None
        known = is_known(request.password, self._tokens)
        return Verdict(proof=digest_of(request.password)) if known else None

    def holds(self, username: str, proof: object) -> bool:
        """Whether a client that it admitted would be admitted now: by its token, or without credentials."""
        if proof is None:
            return bool(username) and username == self._no_auth_user
        return proof in self._tokens
