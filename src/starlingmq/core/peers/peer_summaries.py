"""Applies the summaries of other nodes' filters to the router."""

from __future__ import annotations

from starlingmq.core.router.filter_summary import FilterSummary, LookedUp, parse_chunk, parse_shape, shape_key
from starlingmq.core.router.router import Router
from starlingmq.core.session.session import Session, Subscription


class PeerSummaries:
    _router: Router
    _by_node: dict[int, dict[int, FilterSummary]]  # node -> number of the shape -> summary
    _looked_up: dict[int, LookedUp]  # by the number of the shape

    def __init__(self, router: Router) -> None:
        self._router = router
        self._by_node = {}
        self._looked_up = {}

    def route(self, session: Session, key: bytes, value: int) -> None:
        """An entry of another node's route table that belongs to a summary. The order of entries does not
        matter; those of an unknown kind are ignored."""
        shape = parse_shape(key)
        if shape is not None:
            self._set_shape(session, key, shape[0], shape[1], shape[2], value)
            return
        chunk = parse_chunk(key)
        if chunk is not None:
            summary = self._summary(session.node, chunk[0])
            summary.set_chunk(key, chunk[1], value)
            self._router.look_up_again(summary)
            self._let_go(session.node, summary)

    def _set_shape(self, session: Session, key: bytes, number: int, level: int, pattern: bytes, value: int) -> None:
        summary = self._summary(session.node, number)
        if value == 0:
            if summary.subscription is not None:
                session.remove_subscription(key)
                self._router.unsummarise(summary)
            self._let_go(session.node, summary)
            return
        earlier = summary.subscription
        subscription = Subscription(session, pattern, 2, False, True, b"")
        subscription.durable = value == 2
        session.add_subscription(key, subscription)
        summary.level = level
        summary.subscription = subscription
        if earlier is None:
            self._router.summarise(summary)
        else:
            self._router.look_up_again(summary)

    def _summary(self, node: int, number: int) -> FilterSummary:
        summaries = self._by_node.setdefault(node, {})
        summary = summaries.get(number)
        if summary is None:
            looked_up = self._looked_up.setdefault(number, LookedUp())
            summary = summaries[number] = FilterSummary(number, looked_up)
        return summary

    def _let_go(self, node: int, summary: FilterSummary) -> None:
        if summary.empty():
            summaries = self._by_node[node]
            del summaries[summary.shape]
            if not summaries:
                del self._by_node[node]

    def remove(self, session: Session) -> None:
        """The node is no member any more; its session is about to end."""
        for summary in self._by_node.pop(session.node, {}).values():
            if summary.subscription is not None:
                session.remove_subscription(shape_key(summary.level, summary.subscription.filter))
                self._router.unsummarise(summary)
