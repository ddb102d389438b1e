"""Configurations of streams and consumers, without a server: the words of each refusal, and what the core gets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.jetstream.api_program import SECOND, change, consumer, durable, refused, stream, wrong
from tests.jetstream.fake_hub import ApiAlone

INVALID = (500, 10052)
BAD_JSON = (400, 10025)
SAMPLING = 'failed to parse consumer sampling configuration: strconv.Atoi: parsing "many": invalid syntax'


def api_with(*asks: tuple[str, Any]) -> ApiAlone:
    api = ApiAlone()
    for subject, payload in asks:
        assert api.error(subject, payload) is None
    return api


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"description": "d" * 4097}, "stream description is too long, maximum allowed is 4096"),
        ({"metadata": {"k": "v" * 131072}}, "stream metadata exceeds maximum size of 131072 bytes"),
        ({"num_replicas": 6}, "maximum replicas is 5"),
        ({"max_age": -1}, "max age can not be negative"),
        ({"max_age": 1}, "max age needs to be >= 100ms"),
        ({"max_age": SECOND, "duplicate_window": 2 * SECOND}, "duplicates window can not be larger then max age"),
        ({"duplicate_window": -1}, "duplicates window can not be negative"),
        ({"duplicate_window": 1}, "duplicates window needs to be >= 100ms"),
        ({"deny_purge": True, "allow_rollup_hdrs": True}, "roll-ups require the purge permission"),
        ({"discard_new_per_subject": True}, "discard new per subject requires discard new policy to be set"),
        ({"subject_delete_marker_ttl": 1}, "subject delete marker TTL must be at least 1 second"),
        ({"subject_delete_marker_ttl": -1}, "subject delete marker TTL must not be negative"),
        ({"subjects": ["a..b"]}, "invalid subject"),
        ({"subjects": ["a.*", "a.b"]}, 'subject "a.*" overlaps with "a.b"'),
        ({"subjects": [">"]}, "capturing all subjects requires no-ack to be true"),
        ({"subjects": ["$JS.>"]}, "subjects that overlap with jetstream api require no-ack to be true"),
        ({"subjects": ["$SYS.a"]}, "subjects that overlap with system api require no-ack to be true"),
        ({"subjects": [f"a.{number}" for number in range(501)]}, "a stream has at most 500 subjects"),
        ({"sealed": True}, "stream configuration for create can not be sealed"),
        ({"mirror_direct": True}, "stream has no mirror but does have mirror direct"),
        ({"allow_msg_counter": True}, "allow_msg_counter is not supported"),
        ({"allow_atomic": True}, "allow_atomic is not supported"),
        ({"allow_msg_schedules": True}, "allow_msg_schedules is not supported"),
        ({"allow_batched": True}, "allow_batched is not supported"),
        ({"persist_mode": "async"}, "persist_mode is not supported"),
        ({"placement": {"preferred": "n"}}, "preferred server not permitted in placement"),
    ],
)
def test_a_stream_is_refused_in_the_words_of_nats_server(config: dict[str, Any], words: str) -> None:
    api = ApiAlone()
    assert api.error(*refused(**config)) == (*INVALID, words)
    assert api.hub.streams == {}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"storage": "memory"}, "change storage type"),
        ({"retention": "workqueue"}, "change retention policy to/from workqueue"),
        ({"sealed": False, "deny_delete": True, "deny_purge": True}, "unseal a sealed stream"),
        ({"sealed": True, "deny_purge": True}, "cancel deny message deletes"),
        ({"sealed": True, "deny_delete": True}, "cancel deny purge"),
    ],
)
def test_what_an_update_must_not_change(config: dict[str, Any], words: str) -> None:
    api = api_with(stream("X"), change("X", sealed=True))
    before = api.hub.streams["X"].config
    assert api.error(*change("X", **config)) == (*INVALID, f"stream configuration update can not {words}")
    assert api.hub.streams["X"].config == before


def test_a_sealed_stream_has_the_settings_that_nats_server_gives_it() -> None:
    api = api_with(stream("X", max_age=SECOND, allow_rollup_hdrs=True), change("X", sealed=True))
    policy = api.hub.streams["X"].policy
    assert (policy.sealed, policy.deny_delete, policy.deny_purge) == (True, True, True)
    assert (policy.max_age, policy.discard, policy.allow_rollup) == (0.0, 1, False)


def test_the_core_gets_every_setting_of_a_stream() -> None:
    api = api_with(
        stream(
            "X",
            subjects=["a.*", "b.>"],
            retention="workqueue",
            discard="new",
            discard_new_per_subject=True,
            max_msgs=2,
            max_bytes=3,
            max_age=4 * SECOND,
            max_msg_size=5,
            max_msgs_per_subject=6,
            max_consumers=7,
            duplicate_window=SECOND // 2,
            no_ack=True,
            deny_delete=True,
            allow_direct=True,
            subject_delete_marker_ttl=8 * SECOND,
            storage="memory",
            first_seq=9,
        )
    )
    policy = api.hub.streams["X"].policy
    expected = {
        "subjects": [b"a/+", b"b/+/#"],
        "retention": 2,
        "discard": 1,
        "discard_new_per_subject": True,
        "max_messages": 2,
        "max_bytes": 3,
        "max_age": 4.0,
        "max_message_size": 5,
        "max_per_subject": 6,
        "max_consumers": 7,
        "duplicate_window": 0.5,
        "no_ack": True,
        "deny_delete": True,
        "deny_purge": False,
        "sealed": False,
        "allow_rollup": True,
        "allow_ttl": True,
        "allow_direct": True,
        "delete_marker_ttl": 8.0,
        "memory": True,
        "replicas": 1,
        "first_seq": 9,
    }
    assert {name: getattr(policy, name) for name in expected} == expected


def test_the_core_gets_every_setting_of_a_consumer() -> None:
    api = api_with(
        stream("S", subjects=["s.>"]),
        durable(
            "D",
            deliver_policy="by_start_time",
            opt_start_time="2024-01-02T03:04:05Z",
            ack_policy="all",
            max_deliver=4,
            backoff=[SECOND, 2 * SECOND],
            filter_subjects=["s.a", "s.b.*"],
            replay_policy="original",
            sample_freq="50%",
            max_waiting=10,
            max_ack_pending=20,
            headers_only=True,
            max_batch=30,
            max_expires=SECOND,
            max_bytes=1000,
            inactive_threshold=60 * SECOND,
            mem_storage=True,
            pause_until="2200-01-01T00:00:00Z",
        ),
        consumer(
            "P",
            deliver_subject="to.here",
            deliver_group="g",
            idle_heartbeat=SECOND,
            flow_control=True,
            rate_limit_bps=8000,
            opt_start_seq=7,
            deliver_policy="by_start_sequence",
        ),
    )
    pull, push = (api.hub.streams["S"].consumers[name].policy for name in "DP")
    assert (pull.deliver, pull.start_time, pull.ack, pull.ack_wait, pull.max_deliver) == (4, 1704164645.0, 1, 1.0, 4)
    assert (pull.backoff, pull.filters, pull.replay_original) == ([1.0, 2.0], [b"s/a", b"s/b/+"], True)
    assert (pull.sample, pull.max_waiting, pull.max_ack_pending, pull.headers_only) == (50, 10, 20, True)
    assert (pull.max_batch, pull.max_expires, pull.max_bytes, pull.inactive, pull.memory) == (30, 1.0, 1000, 60.0, True)
    assert (pull.paused_until, pull.deliver_to) == (7258118400.0, b"")
    assert (push.deliver, push.start_seq, push.ack, push.deliver_to, push.deliver_group) == (3, 7, 0, b"to/here", b"g")
    assert (push.heartbeat, push.flow_control, push.rate_limit) == (1.0, True, 8000)


@pytest.mark.parametrize(
    ("config", "code", "words"),
    [
        ({"num_replicas": -1}, 10133, "replicas count cannot be negative"),
        ({"backoff": [-1]}, 10184, "consumer backoff needs to be positive"),
        ({"backoff": [1] * 1001}, 10052, "a consumer has at most 500 filter subjects and 1000 backoff values"),
        ({"ack_wait": -1}, 10183, "consumer ack wait needs to be positive"),
        ({"deliver_subject": "a.*"}, 10079, "consumer deliver subject has wildcards"),
        ({"deliver_subject": "$JS.API.INFO"}, 10112, "invalid push consumer deliver subject"),
        ({"deliver_subject": "$SYS.REQ.SERVER.PING"}, 10112, "invalid push consumer deliver subject"),
        ({"deliver_subject": "s.x"}, 10081, "consumer deliver subject forms a cycle"),
        ({"rate_limit_bps": 8}, 10086, "consumer in pull mode can not have rate limit set"),
        ({"filter_subjects": ["s.*", "s.a"]}, 10138, "consumer subject filters cannot overlap"),
        ({"filter_subjects": ["s.a", "s.a"]}, 10138, "consumer subject filters cannot overlap"),
        ({"max_ack_pending": 51}, 10121, "consumer max ack pending exceeds system limit of 50"),
        ({"inactive_threshold": 91 * SECOND}, 10153, "consumer inactive threshold exceeds system limit of 1m30s"),
        ({"priority_policy": "overflow", "priority_groups": ["g"]}, 10052, "priority_policy is not supported"),
        ({"ack_policy": "flow_control"}, 10052, "flow_control is not supported"),
        ({"sourcing": True}, 10052, "sourcing is not supported"),
        ({"sample_freq": "many"}, 10095, SAMPLING),
    ],
)
def test_a_consumer_is_refused_in_the_words_of_nats_server(config: dict[str, Any], code: int, words: str) -> None:
    limits = {"max_ack_pending": 50, "inactive_threshold": 90 * SECOND}
    api = api_with(stream("S", subjects=["s.>"], consumer_limits=limits))
    error = api.error(*wrong(**config))
    assert error is not None
    assert error[1:] == (code, words)
    assert api.hub.streams["S"].consumers == {}


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b"[]",
        b"1",
        b'"x"',
        b"\xff",
        b'{"name": "X", "nonsense": 1}',
        b'{"name": "X", "max_msgs": "1"}',
        b'{"name": "X", "max_msgs": 9223372036854775808}',
        b'{"name": "X", "max_msg_size": 2147483648}',
        b'{"name": "X", "first_seq": -1}',
        b'{"name": "X", "retention": "nonsense"}',
        b"[" * 100_000,
        b" " * (1 << 18) + b"{}",
    ],
)
def test_json_that_is_no_configuration_is_refused(payload: bytes) -> None:
    api = ApiAlone()
    error = api.error("STREAM.CREATE.X", payload)
    assert error is not None
    assert error[:2] == BAD_JSON


def test_null_is_the_same_as_nothing() -> None:
    api = api_with(("STREAM.CREATE.X", {"name": "X", "description": None, "placement": {"cluster": None}}))
    assert "description" not in json.loads(api.hub.streams["X"].config)


def test_pedantic_requests_want_no_value_replaced() -> None:
    api = ApiAlone()
    assert api.error(*refused(pedantic=True, max_msgs=-2)) == (400, 10157, "pedantic mode: max_msgs must be set to -1")
    assert api.error(*refused(max_msgs=-2)) is None
    subject, payload = wrong(max_waiting=-1)
    api = api_with(stream("S"))
    assert api.error(subject, {**payload, "pedantic": True}) == (
        400,
        10157,
        "pedantic mode: max_waiting must be set to 512",
    )
