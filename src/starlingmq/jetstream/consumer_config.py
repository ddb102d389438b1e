"""The configuration of a consumer: its JSON, defaults and rules, which updates are allowed, and the policy for the
core.

The rules are a table of a condition, an error and a detail, checked in order against the consumer (``c``) and its
stream (``s``).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Final, Literal

import msgspec

from starlingmq.core.streams.consumer_policy import ConsumerPolicy
from starlingmq.jetstream import api_errors as e
from starlingmq.jetstream import json_forms as forms
from starlingmq.jetstream.json_forms import Int64, Natural
from starlingmq.jetstream.stream_config import SUBJECTS_MAX, SequencedStreamConfig
from starlingmq.jetstream.subjects import covers, filter_or_none, is_literal, topic_or_none
from starlingmq.jetstream.timestamps import SECOND, duration_text, time_of

ACK_WAIT: Final = 30 * SECOND
ACK_PENDING: Final = 1000
WAITING: Final = 512
BACKOFFS_MAX: Final = 1000  # nats-server has no such limit; each is kept in memory
DELIVER: Final = ("all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject")
ACKS: Final = ("none", "all", "explicit")
RESERVED: Final = ("$JS.API.", "$JS.ACK.", "$JS.FC.", "$JS.SNAPSHOT.", "$JS.EVENT.", "$SYS.")
"""Messages to these would be requests in the name of the server."""


class ConsumerConfig(msgspec.Struct, forbid_unknown_fields=True):
    """In nats-server's order. Times are in nanoseconds."""

    durable_name: str = ""
    name: str = ""
    description: str = ""
    deliver_policy: Literal["all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"] = "all"
    opt_start_seq: Natural = 0
    opt_start_time: str = ""
    ack_policy: Literal["none", "all", "explicit", "flow_control"] = "none"
    ack_wait: Int64 = 0
    max_deliver: Int64 = 0
    backoff: list[Int64] = []
    filter_subject: str = ""
    filter_subjects: list[str] = []
    replay_policy: Literal["instant", "original"] = "instant"
    rate_limit_bps: Natural = 0
    sample_freq: str = ""
    max_waiting: Int64 = 0
    max_ack_pending: Int64 = 0
    flow_control: bool = False
    headers_only: bool = False
    max_batch: Int64 = 0
    max_expires: Int64 = 0
    max_bytes: Int64 = 0
    deliver_subject: str = ""
    deliver_group: str = ""
    idle_heartbeat: Int64 = 0
    inactive_threshold: Int64 = 0
    num_replicas: Int64 = 0
    mem_storage: bool = False
    direct: bool = False
    sourcing: bool = False
    metadata: dict[str, str] = {}
    pause_until: str = ""
    priority_groups: list[str] = []
    priority_policy: Literal["none", "overflow", "pinned_client", "prioritized"] = "none"
    priority_timeout: Int64 = 0

    def subjects(self) -> list[str]:
        return [*self.filter_subjects, self.filter_subject] if self.filter_subject else self.filter_subjects


class ConsumerRequest(msgspec.Struct, forbid_unknown_fields=True):
    stream_name: str = ""
    config: ConsumerConfig = msgspec.field(default_factory=ConsumerConfig)
    action: Literal["", "create", "update"] = ""
    pedantic: bool = False


FIELDS: Final = tuple(each for each in ConsumerConfig.__struct_fields__ if not each.startswith("priority"))
ALWAYS: Final = frozenset(("num_replicas",))
"""Shown with their zero value as well."""
NOT_NEGATIVE: Final = ("max_waiting", "max_batch", "max_expires", "max_bytes", "idle_heartbeat", "inactive_threshold")

_FORBIDDEN: Final = "can not contain '.', '*', '>', '\\', '/'"
_LONG: Final = f"a consumer has at most {SUBJECTS_MAX} filter subjects and {BACKOFFS_MAX} backoff values"
_METADATA: Final = f"{forms.METADATA_MAX // 1024}KB"

Rule = tuple[Callable[[ConsumerConfig, SequencedStreamConfig], bool], e.ErrorKind, object]
"""The detail is of the error's description, or a function that returns it."""
BEFORE: Final[tuple[Rule, ...]] = (
    (lambda c, s: not _may_be(c.name), e.STREAM_INVALID_CONFIG, f"consumer name {_FORBIDDEN}"),
    (lambda c, s: not _may_be(c.durable_name), e.STREAM_INVALID_CONFIG, f"consumer durable name {_FORBIDDEN}"),
    (lambda c, s: c.num_replicas > s.num_replicas, e.CONSUMER_REPLICAS, ""),
    (lambda c, s: c.num_replicas < 0, e.NEGATIVE_REPLICAS, ""),
    (lambda c, s: _replicas_differ(c, s), e.CONSUMER_REPLICAS_MATCH, ""),
    (lambda c, s: any(each < 0 for each in c.backoff), e.BACKOFF_NEGATIVE, ""),
    (lambda c, s: c.ack_wait < 0, e.ACK_WAIT_NEGATIVE, ""),
    (lambda c, s: c.max_deliver != -1 and len(c.backoff) > c.max_deliver, e.BACKOFF_TOO_LONG, ""),
    (lambda c, s: len(c.filter_subjects) > SUBJECTS_MAX, e.STREAM_INVALID_CONFIG, _LONG),
    (lambda c, s: len(c.backoff) > BACKOFFS_MAX, e.STREAM_INVALID_CONFIG, _LONG),
    (lambda c, s: forms.is_too_long(c.description), e.CONSUMER_DESCRIPTION_TOO_LONG, forms.DESCRIPTION_MAX),
)
PUSH: Final[tuple[Rule, ...]] = (
    (lambda c, s: not is_literal(c.deliver_subject), e.DELIVER_TO_WILDCARDS, ""),
    (lambda c, s: _is_no_destination(c.deliver_subject), e.DELIVER_INVALID, ""),
    (lambda c, s: _forms_cycle(c, s), e.DELIVER_CYCLE, ""),
    (lambda c, s: c.max_waiting != 0, e.PUSH_MAX_WAITING, ""),
    (lambda c, s: c.max_ack_pending > 0 and c.ack_policy == "none", e.PENDING_NEEDS_ACKS, ""),
    (lambda c, s: 0 < c.idle_heartbeat < SECOND // 10, e.HEARTBEAT_TOO_SMALL, ""),
)
PULL: Final[tuple[Rule, ...]] = (
    (lambda c, s: c.ack_policy == "none" and s.retention == "workqueue", e.PULL_REQUIRES_ACK, ""),
    (lambda c, s: c.rate_limit_bps > 0, e.PULL_RATE_LIMIT, ""),
    (lambda c, s: c.idle_heartbeat > 0, e.HEARTBEAT_REQUIRES_PUSH, ""),
    (lambda c, s: c.flow_control, e.FLOW_CONTROL_REQUIRES_PUSH, ""),
    (lambda c, s: 0 < c.max_expires < SECOND // 1000, e.EXPIRES_TOO_SMALL, ""),
)
AFTER: Final[tuple[Rule, ...]] = (
    (lambda c, s: 0 < _most(s) < c.max_ack_pending, e.ACK_PENDING_EXCESS, lambda c, s: _most(s)),
    (lambda c, s: 0 < _longest(s) < c.inactive_threshold, e.INACTIVE_EXCESS, lambda c, s: duration_text(_longest(s))),
    (lambda c, s: c.direct and not c.deliver_subject, e.DIRECT_REQUIRES_PUSH, ""),
    (lambda c, s: c.direct and bool(c.durable_name), e.DIRECT_REQUIRES_EPHEMERAL, ""),
    (lambda c, s: bool(c.filter_subject and c.filter_subjects), e.FILTER_AND_FILTERS, ""),
    (lambda c, s: "" in c.filter_subjects, e.FILTER_EMPTY, ""),
    (lambda c, s: None in map(filter_or_none, c.subjects()), e.STREAM_INVALID_CONFIG, "invalid subject"),
    (lambda c, s: _filters_overlap(c), e.FILTERS_OVERLAP, ""),
    (lambda c, s: bool(_start(c)), e.INVALID_POLICY, lambda c, s: _start(c)),
    (lambda c, s: _percent(c.sample_freq) < 0, e.INVALID_SAMPLING, lambda c, s: _no_number(c.sample_freq)),
    (lambda c, s: c.flow_control and c.idle_heartbeat == 0, e.FLOW_CONTROL_NEEDS_HEARTBEATS, ""),
    (lambda c, s: bool(c.durable_name and c.name) and c.name != c.durable_name, e.DURABLE_AND_NAME, ""),
    (lambda c, s: forms.size_of(c.metadata) > forms.METADATA_MAX, e.CONSUMER_METADATA_TOO_LONG, _METADATA),
    (lambda c, s: c.priority_policy == "none" and bool(c.priority_groups), e.GROUPS_WITHOUT_POLICY, ""),
    (lambda c, s: c.priority_policy == "none" and c.priority_timeout != 0, e.PINNED_WITHOUT_POLICY, ""),
    (lambda c, s: c.priority_policy != "none", e.STREAM_INVALID_CONFIG, "priority_policy is not supported"),
    (lambda c, s: c.ack_policy == "flow_control", e.STREAM_INVALID_CONFIG, "flow_control is not supported"),
    (lambda c, s: c.sourcing, e.STREAM_INVALID_CONFIG, "sourcing is not supported"),
)
UPDATES: Final = (
    ("deliver_policy", "deliver policy can not be updated"),
    ("mem_storage", "storage type can not be updated"),
    ("direct", "direct can not be updated"),
    ("opt_start_seq", "start sequence can not be updated"),
    ("opt_start_time", "start time can not be updated"),
    ("ack_policy", "ack policy can not be updated"),
    ("replay_policy", "replay policy can not be updated"),
    ("idle_heartbeat", "heart beats can not be updated"),
    ("flow_control", "flow control can not be updated"),
    ("max_waiting", "max waiting can not be updated"),
)
"""Fields that an update must not change."""
COPIED: Final = ("max_deliver", "max_ack_pending", "max_waiting", "max_batch", "max_bytes", "headers_only")
TIMES: Final = (("ack_wait", "ack_wait"), ("max_expires", "max_expires"), ("heartbeat", "idle_heartbeat"))
"""Of the policy, and where they come from."""


def _may_be(name: str) -> bool:
    return not name or forms.is_name(name)


def _replicas_differ(c: ConsumerConfig, s: SequencedStreamConfig) -> bool:
    return s.retention != "limits" and c.num_replicas not in (0, s.num_replicas)


def _most(s: SequencedStreamConfig) -> int:
    return s.consumer_limits.max_ack_pending


def _longest(s: SequencedStreamConfig) -> int:
    return s.consumer_limits.inactive_threshold


def _is_no_destination(subject: str) -> bool:
    return topic_or_none(subject) is None or subject.startswith(RESERVED)


def _forms_cycle(c: ConsumerConfig, s: SequencedStreamConfig) -> bool:
    to = topic_or_none(c.deliver_subject) or b""
    return any(covers(filter_or_none(subject) or b"", to) for subject in s.subjects)


def _percent(text: str) -> int:
    """Of acknowledgements that are reported; -1: it is no number."""
    digits = text.removesuffix("%")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else -1 if text else 0


def _no_number(text: str) -> str:
    digits = text.removesuffix("%")
    return "<nil>" if digits[1:].isdigit() else f'strconv.Atoi: parsing "{digits}": invalid syntax'


def _start(c: ConsumerConfig) -> str:
    """The fault in where it starts; "" if there is none."""
    by_sequence, by_time = c.deliver_policy == "by_start_sequence", c.deliver_policy == "by_start_time"
    wrong = ""
    if by_sequence and c.opt_start_seq == 0:
        wrong = "start sequence is not set"
    elif by_time and not c.opt_start_time:
        wrong = "start time is not set"
    elif c.opt_start_seq and not by_sequence:
        wrong = f"start {'start sequence' if by_time else 'sequence'} is also set"
    elif c.opt_start_time and not by_time:
        wrong = "start time is also set"
    elif c.deliver_policy == "last_per_subject" and not c.subjects():
        wrong = "filter subject is not set"
    policy = c.deliver_policy.replace("_", " ")
    return wrong and f"consumer delivery policy is deliver {policy}, but optional {wrong}"


def _filters_overlap(c: ConsumerConfig) -> bool:
    """Whether one covers another. Two that only cross are allowed."""
    filters = [filter_or_none(subject) or b"" for subject in c.subjects()]
    if len(set(filters)) < len(filters):
        return True
    wild = [own for own, subject in zip(filters, c.subjects(), strict=True) if not is_literal(subject)]
    return any(other is not own and covers(own, other) for own in wild for other in filters)


def _set_defaults(c: ConsumerConfig, stream: SequencedStreamConfig) -> None:
    if c.max_deliver == 0 or c.max_deliver < -1:
        c.max_deliver = -1
    for name in NOT_NEGATIVE:
        setattr(c, name, max(getattr(c, name), 0))
    if not c.deliver_subject and c.max_waiting == 0:
        c.max_waiting = WAITING
    if c.ack_wait == 0 and c.ack_policy in ("explicit", "all"):
        c.ack_wait = ACK_WAIT
    if c.backoff:
        c.ack_wait = c.backoff[0]
    c.max_ack_pending = max(c.max_ack_pending, -1) or _most(stream)
    c.inactive_threshold = c.inactive_threshold or _longest(stream)
    if c.max_ack_pending == 0 and c.ack_policy != "none":
        c.max_ack_pending = ACK_PENDING


def check_consumer(c: ConsumerConfig, stream: SequencedStreamConfig, pedantic: bool) -> None:
    """Set the defaults and check the rules. Raises ApiError."""
    c.opt_start_time, c.pause_until = checked_time(c.opt_start_time), checked_time(c.pause_until)
    before = copy(c)
    _set_defaults(c, stream)
    if pedantic:
        forms.require_unchanged(before, c)
    for is_wrong, kind, detail in (*BEFORE, *(PUSH if c.deliver_subject else PULL), *AFTER):
        if is_wrong(c, stream):
            raise e.ApiError(kind, detail(c, stream) if callable(detail) else detail)
    c.metadata = forms.with_required_level(c.metadata, 1 if c.pause_until else 0)


def checked_time(text: str) -> str:
    """The same, or "" for the zero time."""
    try:
        return text if text and time_of(text) != 0.0 else ""
    except ValueError as error:
        raise e.ApiError(e.INVALID_JSON, error) from None


def check_consumer_update(old: ConsumerConfig, new: ConsumerConfig) -> None:
    """Raises ApiError. That the old deliver subject has no subscribers is checked elsewhere."""
    if bool(old.deliver_subject) != bool(new.deliver_subject):
        change = "pull consumer to push" if new.deliver_subject else "push consumer to pull"
        raise e.ApiError(e.CONSUMER_CREATE, f"can not update {change} based")
    for name, words in UPDATES:
        if getattr(old, name) != getattr(new, name):
            raise e.ApiError(e.CONSUMER_CREATE, words)


def consumer_config_of(stored: bytes) -> ConsumerConfig:
    return msgspec.json.decode(stored, type=ConsumerConfig)


def consumer_policy(config: ConsumerConfig) -> ConsumerPolicy:
    """Of a configuration that has been checked."""
    policy = ConsumerPolicy()
    for name in COPIED:
        setattr(policy, name, getattr(config, name))
    for name, source in TIMES:
        setattr(policy, name, getattr(config, source) / SECOND)
    policy.deliver = DELIVER.index(config.deliver_policy)
    policy.start_seq = config.opt_start_seq
    policy.start_time = time_of(config.opt_start_time) if config.opt_start_time else 0.0
    policy.ack = ACKS.index(config.ack_policy)
    policy.backoff = [each / SECOND for each in config.backoff]
    policy.filters = [each for each in map(filter_or_none, config.subjects()) if each is not None]
    policy.replay_original = config.replay_policy == "original"
    policy.rate_limit = config.rate_limit_bps
    policy.sample = _percent(config.sample_freq)
    policy.flow_control = config.flow_control
    policy.deliver_to = (topic_or_none(config.deliver_subject) or b"") if config.deliver_subject else b""
    policy.deliver_group = config.deliver_group.encode()
    policy.inactive = config.inactive_threshold / SECOND
    policy.paused_until = time_of(config.pause_until) if config.pause_until else 0.0
    policy.memory = config.mem_storage
    return policy


def made(config: ConsumerConfig) -> tuple[ConsumerPolicy, bytes]:
    """Of a configuration that has been checked, what the core keeps."""
    return consumer_policy(config), msgspec.json.encode(forms.shown(config, FIELDS, ALWAYS))
