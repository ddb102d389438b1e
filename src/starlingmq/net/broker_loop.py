"""asyncio's event loop with a selector that serves the clients' plain sockets itself (``net/client_sockets.py``).

HTTP, gRPC, TLS, WebSocket, signals and futures work as on any event loop of asyncio: their descriptors are polled
together with the clients', and returned to asyncio. ``select`` does not return while only client sockets are ready, so
it must know when asyncio has something to do. asyncio has something to do when a callback or a timer is added, and all
of those pass through ``call_soon`` and ``call_at``. Other threads wake the loop by a descriptor.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Context
from typing import Any, TypeVarTuple

from starlingmq.net.client_socket import OUT
from starlingmq.net.client_sockets import IN, ClientSockets

Ts = TypeVarTuple("Ts")


class ClientSelector(selectors.BaseSelector):
    """The selector that asyncio uses; it does not report client sockets."""

    def __init__(self) -> None:
        self.sockets = ClientSockets()
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        descriptor = _descriptor(fileobj)
        if descriptor in self._keys:
            raise KeyError(f"{fileobj!r} (descriptor {descriptor}) is already registered")
        key = selectors.SelectorKey(fileobj, descriptor, events, data)
        self.sockets.epoll.register(descriptor, _mask(events))
        self._keys[descriptor] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = self._keys.pop(_descriptor(fileobj))
        with suppress(OSError):  # closed already, which has unregistered it
            self.sockets.epoll.unregister(key.fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._keys[_descriptor(fileobj)]
        if events != key.events:
            self.sockets.epoll.modify(key.fd, _mask(events))
        changed = self._keys[key.fd] = selectors.SelectorKey(fileobj, key.fd, events, data)
        return changed

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found: list[tuple[selectors.SelectorKey, int]] = []
        for descriptor, mask in self.sockets.select(timeout):
            key = self._keys.get(descriptor)
            if key is None:
                continue
            events = (selectors.EVENT_WRITE if mask & ~IN else 0) | (selectors.EVENT_READ if mask & ~OUT else 0)
            if events & key.events:
                found.append((key, events & key.events))
        return found

    def close(self) -> None:
        self.sockets.close()
        self._keys.clear()

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[_descriptor(fileobj)]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class BrokerLoop(asyncio.SelectorEventLoop):
    """``sockets`` are those that are served inside ``select``."""

    def __init__(self) -> None:
        selector = ClientSelector()
        self.sockets = selector.sockets
        super().__init__(selector)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self.sockets.asked = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self.sockets.asked = True
        return super().call_at(when, callback, *args, context=context)


def client_sockets(loop: asyncio.AbstractEventLoop) -> ClientSockets | None:
    """Return the client sockets that the loop serves itself; None on any other loop."""
    return loop.sockets if isinstance(loop, BrokerLoop) else None


def _descriptor(fileobj: Any) -> int:
    return fileobj if isinstance(fileobj, int) else int(fileobj.fileno())


def _mask(events: int) -> int:
    return (IN if events & selectors.EVENT_READ else 0) | (OUT if events & selectors.EVENT_WRITE else 0)
