"""A pytest plugin: the fixture ``mqtt_broker``, a real broker on a free port for each test that requests it.

::

    @pytest.mark.mqtt_broker(mqtt={"max_qos": 1}, authenticate=lambda request: request.username == "ann")
    def test_the_thermometer(mqtt_broker):
        Thermometer(mqtt_broker.host, mqtt_broker.port).report(21.5)
        assert mqtt_broker.wait_for("home/+/temperature").payload == b"21.5"

The broker runs in a thread with its own event loop, so the test and its clients may block. The marker takes the
sections of the configuration as dictionaries, ``listeners``, and the hooks of ``starlingmq.Broker``; the fixture
``mqtt_broker_options`` gives such options to all tests of a module, and the marker wins. ``MqttBroker`` is for fixtures
of another scope.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:  # imported at first use, because every pytest run on the machine imports this file
    from starlingmq.core.context.ready import Event
    from starlingmq.hooks import Publication
    from starlingmq.node.assembly import Broker

T = TypeVar("T")

HOOKS: Final = ("authenticate", "authorize", "on_publish", "on_event")
REMEMBERED: Final = 100_000  # messages and events that a broker remembers for its test; the oldest are removed
SHUTDOWN_SECONDS: Final = 0.5  # for clients that the test left open and that do not react to the shutdown
THREAD_SECONDS: Final = 10.0  # until a broker that does not start or stop counts as stuck


class EventLog(Generic[T]):
    """Events in order, added by the broker's thread and awaited by others."""

    def __init__(self) -> None:
        self.items: deque[T] = deque(maxlen=REMEMBERED)
        self._untaken: deque[T] = deque(maxlen=REMEMBERED)
        self._news = threading.Condition()

    def add(self, item: T) -> None:
        with self._news:
            self.items.append(item)
            self._untaken.append(item)
            self._news.notify_all()

    def take(self, wanted: Callable[[T], bool], seconds: float) -> T | None:
        """The first matching item that was not taken before; None after ``seconds`` without one."""
        deadline = time.monotonic() + seconds
        with self._news:
            while True:
                for item in self._untaken:
                    if wanted(item):
                        self._untaken.remove(item)
                        return item
                if not self._news.wait(deadline - time.monotonic()):
                    return None


class MqttBroker:
    """A broker in a thread, from ``with`` to the end of the block. Options are those of the marker.

    ``url`` is where it listens, ``host`` and ``port`` the parts of that; ``broker`` belongs to the broker's thread.
    """

    host: str
    port: int
    url: str
    broker: Broker

    def __init__(self, **options: Any) -> None:
        self._hooks = {name: options.pop(name) for name in HOOKS if name in options}
        options.setdefault("listeners", ["mqtt://127.0.0.1:0"])
        options.setdefault("node", {}).setdefault("shutdown_timeout", SHUTDOWN_SECONDS)
        self._options = options
        self._messages: EventLog[Publication] = EventLog()
        self._events: EventLog[Event] = EventLog()
        self._stop = asyncio.Event()
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, name="mqtt_broker", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop = self._started.result(THREAD_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(THREAD_SECONDS)
        if self._thread.is_alive():
            raise RuntimeError("the broker did not stop in time")

    @property
    def addresses(self) -> list[str]:
        """The URLs of all its listeners."""
        return self.broker.addresses

    @property
    def messages(self) -> list[Publication]:
        """The messages of clients (wills included), in the order in which the broker accepted them."""
        return list(self._messages.items)

    def wait_for(self, filter: str, timeout: float = 5.0) -> Publication:
        """The first message whose topic ``filter`` matches and that no earlier call returned.

        Raises TimeoutError, which lists the other messages, after ``timeout`` seconds.
        """
        from starlingmq.core.topics.topics import matches

        wanted = filter.encode()
        message = self._messages.take(lambda message: matches(wanted, message.topic.encode()), timeout)
        if message is None:
            others = sorted({message.topic for message in self.messages})
            raise TimeoutError(f"no message on {filter} within {timeout} s, only on {others}")
        return message

    def wait_for_event(self, kind: str, client_id: str | None = None, timeout: float = 5.0) -> Event:
        """The first event of this kind ("connected", "subscribed", ..., see ``starlingmq.core.context.ready.Event``) of
        this client (None: of any) that no earlier call returned. Raises TimeoutError after ``timeout`` seconds."""
        event = self._events.take(lambda event: event.kind == kind and client_id in (None, event.client_id), timeout)
        if event is None:
            others = [f"{event.kind} {event.client_id}" for event in self._events.items]
            raise TimeoutError(f"no event {kind} of {client_id or 'any client'} within {timeout} s, only {others}")
        return event

    # In the broker's thread

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        from starlingmq.config.settings import from_tree
        from starlingmq.node.assembly import Broker

        hooks = {**self._hooks, "on_publish": self._on_publish, "on_event": self._on_event}
        async with Broker(from_tree(self._options), **hooks) as self.broker:
            self.url = self.broker.addresses[0]
            address = urlsplit(self.url)
            self.host, self.port = address.hostname or "", address.port or 0
            self._started.set_result(asyncio.get_running_loop())
            await self._stop.wait()

    async def _record(self, message: Publication, kept: Any) -> Any:
        kept = await kept
        if kept is not False:
            self._messages.add(message)
        return kept

    def _on_publish(self, message: Publication) -> Any:
        hook = self._hooks.get("on_publish")
        kept = None if hook is None else hook(message)
        if inspect.isawaitable(kept):
            return self._record(message, kept)
        if kept is not False:
            self._messages.add(message)
        return kept

    def _on_event(self, event: Event) -> None:
        self._events.add(event)
        if "on_event" in self._hooks:
            self._hooks["on_event"](event)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "mqtt_broker(**options): configuration sections, listeners and hooks for the mqtt_broker fixture"
    )


@pytest.fixture
def mqtt_broker_options() -> dict[str, Any]:
    """Options of ``mqtt_broker`` for all tests in the scope of an override."""
    return {}


@pytest.fixture
def mqtt_broker(request: pytest.FixtureRequest, mqtt_broker_options: dict[str, Any]) -> Iterator[MqttBroker]:
    """A broker for one test; it and its connections end with the test."""
    options = dict(mqtt_broker_options)
    for marker in reversed(list(request.node.iter_markers("mqtt_broker"))):  # the nearest one last, because it wins
        options.update(marker.kwargs)
    with MqttBroker(**options) as broker:
        yield broker
