"""Rules that deny a part of what a NATS client subscribes to: the rest is delivered."""

from __future__ import annotations

from tests.harness import World
from tests.nats.talk import Msg, NatsPeer, connect

from starlingmq.core.limits.access import EVERY_PUBLISH, GROUP, PUBLISH, SUBSCRIBE, Grant, Rights

ALL = SUBSCRIBE | GROUP | PUBLISH


def rights(*denied: bytes) -> Rights:
    grants = [Grant(False, SUBSCRIBE | GROUP, EVERY_PUBLISH, [name], True, b"") for name in denied]
    return Rights([*grants, Grant(True, ALL, EVERY_PUBLISH, [], True, b"", True)], False)


def subjects(peer: NatsPeer) -> list[str]:
    return [frame.subject for frame in peer.heard() if isinstance(frame, Msg)]


def narrowed(*denied: bytes) -> tuple[World, NatsPeer, NatsPeer]:
    world = World()
    reader, writer = connect(world), connect(world)
    reader.client.rights = rights(*denied)
    return world, reader, writer


def test_a_wildcard_gets_all_but_what_is_denied() -> None:
    _, reader, writer = narrowed(b"secret")
    assert reader.said("SUB > 1", "SUB *.x 2", "PING") == ["PONG"]
    for subject in ("open.x", "secret.x", "secret", "open", "secrets.y"):
        writer.pub(subject, b"")
    assert sorted(subjects(reader)) == ["open", "open.x", "open.x", "secrets.y"]


def test_a_denied_subscription_and_a_partly_denied_queue_group_are_refused() -> None:
    _, reader, writer = narrowed(b"secret")
    for line in ("SUB secret.> 1", "SUB secret.x 2", "SUB > workers 3"):
        (heard,) = reader.said(line)
        assert isinstance(heard, str) and heard.startswith("-ERR 'Permissions Violation for Subscription"), heard
    writer.pub("secret.x")
    assert subjects(reader) == []


def test_new_rules_narrow_and_widen_what_is_there() -> None:
    world, reader, writer = narrowed()
    reader.said("SUB > 1")
    writer.pub("secret.x")
    assert subjects(reader) == ["secret.x"]
    for denied, wanted in (((b"secret",), ["open"]), ((), ["open", "secret.x"])):
        world.state.ctx.rights_of = lambda client, denied=denied: rights(*denied)  # type: ignore[misc]
        world.state.entitle()
        world.run()
        writer.pub("open")
        writer.pub("secret.x")
        assert sorted(subjects(reader)) == wanted
