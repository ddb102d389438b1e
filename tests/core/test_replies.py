"""Permissions to publish replies: counts, times, bounds, checked against a simple model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starlingmq.core.limits.access import EVERY_PUBLISH, PUBLISH, Grant, ReplyGrant, Rights
from starlingmq.core.limits.response_rights import TOPIC_BYTES, Replies, longest

LIMIT = 4


def rights(count: int = 1, seconds: float = 120.0) -> Rights:
    return Rights([ReplyGrant(True, [], True, False, count, seconds)], False)


def test_a_message_allows_as_many_replies_as_the_rule_says_and_once_more_if_it_comes_again() -> None:
    replies, allowed = Replies(120.0), rights(2)
    assert not replies.use(b"r", allowed, 0.0)
    replies.note(b"r", 0.0, LIMIT)
    assert [replies.use(b"r", allowed, 1.0) for _ in range(3)] == [True, True, False]
    replies.note(b"r", 2.0, LIMIT)
    assert replies.use(b"r", allowed, 3.0)


def test_without_a_count_and_without_a_time_every_reply_is_allowed() -> None:
    replies, allowed = Replies(0.0), rights(0, 0.0)
    replies.note(b"r", 0.0, LIMIT)
    assert all(replies.use(b"r", allowed, 1e9) for _ in range(100))


@pytest.mark.parametrize(("at", "allowed"), [(119.9, True), (120.0, False), (500.0, False)])
def test_a_reply_comes_in_time_or_is_not_allowed(at: float, allowed: bool) -> None:
    replies = Replies(120.0)
    replies.note(b"r", 0.0, LIMIT)
    assert replies.use(b"r", rights(), at) == allowed
    assert len(replies) == 0


def test_topics_that_are_too_old_make_room_without_a_timer() -> None:
    replies = Replies(10.0)
    for number in range(1000):
        replies.note(b"%d" % number, float(number), 1000)
        assert len(replies) <= 11


def test_the_oldest_topics_go_where_there_are_too_many_or_their_bytes_are() -> None:
    replies, allowed = Replies(0.0), rights(1, 0.0)
    for number in range(LIMIT + 1):
        replies.note(b"%d" % number, 0.0, LIMIT)
    assert not replies.use(b"0", allowed, 0.0) and replies.use(b"1", allowed, 0.0)
    long = b"x" * (LIMIT * TOPIC_BYTES)
    replies.note(long, 0.0, LIMIT)
    assert len(replies) == 1 and replies.use(long, allowed, 0.0) and replies.size == 0
    replies.note(long + b"x", 0.0, LIMIT)
    assert len(replies) == 0 and replies.size == 0


@given(
    st.lists(
        st.tuples(st.sampled_from(["note", "use", "wait"]), st.sampled_from([b"a", b"bb", b"c", b"dd", b"e", b"f"])),
        max_size=80,
    ),
    st.integers(0, 3),
    st.sampled_from([0.0, 2.5, 10.0]),
)
def test_it_allows_what_a_list_of_messages_allows(steps: list[tuple[str, bytes]], count: int, seconds: float) -> None:
    replies, allowed = Replies(seconds), rights(count, seconds)
    model: list[tuple[bytes, float, int]] = []  # in the order of recording
    now = 0.0
    for step, topic in steps:
        if step == "wait":
            now += 1.0
        elif step == "note":
            replies.note(topic, now, LIMIT)
            model = [one for one in model if one[0] != topic] + [(topic, now, 0)]
            model = [one for one in model if seconds == 0.0 or one[1] + seconds > now][-LIMIT:]
        else:
            found = [one for one in model if one[0] == topic and (seconds == 0.0 or one[1] + seconds > now)]
            good = bool(found) and (count == 0 or found[0][2] < count)
            assert replies.use(topic, allowed, now) == good
            model = [(one[0], one[1], one[2] + (one[0] == topic)) for one in model]
            model = [one for one in model if count == 0 or one[2] < count]
        assert len(replies) <= LIMIT
        assert replies.size == sum(len(topic) for topic in replies._noted)


def test_the_first_rule_about_a_reply_decides() -> None:
    deny_here = Grant(False, PUBLISH, EVERY_PUBLISH, [b"cmd"], True, b"")
    allow = ReplyGrant(True, [], True, False, 1, 1.0)
    never = ReplyGrant(False, [b"x"], False, True, 1, 1.0)
    first = Rights([deny_here, never, allow], False)
    assert first.replies and first.reply(b"_INBOX/1") is allow
    assert first.reply(b"cmd/stop") is None and first.reply(b"x") is None
    assert Rights([allow, deny_here], False).reply(b"cmd/stop") is allow
    assert not Rights([deny_here, never], True).replies


def test_topics_that_begin_with_a_dollar_sign_are_allowed_by_their_name_only() -> None:
    assert rights().reply(b"$x/1") is None
    assert Rights([ReplyGrant(True, [b"$x"], True, False, 1, 1.0)], False).reply(b"$x/1") is not None


def test_the_longest_time_of_several_rules() -> None:
    grants = [ReplyGrant(True, [], True, False, 1, seconds) for seconds in (3.0, 9.0)]
    assert longest(Rights([*grants], False)) == 9.0
    grants.append(ReplyGrant(True, [], True, False, 1, 0.0))
    assert longest(Rights([*grants], False)) == 0.0
