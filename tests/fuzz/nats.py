"""NATS under fire: mad clients in both protocols, and two sane ones of NATS that must not notice.

After every step everything the broker said can be read, and the sane ones still exchange messages; at the end nothing
is left of the mad ones.
"""

from __future__ import annotations

from random import Random
from typing import Final

from starlingmq.config.nats_section import NatsConfig
from starlingmq.core.context.ready import AUTHENTICATE
from starlingmq.core.session.session import NATS_PREFIX
from starlingmq.wire.mqtt import Suback, Subscribe, SubscribeRequest
from starlingmq.wire.reasons import Reason
from tests.harness import World
from tests.nats.talk import Msg, NatsPeer, connect, frames

STEPS: Final = 60
CONNECTIONS: Final = 5
SETTINGS: Final = {
    "topic_levels": (128, 3),
    "write_buffer": (1 << 20, 200),
    "max_connections": (0, 0, 6),
    "subscriptions_per_client": (0, 3),
    "queue_bytes": (1 << 20, 500),
    "publisher_hold": (1.0, 0.0),
    "recording": (False, True),
    "ask_publish": (False, False, True),
    "ask_subscribe": (False, False, True),
    "ask_authenticate": (False, False, True),
}
NKEYS: Final = (b"", b"U", b"UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4")
SIGS: Final = (b"", b"x", b"_-+/", b"A" * 86, b"A" * 200)
SUBJECTS: Final = (b"a", b"a.b", b"a.*", b"a.>", b">", b"*.b", b"/.a", b"$SYS.x", b"a..b", b"\xff", b"_INBOX.1", b"#.+")


def run(seed: int) -> int:
    """One episode; how many steps. Raises AssertionError, or whatever the core let through."""
    rng = Random(seed)
    settings = {name: rng.choice(values) for name, values in SETTINGS.items()}
    world = World(**settings)
    world.state.nats.configure(NatsConfig(max_payload=300, max_control_line=256))
    if rng.random() < 0.3:
        world.state.nats.keys.verify = lambda key, message, signature: rng.random() < 0.5
    ctx = world.state.ctx
    asking, ctx.ask_authenticate = ctx.ask_authenticate, False
    giver, taker = connect(world), connect(world)
    ctx.ask_authenticate = asking
    taker.send("SUB sane.exchange 1")
    _answer(world, rng, True)
    away = world.connect("away") if not asking else None
    if away is not None:
        away.send(Subscribe(1, [SubscribeRequest(b"#", 1)]))
        _answer(world, rng, True)
        away.expect(Suback)
    mad: list[NatsPeer] = []
    for step in range(STEPS):
        if len(mad) < CONNECTIONS:
            mad.append(NatsPeer(world))
        peer = rng.choice(mad)
        _provoke(rng, peer)
        _answer(world, rng, False)
        for other in mad:
            frames(other.fake.output)
        mad = [other for other in mad if not other.closed]
        if rng.random() < 0.1:
            others = [f"nats://n{number}:1" for number in range(rng.randrange(3))]
            world.state.nats.reach(("nats://n:1",) * rng.randrange(2), others)
        if rng.random() < 0.1:
            world.advance(rng.choice((0.1, 1.0, 200.0)))
            giver.send("PONG")
            taker.send("PONG")
        if not giver.fake.reading:
            world.advance(1.5)  # held for a receiver that does not read, and for no longer than that
        taker.heard()
        payload = b"%d" % step
        giver.pub("sane.exchange", payload)
        _answer(world, rng, True)
        assert Msg("sane.exchange", "1", payload) in taker.heard()
        if away is not None and away.closed:
            away = None
    for peer in mad:
        peer.fake.drop()
    _answer(world, rng, False)
    world.advance(ctx.groups.grace + 1.0)  # until then a group waits for members that were lost
    sessions = [name for name in ctx.sessions if name.startswith(NATS_PREFIX)]
    assert sessions == [giver.client.client_id, taker.client.client_id], sessions
    assert not ctx.jobs
    assert len(world.state.router.tree) == (1 if away is None else 2)
    return STEPS


def _answer(world: World, rng: Random, allowed: bool) -> None:
    while world.questions:
        question = world.question()
        if allowed or rng.random() < 0.7:
            world.allow(question)
        else:
            reason = Reason.BAD_USER_NAME_OR_PASSWORD if question.kind == AUTHENTICATE else Reason.NOT_AUTHORIZED
            world.answer(question, reason, reasons=[reason])


def _provoke(rng: Random, peer: NatsPeer) -> None:
    kind = rng.random()
    if kind < 0.05:
        peer.fake.block()
    elif kind < 0.15:
        peer.fake.unblock()
    elif kind < 0.2:
        peer.fake.drop()
    else:
        data = b"".join(_command(rng) for _ in range(rng.randrange(1, 6)))
        if rng.random() < 0.3:
            data = _spoiled(rng, data)
        cut = rng.randrange(len(data) + 1) if data else 0
        peer.send_raw(data[:cut])
        if not peer.closed:
            peer.send_raw(data[cut:])


def _command(rng: Random) -> bytes:
    subject = rng.choice(SUBJECTS)
    payload = rng.randbytes(rng.choice((0, 1, 20, 250)))
    reply = rng.choice((b"", b"_INBOX.1 ", b"r.> "))
    sid = b"%d" % rng.randrange(4)
    names = (b"verbose", b"echo", b"headers", b"pedantic", b"no_responders")
    flags = [b'"%b":%b' % (name, rng.choice((b"true", b"false"))) for name in names]
    flags += rng.choice(([], [b'"protocol":1'], [b'"nkey":"%b","sig":"%b"' % (rng.choice(NKEYS), rng.choice(SIGS))]))
    return rng.choice(
        (
            b"PUB %b %b%d\r\n%b\r\n" % (subject, reply, len(payload), payload),
            b"HPUB %b %b18 %d\r\nNATS/1.0\r\nA: b\r\n\r\n%b\r\n" % (subject, reply, 18 + len(payload), payload),
            b"SUB %b %b\r\n" % (subject, sid),
            b"SUB %b q %b\r\n" % (subject, sid),
            b"UNSUB %b\r\n" % sid,
            b"UNSUB %b %d\r\n" % (sid, rng.randrange(3)),
            b"PING\r\n",
            b"PONG\r\n",
            b"CONNECT {%b}\r\n" % b",".join(flags),
        )
    )


def _spoiled(rng: Random, data: bytes) -> bytes:
    spoiled = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(spoiled) + 1)
        if rng.random() < 0.5:
            spoiled[at : at + 1] = rng.randbytes(1)
        else:
            del spoiled[at : at + rng.randrange(5)]
    return bytes(spoiled)
