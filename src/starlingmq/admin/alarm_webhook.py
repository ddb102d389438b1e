"""Tells an HTTP service of alarms: one POST of JSON for each that begins or ends, in their order.

``{"event": "begun" | "ended" | "test", "node", "alarm"}``, with the alarm as the API has it. A user and password in the
URL are sent as Basic authentication. A status below 300 is a receipt. Anything else is repeated a few times with
growing pauses; then the message is given up, and the log says so.
At most ``WAITING_MAX`` messages wait.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections import deque
from collections.abc import Callable
from time import time
from typing import Final
from urllib.parse import unquote, urlsplit

from msgspec import json

from starlingmq.admin.alarms import Alarm
from starlingmq.admin.periodic import ended
from starlingmq.admin.sessions import when
from starlingmq.net.connector_counts import ConnectorCounts

log = logging.getLogger("starlingmq.alarms")

WAITING_MAX: Final = 100
ATTEMPTS: Final = 5
PAUSE: Final = 2.0  # seconds before the first repetition; it doubles
TIMEOUT: Final = 5.0


class AlarmWebhook:
    """``url`` is asked for each message; "": none is sent."""

    def __init__(self, node: str, url: Callable[[], str]) -> None:
        self._node = node
        self._url = url
        self.counts = ConnectorCounts()
        self._waiting: deque[bytes] = deque()
        self._task: asyncio.Task[None] | None = None

    def tell(self, alarm: Alarm) -> None:
        if not self._url():
            return
        if len(self._waiting) == WAITING_MAX:
            self._waiting.popleft()
            log.warning("alarms.webhook: too many alarms wait; the oldest one is not sent")
        self._waiting.append(self._message("begun" if alarm.ended is None else "ended", alarm))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._send_all())

    async def test(self) -> str:
        """Send an alarm of the kind "test" once; return the problem, "" if the service accepts it."""
        now = when(time())
        text = "an operator tests alarms.webhook"
        alarm = Alarm("test", "", "warning", text, "nothing is to be done", now, now, self._node)
        return await self._send(self._message("test", alarm))

    def _message(self, event: str, alarm: Alarm) -> bytes:
        return json.encode({"event": event, "node": self._node, "alarm": alarm})

    async def stop(self) -> None:
        await ended(self._task)

    async def _send_all(self) -> None:
        while self._waiting:
            message = self._waiting.popleft()
            problem = ""
            for attempt in range(ATTEMPTS):
                if attempt:
                    await asyncio.sleep(PAUSE * 2 ** (attempt - 1))
                problem = await self._send(message)
                if not problem:
                    break
            if problem:
                log.warning("alarms.webhook does not accept alarms, so one is given up: %s", problem)

    async def _send(self, message: bytes) -> str:
        """Send a message once; return the problem, "" if it was received."""
        url = self._url()
        if not url:
            return ""
        problem = await asyncio.to_thread(_post, url, message)
        if problem:
            self.counts.fail(problem)
        else:
            self.counts.accept()
        return problem


def _post(url: str, message: bytes) -> str:
    """The reason why it was not received; "" if it was. The URL is secret."""
    import http.client
    import urllib.error
    import urllib.request  # with email and http, which a broker without a webhook does not load

    address, login = _without_login(url)
    request = urllib.request.Request(address, message, {"content-type": "application/json"})  # noqa: S310  checked in config
    if login:
        request.add_unredirected_header("authorization", login)  # never to the target of a redirect
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT) as answer:
            return "" if answer.status < 300 else f"it answers with status {answer.status}"
    except urllib.error.HTTPError as error:
        return f"it answers with status {error.code}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {getattr(error, 'reason', '') or 'no answer'}"


def _without_login(url: str) -> tuple[str, str]:
    """The URL without user and password, and the credentials of Basic authentication (RFC 7617); "" if it has none."""
    parts = urlsplit(url)
    login, at, address = parts.netloc.rpartition("@")
    if not at:
        return url, ""
    user, _, password = login.partition(":")
    credentials = f"{unquote(user)}:{unquote(password)}".encode()
    return parts._replace(netloc=address).geturl(), f"Basic {b64encode(credentials).decode()}"
