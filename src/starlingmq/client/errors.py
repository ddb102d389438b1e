"""What can go wrong for someone who uses the client.

Exception
+-- ClientError              anything below; ``reason`` is the MQTT reason code, 0x80 where nobody gave one
    +-- ConnectFailed        no connection came about: nobody listens, no such host, TLS, timeout
    |   +-- ConnectRefused   the server answered CONNECT with a refusal
    +-- ConnectionLost       an open connection ended and will not come back by itself
    +-- PublishFailed        the server or its announced limits would not take the message
    +-- SubscribeFailed      at least one filter was refused; ``reasons`` has an entry per filter
"""

from __future__ import annotations

from collections.abc import Sequence

from starlingmq.wire.properties import REASON_STRING, Properties
from starlingmq.wire.reasons import Reason


def reason_name(reason: int) -> str:
    """A reason code in the words of the specification: ``not authorized (0x87)``."""
    try:
        words = Reason(reason).name.lower().replace("_", " ")
    except ValueError:
        words = "unknown reason"
    return f"{words} (0x{reason:02x})"


def explain(reason: int, properties: Properties | None = None) -> str:
    """The reason by name, and the server's own sentence about it when it sent one."""
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
