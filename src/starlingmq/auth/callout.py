"""Authentication by an HTTP service: a POST of JSON, which the service answers by allow, deny or ignore.

The request: ``client_id``, ``username``, ``password`` (text), ``peer``, ``listener``, ``certificate_name`` and
``version``. The response, with status 200: ``{"result": "allow" | "deny" | "ignore"}``, and optionally ``username``,
``rules`` (as in the ACL file) and ``cache`` (seconds). Any other response, or none in time, refuses the client with
0x88 (server unavailable).
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final, Literal

import httpx
import msgspec
from msgspec import Meta

from starlingmq.auth.acl import AclRule, rules_of
from starlingmq.auth.checks import Checks, ChecksBusy
from starlingmq.auth.method import BUSY, REFUSED, Verdict
from starlingmq.config.secret_masking import without_login
from starlingmq.config.section_types import ConfigError
from starlingmq.wire.reasons import Reason

if TYPE_CHECKING:
    from starlingmq.auth.automatic_bans import AutomaticBans
    from starlingmq.config.auth_section import HttpAuthConfig
    from starlingmq.hooks import AuthRequest
    from starlingmq.log import SparingLog

NO_ANSWER: Final = Verdict(Reason.SERVER_UNAVAILABLE)
REMEMBERED_MAX: Final = 100_000
ANSWER_MAX: Final = 64 * 1024  # bytes


class CalloutAnswer(msgspec.Struct, frozen=True):
    result: Literal["allow", "deny", "ignore"]
    username: str | None = None
    rules: tuple[AclRule, ...] | None = None
    cache: Annotated[float, Meta(ge=0, le=86400)] | None = None


class Callout:
    def __init__(self, config: HttpAuthConfig, bans: AutomaticBans, lines: SparingLog) -> None:
        headers = dict(entry.split(":", 1) for entry in config.headers)
        self._config = config
        self._lines = lines
        self._http = httpx.AsyncClient(
            timeout=config.timeout,
            headers={name.strip(): value.strip() for name, value in headers.items()},
            limits=httpx.Limits(max_connections=config.connections),
            trust_env=False,
        )
        self._log_url = without_login(config.url)  # for the log
        self._secret = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, tuple[float, Verdict | None]] = OrderedDict()
        self._checks = Checks(config.connections, config.waiting_per_address, bans, max(1, config.connections // 2))

    async def check(self, request: AuthRequest) -> Verdict | None:
        if request.method:
            return None
        question = msgspec.json.encode(
            {
                "client_id": request.client_id,
                "username": request.username,
                "password": None if request.password is None else request.password.decode(errors="replace"),
                "peer": request.peer,
                "listener": request.listener,
                "certificate_name": request.certificate_name,
                "version": request.version,
            }
        )
        asked = self._digest(request)
        known = self._known.get(asked)
        if known is not None and known[0] > monotonic():
            return known[1]
        allowed = known is not None and known[1] is not None and known[1].reason == Reason.SUCCESS
        try:
            verdict, seconds = await self._checks.run(request, allowed, lambda: self._ask(question))
        except ChecksBusy:
            return BUSY
        if seconds > 0:
            self._known[asked] = (monotonic() + seconds, verdict)
            self._known.move_to_end(asked)
            if len(self._known) > REMEMBERED_MAX:
                self._known.popitem(last=False)
        return verdict

    def holds(self, username: str, proof: object) -> bool:
        """The service is asked only when a client connects."""
        return True

    async def close(self) -> None:
        await self._checks.close()
        await self._http.aclose()

    def _digest(self, request: AuthRequest) -> bytes:
        """The cache key of an answer: the whole request but for the client's port."""
        host = request.peer.rpartition(":")[0]
        parts = (
            request.client_id,
            request.username,
            request.password,
            host,
            request.listener,
            request.certificate_name,
        )
        return hashlib.blake2b(repr(parts).encode(), key=self._secret, digest_size=32).digest()

    async def _ask(self, question: bytes) -> tuple[Verdict | None, float]:
        """The verdict, and for how long it may be cached."""
        try:
            headers = {"content-type": "application/json"}
            async with self._http.stream("POST", self._config.url, content=question, headers=headers) as response:
                if response.status_code != 200:
                    status = response.status_code
                    self._lines.warning("%s answers with status %d, so a client is refused", self._log_url, status)
                    return NO_ANSWER, 0.0
                body = b""
                async for piece in response.aiter_bytes():
                    body += piece
                    if len(body) > ANSWER_MAX:
                        raise ValueError(f"a response of more than {ANSWER_MAX} bytes")
            answer = msgspec.json.decode(body, type=CalloutAnswer)
            rules = None if answer.rules is None else rules_of(answer.rules)
        except (httpx.HTTPError, ValueError, ConfigError) as error:  # msgspec's errors are ValueErrors
            self._lines.warning(
                "%s failed, so a client is refused: %s", self._log_url, str(error) or type(error).__name__
            )
            return NO_ANSWER, 0.0
        seconds = self._config.cache if answer.cache is None else answer.cache
        if answer.result == "ignore":
            return None, seconds
        if answer.result == "deny":
            return REFUSED, seconds
        return Verdict(username=answer.username, rules=rules), seconds
