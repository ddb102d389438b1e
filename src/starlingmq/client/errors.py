"""The exceptions of the client.

Exception
+-- ClientError              the base of all; ``reason`` is the MQTT reason code, 0x80 if there is none
    +-- ConnectFailed        no connection: connection refused, unknown host, TLS, timeout
    |   +-- ConnectRefused   the server answered CONNECT with a refusal
    +-- ConnectionLost       an open connection ended and the client does not reconnect
    +-- PublishFailed        the server refused the message, or its announced limits exclude it
    +-- SubscribeFailed      the server refused at least one filter; ``reasons`` has an entry per filter
"""

from __future__ import annotations

from collections.abc import Sequence

from starlingmq.wire.properties import REASON_STRING, Properties
from starlingmq.wire.reasons import Reason


def reason_name(reason: int) -> str:
    """Return a reason code in the words of the specification: ``not authorized (0x87)``."""
    try:
        words = Reason(reason).name.lower().replace("_", " ")
    except ValueError:
        words = "unknown reason"
    return f"{words} (0x{reason:02x})"


def explain(reason: int, properties: Properties | None = None) -> str:
    """Return the reason by name, and the server's Reason String if it sent one."""
    text = reason_name(reason)
    said = properties.get(REASON_STRING) if properties else None
    return f"{text}: {said}" if isinstance(said, str) else text


class ClientError(Exception):
    reason: int

    def __init__(self, message: str, reason: int = Reason.UNSPECIFIED_ERROR) -> None:
        super().__init__(message)
        self.reason = int(reason)


class ConnectFailed(ClientError):
    pass


class ConnectRefused(ConnectFailed):
    properties: Properties

    def __init__(self, reason: int, properties: Properties) -> None:
        super().__init__(f"the server refused the connection: {explain(reason, properties)}", reason)
        self.properties = properties


class ConnectionLost(ClientError):
    pass


class PublishFailed(ClientError):
    pass


class SubscribeFailed(ClientError):
    reasons: list[int]

    def __init__(self, filters: Sequence[str], reasons: list[int]) -> None:
        refused = [(name, code) for name, code in zip(filters, reasons, strict=False) if code >= 0x80]
        lines = "; ".join(f"{name}: {reason_name(code)}" for name, code in refused)
        super().__init__(f"subscription refused: {lines}", refused[0][1])
        self.reasons = reasons
