"""Another protocol than MQTT on a connection: what it does in its own way."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlingmq.core.connection import Client
    from starlingmq.core.message import Message
    from starlingmq.core.ready import HookAnswer, HookQuestion
    from starlingmq.core.session.session import Session, Subscription


class ProtocolHandler:
    """A client with one is asked nothing of MQTT. Its sessions have no queue and no window: ``deliver`` sends or drops.

    Its subscriptions are marked ``no_local``, as are those that need a closer look, and then found to be its own.
    """

    def handle(self, client: Client, data: bytes) -> None:
        """What ``BrokerState._handle`` does for MQTT: take commands from ``data``, keep the rest."""
        raise NotImplementedError

    def answered(self, client: Client, question: HookQuestion, answer: HookAnswer) -> None:
        """What a hook said. Raises MqttError as MQTT does."""
        raise NotImplementedError

    def deliver(self, client: Client, message: Message, subscription: Subscription, publisher: Session | None) -> None:
        raise NotImplementedError

    def echoes(self) -> bool:
        """Whether its own messages come back to it."""
        raise NotImplementedError

    def settled(self, client: Client, known: bool) -> None:
        """All nodes know of its subscriptions now; or not ``known``: they could not be told in time."""
        raise NotImplementedError

    def drained(self, client: Client) -> None:
        """The transport takes more again."""
        raise NotImplementedError

    def silent(self, client: Client) -> bool:
        """Nothing came for ``Client.keep_alive``: whether that is the end."""
        raise NotImplementedError

    def last_words(self, client: Client, reason: int) -> None:
        """Say why the connection ends (a ``Reason``); it is closed right after."""
        raise NotImplementedError

    def revoke(self, client: Client) -> None:
        """Its rights have changed: end the subscriptions that go beyond them."""
        raise NotImplementedError

    def shut(self, client: Client) -> None:
        """The connection is over: let its subscriptions go."""
        raise NotImplementedError
