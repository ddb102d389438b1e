"""Logs clients that connect and disconnect (``log.connections``). Loaded only if that is set."""

from __future__ import annotations

import logging
from collections.abc import Callable

from starlingmq.core.context.ready import Event
from starlingmq.log import HEALTHY, NoticeLog

log = logging.getLogger("starlingmq.clients")


class ConnectionLog:
    """Takes the events of the core, logs some of them at the rate of ``notices``, and passes all on to ``hook``."""

    def __init__(self, notices: NoticeLog, hook: Callable[[Event], None] | None) -> None:
        self._notices = notices
        self._hook = hook

    def event(self, event: Event) -> None:
        if event.kind in HEALTHY and log.isEnabledFor(logging.INFO) and self._notices.may_log(event.kind):
            extra = {"client_id": event.client_id, "reason": event.kind}
            if event.kind == "connected":
                log.info("client %r connected from %s", event.client_id, event.detail, extra=extra)
            else:
                log.info("client %r disconnected: %s", event.client_id, event.detail, extra=extra)
        if self._hook is not None:
            self._hook(event)
