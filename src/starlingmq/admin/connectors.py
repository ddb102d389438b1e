"""Services outside the broker that it calls: what they accepted and what failed, and a test of each.

| name | is called | set by | the test sends |
|---|---|---|---|
| ``auth.http`` | when a client connects | ``auth.http.url`` | the question about a client that does not exist |
| ``alarms.webhook`` | when an alarm begins or ends | ``alarms.webhook`` | an alarm of the kind "test" |
| ``tracing`` | for batches of spans | ``tracing.endpoint`` | a span with the name "connector test" |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct

from starlingmq.admin.alarm_webhook import AlarmWebhook
from starlingmq.admin.declared_actions import ALL, NODE, action
from starlingmq.admin.local_node import LocalNode
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.sessions import when
from starlingmq.config.secret_masking import HIDDEN, without_login
from starlingmq.net.connector_counts import ConnectorCounts

TEST_SECONDS: Final = 10.0  # for the service to answer a test, whatever its own time-out
NODE_SECONDS: Final = 15.0  # for another node to tell the result: a slow service is no slow node


class ConnectorInfo(Struct, frozen=True):
    """``node`` is set in lists of several nodes."""

    name: str
    address: Annotated[str, Meta(description="Its URL without secrets; *** if all of it is secret.")]
    accepted: Annotated[int, Meta(description="Requests that it accepted since the start; spans, for tracing.")]
    failed: int
    failing: Annotated[int, Meta(description="Requests that failed since it last accepted one.")]
    accepted_at: Annotated[str | None, Meta(description="When it last accepted a request; null: never.")]
    failed_at: str | None
    problem: Annotated[str, Meta(description="Why the last failed request failed.")]
    node: str = ""


class ConnectorName(Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=100, description="Its name, such as auth.http.")]


class ConnectorTested(Struct, frozen=True):
    accepted: bool
    milliseconds: float
    problem: str


class Connector(NamedTuple):
    name: str
    address: str
    counts: ConnectorCounts
    test: Callable[[], Awaitable[str]]


class NodeConnectors:
    """Those of this node: the ones that its settings name."""

    def __init__(self, local_node: LocalNode, webhook: AlarmWebhook) -> None:
        self._local_node = local_node
        self._webhook = webhook
        self._testing = asyncio.Lock()

    def present(self) -> list[Connector]:
        config = self._local_node.config()
        found = []
        access = self._local_node.access
        callout = None if access.chain is None else access.chain.callout
        if callout is not None:
            found.append(
                Connector("auth.http", without_login(config.auth.http.url), access.callout_counts, callout.test)
            )
        if config.alarms.webhook:
            found.append(Connector("alarms.webhook", HIDDEN, self._webhook.counts, self._webhook.test))
        tracing = self._local_node.tracing()
        if tracing is not None:
            counting = tracing.export.counting
            found.append(Connector("tracing", counting.endpoint, counting.counts, tracing.export.test))
        return found

    @action(
        "connectors",
        "GET /connectors",
        ALL,
        order={"connectors": lambda found: sorted(found, key=lambda one: (one.name, one.node))},
    )
    async def connectors(self) -> list[ConnectorInfo]:
        """List services that nodes call, with requests accepted and failed."""
        return [_info(one) for one in self.present()]

    @action(
        "connectors.test",
        "POST /connectors/test",
        NODE,
        body="TestedConnector",
        audit="tested the connector {name!r}; accepted: {accepted}",
        seconds=NODE_SECONDS,
    )
    async def test(self, request: ConnectorName) -> ConnectorTested:
        """Call a service once, and report whether it accepts. Raises AdminError."""
        found = {one.name: one for one in self.present()}
        if request.name not in found:
            known = ", ".join(found) or "none is set"
            raise AdminError(404, f"this node has no connector {request.name!r}; connectors: {known}")
        if self._testing.locked():
            raise AdminError(409, "a connector is being tested; try again when its result is there")
        async with self._testing:
            start = perf_counter()
            try:
                async with asyncio.timeout(TEST_SECONDS):
                    problem = await found[request.name].test()
            except TimeoutError:
                problem = f"no answer within {TEST_SECONDS:g} s"
                found[request.name].counts.fail(problem)
        return ConnectorTested(not problem, round((perf_counter() - start) * 1000, 1), problem)


def _info(one: Connector) -> ConnectorInfo:
    counts = one.counts
    return ConnectorInfo(
        one.name,
        one.address,
        counts.accepted,
        counts.failed,
        counts.row,
        when(counts.accepted_at) if counts.accepted_at else None,
        when(counts.failed_at) if counts.failed_at else None,
        counts.problem,
    )
