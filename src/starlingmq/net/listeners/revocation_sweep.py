"""Ends the connections of clients whose certificate was revoked after they had connected."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Set
from typing import Final

from starlingmq.net.driver import Driver
from starlingmq.net.listeners.der import DerError
from starlingmq.net.listeners.revocation_list import Identity, identity
from starlingmq.wire.reasons import Reason

REVOKED: Final = "its certificate is revoked"
CLIENTS_AT_ONCE: Final = 100  # per turn of the event loop: about a millisecond


async def end_revoked(driver: Driver, revoked: Mapping[str, Set[Identity]], handshake_timeout: float) -> None:
    """Check all clients of the listeners named in ``revoked``: now, and again when no handshake is in progress that
    began before the lists were read."""
    await _end(driver, revoked)
    await asyncio.sleep(handshake_timeout)
    await _end(driver, revoked)


async def _end(driver: Driver, revoked: Mapping[str, Set[Identity]]) -> None:
    for number, client in enumerate([client for client in driver.clients if client.listener in revoked]):
        if number % CLIENTS_AT_ONCE == CLIENTS_AT_ONCE - 1:
            await asyncio.sleep(0)
        tls = None if client.gone else client.transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(True)
        if certificate and _identity(certificate) in revoked[client.listener]:
            driver.state.ctx.at(driver.clock())
            driver.state.ending.fail(client, Reason.NOT_AUTHORIZED, REVOKED, "certificate_revoked")
            driver.request_turn()


def _identity(certificate: bytes) -> Identity | None:
    try:
        return identity(certificate)
    except DerError:  # OpenSSL may accept it nevertheless
        return None
