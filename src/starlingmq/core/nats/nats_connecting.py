"""Admission of NATS clients: by CONNECT, or by a first command without it where no login is required."""

from __future__ import annotations

from typing import Final

import msgspec

from starlingmq.config.nats_section import NatsConfig
from starlingmq.core.connect.connect_verdict import (
    ADMITTED,
    CUT_OFF,
    RULES_CHANGED,
    ConnectRequest,
    ConnectVerdict,
    why_refused,
)
from starlingmq.core.connect.connecting import REASONS, Connecting, login_word
from starlingmq.core.connect.deadlines import Deadlines
from starlingmq.core.connect.ending import Ending
from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import AUTHENTICATE, HookAnswer, HookQuestion
from starlingmq.core.nats.nats_client import NatsClient
from starlingmq.core.nats.nats_errors import AUTHORIZATION_VIOLATION, NatsErrors
from starlingmq.core.nats.nkey_auth import NKEY, NkeyAuth
from starlingmq.core.session.connection import ASKING, AUTHENTICATING, NEW, OPEN
from starlingmq.core.session.session import BRIDGE_LISTENER, Client
from starlingmq.wire.mqtt import Connect
from starlingmq.wire.nats import PARSER_ERROR, NatsError
from starlingmq.wire.reasons import Reason

TOLD_MAX: Final = 128  # characters kept of each description that a client sends of itself


class NatsConnecting:
    ctx: Context
    connecting: Connecting
    ending: Ending
    deadlines: Deadlines
    errors: NatsErrors
    keys: NkeyAuth
    config: NatsConfig

    def __init__(
        self,
        ctx: Context,
        connecting: Connecting,
        ending: Ending,
        deadlines: Deadlines,
        errors: NatsErrors,
        keys: NkeyAuth,
        config: NatsConfig,
    ) -> None:
        self.ctx = ctx
        self.connecting = connecting
        self.ending = ending
        self.deadlines = deadlines
        self.errors = errors
        self.keys = keys
        self.config = config

    def requires_login(self) -> bool:
        """Whether a client has to authenticate."""
        return self.ctx.ask_authenticate or not self.ctx.allow_anonymous or len(self.keys.known) != 0

    def admit_without_connect(self, client: Client, nats: NatsClient) -> None:
        """A first command without CONNECT, which suffices where no login is required."""
        if self.requires_login():
            self.errors.fail(client, AUTHORIZATION_VIOLATION)
        else:
            client.rules = self.ctx.rules
            self._accept(client, nats)

    def connect(self, client: Client, nats: NatsClient, text: bytes) -> None:
        try:
            options = msgspec.json.decode(text)
        except (ValueError, RecursionError):
            raise NatsError(PARSER_ERROR) from None
        if not isinstance(options, dict):
            raise NatsError(PARSER_ERROR)
        # Options that CONNECT omits keep their values, as in nats-server: verbose and pedantic are on until turned off.
        nats.verbose = options.get("verbose", nats.verbose) is True
        nats.pedantic = options.get("pedantic", nats.pedantic) is True
        nats.echo = options.get("echo", nats.echo) is not False
        nats.headers = options.get("headers", nats.headers) is True
        nats.no_responders = options.get("no_responders", nats.no_responders) is True
        nats.protocol = 1 if options.get("protocol", nats.protocol) == 1 else 0
        nats.name = _shown(options, "name", nats.name)
        nats.lang = _shown(options, "lang", nats.lang)
        nats.library_version = _shown(options, "version", nats.library_version)
        if nats.no_responders and not nats.headers:
            raise NatsError("no responders requires headers support")
        if client.state != NEW:
            nats.ok(client)
            return
        client.state = AUTHENTICATING
        client.rules = self.ctx.rules
        if client.listener == BRIDGE_LISTENER:
            self._accept(client, nats)
            return
        nkey = _text(options, "nkey") or ""
        if nkey and self.keys.verify is not None:
            self._with_key(client, nats, nkey, _text(options, "sig") or "")
            return
        user = _text(options, "user")
        password = _text(options, "pass")
        if password is None:
            password = _text(options, "auth_token")
        client.username = client.certificate_name if client.identity else user or ""
        if self.ctx.ask_authenticate:
            self._ask(client, user, None if password is None else password.encode(), "")
        elif self.requires_login():
            why = "" if self.ctx.allow_anonymous else why_refused(user is not None or password is not None)
            self.errors.fail(client, AUTHORIZATION_VIOLATION, why)
        else:
            self._accept(client, nats)
            if client.state == OPEN:
                nats.ok(client)

    def _with_key(self, client: Client, nats: NatsClient, nkey: str, signature: str) -> None:
        """CONNECT with an NKey: the key alone decides, whatever other credentials are present."""
        if not self.keys.signed(nats.number, nkey, signature):
            self.errors.fail(client, AUTHORIZATION_VIOLATION)
            return
        client.username = client.certificate_name if client.identity else nkey
        if self.ctx.ask_authenticate:
            self._ask(client, nkey, None, nkey)
        elif nkey in self.keys.known:
            client.standing = (NKEY, nkey)
            self._accept(client, nats)
            if client.state == OPEN:
                nats.ok(client)
        else:
            self.errors.fail(client, AUTHORIZATION_VIOLATION)

    def _ask(self, client: Client, user: str | None, password: bytes | None, nkey: str) -> None:
        question = HookQuestion(AUTHENTICATE, client)
        question.connect = Connect(5, client.client_id, True, 0, user, password)
        question.nkey = nkey
        question.listed = nkey in self.keys.known
        self.ctx.ready.questions.append(question)
        self.ctx.halt(client, ASKING)

    def answered(self, client: Client, nats: NatsClient, answer: HookAnswer) -> None:
        """The answer of ``authenticate``."""
        if client.state != AUTHENTICATING:
            return
        if answer.username is not None:
            client.username = answer.username
        if answer.reason == Reason.SERVER_BUSY or answer.reason == Reason.SERVER_UNAVAILABLE:
            # the client made no mistake: it may try again
            self.errors.fail(client, "maximum connections exceeded", answer.detail, login_word(answer.reason))
            return
        if answer.reason != 0:
            word = Reason(answer.reason).name.lower() if answer.reason in REASONS else "unspecified_error"
            self.errors.fail(client, AUTHORIZATION_VIOLATION, answer.detail, word)
            return
        self.connecting.entitle(client, answer)
        self._accept(client, nats)
        if client.state == OPEN:
            nats.ok(client)

    def _accept(self, client: Client, nats: NatsClient) -> None:
        ctx = self.ctx
        request = ConnectRequest(client, None, None, {})
        request.transient = True
        verdict = self.connecting.decisions.decide(request)
        if verdict.kind != ADMITTED:
            self._refuse(client, verdict)
            return
        client.meter = None if client.listener == BRIDGE_LISTENER else ctx.quotas.meter(ctx.now)
        session = ctx.new_session(client.client_id)
        session.client = client
        client.session = session
        client.state = OPEN
        nats.entitle(client)
        client.keep_alive = self.config.ping_interval
        self.deadlines.watch(client)
        ctx.counters.clients_connected += 1
        ctx.event("connected", client.client_id, client.peer)

    def _refuse(self, client: Client, verdict: ConnectVerdict) -> None:
        """Send a refusal in the protocol of NATS."""
        word = verdict.word or Reason(verdict.reason).name.lower()
        if verdict.kind == RULES_CHANGED:
            self.errors.fail(client, AUTHORIZATION_VIOLATION, verdict.detail, word)
        elif verdict.kind == CUT_OFF:
            self.errors.isolated(client)
        else:
            self.errors.fail(client, "maximum connections exceeded", verdict.detail, word)


def _shown(options: dict[str, object], name: str, before: str) -> str:
    """A short description of the client, for operators."""
    text = _text(options, name)
    return before if text is None else text[:TOLD_MAX]


def _text(options: dict[str, object], name: str) -> str | None:
    value = options.get(name)
    return value if isinstance(value, str) else None
