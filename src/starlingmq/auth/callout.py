"""Authentication by an HTTP service: a POST of JSON, which the service answers by allow, deny or ignore.

The request: ``client_id``, ``username``, ``password`` (text), ``peer``, ``listener``, ``certificate_name`` and
``version``. The response, with status 200: ``{"result": "allow" | "deny" | "ignore"}``, and optionally ``username``
(with "deny": the user for whom the failure counts), ``rules`` (as in the ACL file) and ``cache`` (seconds). Any other
response, or none in time, refuses the client with 0x88 (server unavailable).
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

from starlingmq.auth.acl import AclRule, Rule, rules_of
from starlingmq.auth.checks import Checks, ChecksBusy
from starlingmq.auth.method import BUSY, Verdict, refused
from starlingmq.config.secret_masking import without_login
from starlingmq.config.section_types import ConfigError
from starlingmq.wire.reasons import Reason

if TYPE_CHECKING:
    from starlingmq.auth.automatic_bans import AutomaticBans
    from starlingmq.config.auth_section import HttpAuthConfig
    from starlingmq.hooks import AuthRequest
    from starlingmq.log import SparingLog
    from starlingmq.net.connector_counts import ConnectorCounts

NO_ANSWER: Final = Verdict(Reason.SERVER_UNAVAILABLE, detail="the login service gives no answer (auth.http)")
REMEMBERED_MAX: Final = 100_000
ANSWER_MAX: Final = 64 * 1024  # bytes
TEST_CLIENT: Final = "starlingmq-connector-test"


class CalloutAnswer(msgspec.Struct, frozen=True):
    result: Literal["allow", "deny", "ignore"]
    username: str | None = None
    rules: tuple[AclRule, ...] | None = None
    cache: Annotated[float, Meta(ge=0, le=86400)] | None = None


class CalloutError(Exception):
    """The service did not answer as it should."""


class Callout:
    """``counts`` has its answers and failures, also those of earlier settings."""

    def __init__(self, config: HttpAuthConfig, bans: AutomaticBans, lines: SparingLog, counts: ConnectorCounts) -> None:
        headers = dict(entry.split(":", 1) for entry in config.headers)
        self._config = config
        self._lines = lines
        self._counts = counts
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
        question = _question(
            request.client_id,
            request.username,
            None if request.password is None else request.password.decode(errors="replace"),
            request.peer,
            request.listener,
            request.certificate_name,
            request.version,
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

    async def test(self) -> str:
        """Ask about a client that does not exist; return the problem, "" if the service gives a valid answer."""
        try:
            await self._call(_question(TEST_CLIENT, TEST_CLIENT, "", "127.0.0.1:0", "test", "", 5))
        except CalloutError as error:
            return str(error)
        return ""

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
            request.version,
        )
        return hashlib.blake2b(repr(parts).encode(), key=self._secret, digest_size=32).digest()

    async def _ask(self, question: bytes) -> tuple[Verdict | None, float]:
        """The verdict, and for how long it may be cached."""
        try:
            answer, rules = await self._call(question)
        except CalloutError as error:
            self._lines.warning("%s failed, so a client is refused: %s", self._log_url, error)
            return NO_ANSWER, 0.0
        seconds = self._config.cache if answer.cache is None else answer.cache
        if answer.result == "ignore":
            return None, seconds
        if answer.result == "deny":
            return refused(answer.username), seconds
        return Verdict(username=answer.username, rules=rules), seconds

    async def _call(self, question: bytes) -> tuple[CalloutAnswer, tuple[Rule, ...] | None]:
        """The answer of the service, with its rules. Raises CalloutError."""
        try:
            headers = {"content-type": "application/json"}
            async with self._http.stream("POST", self._config.url, content=question, headers=headers) as response:
                if response.status_code != 200:
                    raise self._failed(f"it answers with status {response.status_code}")
                body = b""
                async for piece in response.aiter_bytes():
                    body += piece
                    if len(body) > ANSWER_MAX:
                        raise ValueError(f"a response of more than {ANSWER_MAX} bytes")
            answer = msgspec.json.decode(body, type=CalloutAnswer)
            rules = None if answer.rules is None else rules_of(answer.rules)
        except (httpx.HTTPError, ValueError, ConfigError) as error:  # msgspec's errors are ValueErrors
            raise self._failed(str(error) or type(error).__name__) from None
        self._counts.accept()
        return answer, rules

    def _failed(self, problem: str) -> CalloutError:
        self._counts.fail(problem)
        return CalloutError(problem)


def _question(
    client_id: str,
    username: str | None,
    password: str | None,
    peer: str,
    listener: str,
    certificate_name: str,
    version: int,
) -> bytes:
    return msgspec.json.encode(
        {
            "client_id": client_id,
            "username": username,
            "password": password,
            "peer": peer,
            "listener": listener,
            "certificate_name": certificate_name,
            "version": version,
        }
    )
