"""A session's subscriptions by filter: one is kept without a dict, and behaves as in a dict."""

from __future__ import annotations

import random

from starlingmq.core.session.session import Session, Subscription

WHOLES = (b"a", b"b/+", b"c/#", b"$share/g/a", b"$share/h/a", b"$share/g/c/#")


def subscription(session: Session, whole: bytes) -> Subscription:
    filter = whole.split(b"/", 2)[2] if whole.startswith(b"$share/") else whole
    return Subscription(session, filter, 1, False, False, b"")


def test_one_subscription_takes_no_dict() -> None:
    session = Session("c")
    first, second = subscription(session, b"a"), subscription(session, b"a")
    assert session.add_subscription(b"a", first) is None
    assert session.add_subscription(b"a", second) is first
    assert session.by_filter is None and session.subscriptions() == [(b"a", second)]
    assert session.remove_subscription(b"b") is None
    assert session.remove_subscription(b"a") is second
    assert session.subscription_count() == 0 and session.by_filter is None


def test_a_shared_subscription_is_found_by_its_whole_filter_only() -> None:
    session = Session("c")
    shared = subscription(session, b"$share/g/a")
    session.add_subscription(b"$share/g/a", shared)
    assert session.subscription(b"a") is None
    assert session.subscription(b"$share/g/a") is shared
    assert session.subscriptions() == [(b"$share/g/a", shared)]


def test_subscriptions_are_those_of_a_dict_after_any_changes() -> None:
    chance = random.Random(7)
    for _ in range(200):
        session, expected = Session("c"), dict[bytes, Subscription]()
        for _ in range(12):
            whole = chance.choice(WHOLES)
            if chance.random() < 0.6:
                added = subscription(session, whole)
                assert session.add_subscription(whole, added) is expected.get(whole)
                expected[whole] = added
            else:
                assert session.remove_subscription(whole) is expected.pop(whole, None)
            assert session.subscriptions() == list(expected.items())
            assert session.subscription_count() == len(expected)
            assert all(session.subscription(each) is expected.get(each) for each in WHOLES)
