"""One decision about accepting clients, in the terms of MQTT 5, 3.1.1 and NATS."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.harness import World
from tests.nats.talk import NatsPeer

from starlingmq.core.connect.connect_verdict import (
    ADMITTED,
    AFTER_EARLIER,
    CUT_OFF,
    NO_ROOM,
    NOT_STORED,
    SERVES_NOBODY,
    UNCLAIMED,
    ConnectRequest,
    ConnectVerdict,
)
from starlingmq.core.context.context import Context
from starlingmq.core.session.connection import TURN_OVER
from starlingmq.core.session.session import Client
from starlingmq.wire.mqtt import Connack, Connect
from starlingmq.wire.reasons import Reason


def cut_off(ctx: Context) -> None:
    ctx.isolate()


def short_of_memory(ctx: Context) -> None:
    ctx.quotas.short_of_memory = True


def serves_nobody(ctx: Context) -> None:
    ctx.connect_admission.shut = True


def stores_nothing(ctx: Context) -> None:
    ctx.storage_failed(0, 0)


def is_in_a_cluster(ctx: Context) -> None:
    ctx.cluster.claim_ids(1.0, 1.0)


LIMITS: list[tuple[Callable[[Context], None], int, int, int, str]] = [
    (cut_off, Reason.SERVER_UNAVAILABLE, 3, CUT_OFF, "-ERR 'Node Is Isolated'"),
    (short_of_memory, Reason.QUOTA_EXCEEDED, 3, NO_ROOM, "-ERR 'maximum connections exceeded'"),
]
"""The condition, the refusal in MQTT 5 and in 3.1.1, the verdict, and the refusal in NATS."""


def decided(world: World, transient: bool = False, stores: bool = False, owned: bool = False) -> ConnectVerdict:
    request = ConnectRequest(Client("mqtt://l", "peer", world.now), world.state.ctx.sessions.get("c"), None, {})
    request.client.rules = world.state.ctx.rules
    request.transient, request.stores, request.owned = transient, stores, owned
    return world.state.connecting.decisions.decide(request)


@pytest.mark.parametrize(("limit", "reason", "code", "kind", "words"), LIMITS)
def test_a_limit_refuses_clients_of_all_protocols(
    limit: Callable[[Context], None], reason: int, code: int, kind: int, words: str
) -> None:
    world = World()
    peer = NatsPeer(world)
    limit(world.state.ctx)
    verdict = decided(world)
    assert (verdict.kind, verdict.reason) == (kind, reason)
    for version, expected in ((5, reason), (4, code)):
        fake = world.open(version)
        fake.send(Connect(version, "c", True))
        assert fake.expect(Connack).reason == expected
        assert fake.closed
    peer.send('CONNECT {"verbose":false}')
    assert words in peer.heard() and peer.closed
    assert not world.state.ctx.sessions


@pytest.mark.parametrize(
    ("limit", "transient", "stores", "kind"),
    [
        (serves_nobody, False, False, SERVES_NOBODY),
        (serves_nobody, True, False, ADMITTED),
        (stores_nothing, False, True, NOT_STORED),
        (stores_nothing, False, False, ADMITTED),
        (is_in_a_cluster, False, False, UNCLAIMED),
        (is_in_a_cluster, True, False, ADMITTED),
    ],
)
def test_some_checks_apply_only_to_some_clients(
    limit: Callable[[Context], None], transient: bool, stores: bool, kind: int
) -> None:
    world = World()
    assert decided(world, transient, stores).kind == ADMITTED
    limit(world.state.ctx)
    assert decided(world, transient, stores).kind == kind


def test_a_client_that_owns_its_id_is_not_held_again_and_not_counted_again() -> None:
    world = World()
    is_in_a_cluster(world.state.ctx)
    short_of_memory(world.state.ctx)
    assert decided(world).kind == NO_ROOM
    assert decided(world, owned=True).kind == ADMITTED


def test_a_client_waits_for_what_its_earlier_connection_has_sent() -> None:
    world = World()
    earlier = world.connect("c", version=5).client
    assert decided(world).kind == ADMITTED
    earlier.gone, earlier.halted = True, TURN_OVER
    assert decided(world).kind == AFTER_EARLIER
    assert decided(world, owned=True).kind == ADMITTED
