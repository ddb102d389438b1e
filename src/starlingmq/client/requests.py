"""Unanswered SUBSCRIBE and UNSUBSCRIBE requests, and the subscriptions in effect.

A request that is unanswered when the connection is lost is sent again as a new packet. When a reconnection finds no
session, the client first renews the subscriptions in effect; no caller waits for these answers (token 0).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from starlingmq.client.client_topics import check_filter
from starlingmq.client.options import Subscription
from starlingmq.client.window import PacketIds
from starlingmq.wire.packets import Packet, Subscribe, SubscribeRequest, Unsubscribe
from starlingmq.wire.properties import Properties
from starlingmq.wire.reasons import ProtocolError

RENEWED: Final = 0  # the token of requests that the client makes itself
RENEW_BATCH: Final = 100  # filters per SUBSCRIBE when renewing


class Request:
    __slots__ = ("filters", "properties", "subscriptions", "token")

    def __init__(
        self, token: int, subscriptions: list[Subscription], filters: list[str], properties: Properties
    ) -> None:
        self.token = token
        self.subscriptions = subscriptions  # empty for UNSUBSCRIBE
        self.filters = filters
        self.properties = properties

    def packet(self, packet_id: int) -> Packet:
        if not self.subscriptions:
            return Unsubscribe(packet_id, [name.encode() for name in self.filters], self.properties)
        lines = [
            SubscribeRequest(
                each.filter.encode(), each.qos, each.no_local, each.retain_as_published, each.retain_handling
            )
            for each in self.subscriptions
        ]
        return Subscribe(packet_id, lines, self.properties)


class Requests:
    def __init__(self, ids: PacketIds) -> None:
        self._ids = ids
        self._waiting: deque[Request] = deque()
        self._sent: dict[int, Request] = {}
        self._in_effect: dict[str, tuple[Subscription, Properties]] = {}

    def __len__(self) -> int:
        """Return the number of unanswered requests."""
        return len(self._waiting) + len(self._sent)

    def subscribe(self, token: int, subscriptions: list[Subscription], properties: Properties) -> None:
        if not subscriptions:
            raise ValueError("subscribe needs at least one filter")  # [MQTT-3.8.3-2]
        for each in subscriptions:
            check_filter(each.filter)
            if each.qos not in (0, 1, 2):
                raise ValueError(f"the QoS of a subscription is 0, 1 or 2, not {each.qos!r}")
        self._waiting.append(Request(token, subscriptions, [each.filter for each in subscriptions], properties))

    def unsubscribe(self, token: int, filters: list[str], properties: Properties) -> None:
        if not filters:
            raise ValueError("unsubscribe needs at least one filter")  # [MQTT-3.10.3-2]
        for each in filters:
            check_filter(each)
        self._waiting.append(Request(token, [], filters, properties))

    def disconnected(self) -> None:
        for packet_id, request in reversed(self._sent.items()):
            self._ids.give_back(packet_id)
            if request.token != RENEWED:  # renewals are derived again from the subscriptions in effect
                self._waiting.appendleft(request)
        self._sent.clear()

    def connected(self, session_present: bool) -> None:
        if session_present:
            return
        renewals: list[Request] = []
        for subscription, properties in self._in_effect.values():
            last = renewals[-1] if renewals else None
            if last is None or last.properties != properties or len(last.subscriptions) >= RENEW_BATCH:
                last = Request(RENEWED, [], [], properties)
                renewals.append(last)
            last.subscriptions.append(subscription)
            last.filters.append(subscription.filter)
        self._waiting.extendleft(reversed(renewals))

    def due(self) -> list[Packet]:
        """Return the packets to send now, in the order of the requests."""
        packets: list[Packet] = []
        while self._waiting and self._ids.free():
            request = self._waiting.popleft()
            packet_id = self._ids.take()
            self._sent[packet_id] = request
            packets.append(request.packet(packet_id))
        return packets

    def suback(self, packet_id: int, reasons: list[int]) -> int | None:
        """Return the token of the answered SUBSCRIBE; None if no such request is open. Raises for a wrong number of
        reasons.
        """
        request = self._sent.get(packet_id)
        if request is None or not request.subscriptions:
            return None
        if len(reasons) != len(request.subscriptions):  # [MQTT-3.8.4-5]
            raise ProtocolError(f"SUBACK has {len(reasons)} reason codes for {len(request.subscriptions)} filters")
        self._forget(packet_id)
        for subscription, reason in zip(request.subscriptions, reasons, strict=True):
            if reason < 0x80:
                self._in_effect[subscription.filter] = (subscription, request.properties)
            else:
                self._in_effect.pop(subscription.filter, None)
        return request.token

    def unsuback(self, packet_id: int) -> int | None:
        request = self._sent.get(packet_id)
        if request is None or request.subscriptions:
            return None
        self._forget(packet_id)
        for name in request.filters:
            self._in_effect.pop(name, None)
        return request.token

    def _forget(self, packet_id: int) -> None:
        del self._sent[packet_id]
        self._ids.give_back(packet_id)
