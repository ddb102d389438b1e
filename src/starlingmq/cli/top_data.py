"""The data of ``starlingmq top``: rates of nodes, clients and topics, from consecutive answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

Result = dict[str, Any]
Ask = Callable[..., Result]

TOPICS_MAX: Final = 5000  # topics counted
RATE: Final = 200  # messages per second and node in the sample that topics are counted from
ROWS: Final = 200
VIEWS: Final = ("clients", "nodes", "topics")
SORTS: Final = {
    "clients": ("messages_in", "bytes_in", "bytes_out", "queued", "inflight", "dropped", "subscriptions"),
    "nodes": ("messages_in", "messages_out", "bytes_in", "bytes_out", "clients", "queued", "dropped"),
    "topics": ("messages", "bytes"),
}


class TopData:
    """``ask`` sends a request to the broker; ``look`` returns a view. Rates are available from the second call on."""

    def __init__(self, ask: Ask, node: str) -> None:
        self._ask = ask
        self._node = node
        self._totals: dict[str, Result] = {}
        self._trace = ""
        self._messages: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def look(self, view: str, sort: str) -> Result:
        """Return ``rows``, sorted by ``sort``, and ``missing`` nodes. Raises CommandError."""
        if view == "nodes":
            rows, missing = self._nodes()
        elif view == "topics":
            rows, missing = self._topics()
        else:
            found = self._ask("activity", sort=sort, limit=str(ROWS), node=self._node)
            return {"view": view, "sort": sort, "rows": found["clients"], "missing": found["missing"]}
        rows.sort(key=lambda row: row[sort], reverse=True)
        return {"view": view, "sort": sort, "rows": rows[:ROWS], "missing": missing}

    def _nodes(self) -> tuple[list[Result], list[Result]]:
        found = self._ask("overviews")
        rows = [self._rates(one) for one in found["nodes"] if self._node in ("", one["node"])]
        return rows, found["missing"]

    def _rates(self, now: Result) -> Result:
        before = self._totals.get(now["node"], now)
        self._totals[now["node"]] = now
        seconds = now["now"] - before["now"]

        def rate(name: str) -> float:
            change = now["totals"][name] - before["totals"][name]
            return round(change / seconds, 1) if seconds > 0 and change >= 0 else 0.0

        return {
            "node": now["node"],
            "ready": now["ready"]["status"],
            "messages_in": rate("messages_received"),
            "messages_out": rate("messages_sent"),
            "bytes_in": rate("bytes_received"),
            "bytes_out": rate("bytes_sent"),
            "forwarded": rate("forwards_sent"),
            "clients": now["holds"]["clients"],
            "sessions": now["holds"]["sessions"],
            "queued": now["holds"]["queued"],
            "dropped": rate("dropped"),
            "turn_p99_ms": now["latency"]["turn"]["p99_ms"],
        }

    def _topics(self) -> tuple[list[Result], list[Result]]:
        """Count topics in a sample of messages: the shares are representative, the rates are not."""
        if not self._trace:
            begun = self._ask("trace.begin", topic="#", tail="yes", rate=str(RATE))
            self._trace = begun["trace"]
        found = self._ask("trace.next", trace=self._trace)
        for told in found["events"]:
            topic, known = told["topic"], told["topic"] in self._messages
            if self._node in ("", told["node"]) and (known or len(self._messages) < TOPICS_MAX):
                self._messages[topic] += 1
                self._bytes[topic] += told["size"]
        total = self._messages.total()
        rows: list[Result] = [
            {"topic": topic, "messages": count, "share": round(count / total, 4), "bytes": self._bytes[topic]}
            for topic, count in self._messages.items()
        ]
        return rows, found["missing"]

    def close(self) -> None:
        """Raises CommandError."""
        if self._trace:
            self._ask("trace.end", trace=self._trace)
            self._trace = ""
