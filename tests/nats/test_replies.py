"""A service that may reply to what it receives, and publish nothing else (nats-server: ``allow_responses``)."""

from __future__ import annotations

from tests.auth.test_acl import acl
from tests.harness import World
from tests.nats.talk import Msg, NatsPeer, connect

SERVICE = """rules:
  - {allow: [subscribe, group], topics: ["svc/#"]}
  - {allow: reply, topics: ["_INBOX/#"], REPLY}
"""


def service(world: World, options: str = "", rules: str = SERVICE) -> NatsPeer:
    """A client with these rules, that has subscribed to svc.>."""
    text = rules.replace("REPLY", options)
    world.state.ctx.rights_of = lambda client: acl(text).rights("", "svc", "") if client is peer.client else None
    peer = connect(world)
    world.state.entitle()
    world.run()
    assert peer.said("SUB svc.> 1", "PING") == ["PONG"]
    return peer


def refused(peer: NatsPeer, subject: str) -> bool:
    peer.pub(subject, b"answer")
    heard = peer.heard()
    assert heard in ([], [f"-ERR 'Permissions Violation for Publish to \"{subject}\"'"]), heard
    return bool(heard)


def requester(world: World) -> NatsPeer:
    peer = connect(world)
    peer.said("SUB _INBOX.> 9", "SUB other.> 8", "PING")
    return peer


def test_a_service_replies_once_to_each_request_and_publishes_nothing_else() -> None:
    world = World()
    peer, asker = service(world), requester(world)
    assert refused(peer, "_INBOX.1") and refused(peer, "svc.x")
    asker.pub("svc.add", b"1", reply="_INBOX.1")
    assert peer.heard() == [Msg("svc.add", "1", b"1", "_INBOX.1")]
    assert refused(peer, "_INBOX.2")
    assert not refused(peer, "_INBOX.1")
    assert asker.heard() == [Msg("_INBOX.1", "9", b"answer")]
    assert refused(peer, "_INBOX.1")
    assert asker.heard() == []


def test_more_replies_and_less_time_by_the_rule() -> None:
    world = World()
    peer, asker = service(world, "max_replies: 2, reply_expires: 3s"), requester(world)
    for reply in ("_INBOX.1", "_INBOX.2"):
        asker.pub("svc.list", reply=reply)
    assert [refused(peer, "_INBOX.1") for _ in range(3) if peer.heard() is not None] == [False, False, True]
    world.advance(3.0)
    peer.heard()
    assert refused(peer, "_INBOX.2")


def test_only_where_the_rule_is_about_the_reply_topic() -> None:
    world = World()
    peer, asker = service(world), requester(world)
    asker.pub("svc.add", reply="other.1")
    peer.heard()
    assert refused(peer, "other.1")
    asker.pub("svc.add", reply="$SYS.REQ.SERVER.PING")
    peer.heard()
    assert refused(peer, "$SYS.REQ.SERVER.PING")


def test_an_undelivered_request_allows_no_reply() -> None:
    world = World()
    rules = SERVICE.replace("rules:\n", "rules:\n  - {deny: subscribe, topics: [svc/secret]}\n")
    peer, asker = service(world, rules=rules), requester(world)
    asker.pub("svc.secret", reply="_INBOX.1")
    assert peer.heard() == []
    assert refused(peer, "_INBOX.1")


def test_each_member_of_a_queue_group_replies_to_its_own_requests() -> None:
    world = World()
    peer, asker = service(world), requester(world)
    assert peer.said("UNSUB 1", "SUB svc.> workers 2", "PING") == ["PONG"]
    asker.pub("svc.add", reply="_INBOX.1")
    assert [frame.reply for frame in peer.heard() if isinstance(frame, Msg)] == ["_INBOX.1"]
    assert not refused(peer, "_INBOX.1") and refused(peer, "_INBOX.1")


def test_rules_that_change_hold_for_requests_that_came_before() -> None:
    world = World()
    peer, asker = service(world), requester(world)
    for number in range(3):
        asker.pub("svc.add", reply=f"_INBOX.{number}")
    peer.heard()
    assert not refused(peer, "_INBOX.0")
    fewer = acl("rules: [{allow: subscribe, topics: ['svc/#']}]")
    world.state.ctx.rights_of = lambda client: fewer.rights("", "svc", "") if client is peer.client else None
    world.state.entitle()
    world.run()
    assert refused(peer, "_INBOX.1")
    again = acl(SERVICE.replace("REPLY", ""))
    world.state.ctx.rights_of = lambda client: again.rights("", "svc", "") if client is peer.client else None
    world.state.entitle()
    world.run()
    asker.pub("svc.add", reply="_INBOX.4")
    peer.heard()
    assert not refused(peer, "_INBOX.4"), "a subscription that was there looks at replies from now on"
    assert refused(peer, "_INBOX.2"), "what was withdrawn does not come back"


def test_clients_without_such_a_rule_are_not_looked_at() -> None:
    world = World()
    peer = service(world, rules="{default: allow, rules: [{deny: publish, topics: [x]}]}")
    assert not world.state.nats.clients[1].protocol_handler.subscriptions[b"1"].checked  # type: ignore[union-attr]
    asker = requester(world)
    asker.pub("svc.add", reply="x")
    peer.heard()
    assert refused(peer, "x")
