"""The configuration of a stream: its JSON, defaults and rules, which updates are allowed, and the policy for the core.

The rules are tables of a condition and nats-server's words, checked in order. Settings that are not implemented are
refused by name, so that none is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, Final, Literal

import msgspec

from starlingmq.core.streams.policies import StreamPolicy
from starlingmq.core.streams.source_settings import SourceSettings
from starlingmq.core.streams.subject_transforms import Republishing
from starlingmq.jetstream import api_errors as e
from starlingmq.jetstream import json_forms as forms
from starlingmq.jetstream.json_forms import Int32, Int64, Natural
from starlingmq.jetstream.subjects import any_collide, collide, covers, filter_or_none, is_literal
from starlingmq.jetstream.timestamps import SECOND, time_of
from starlingmq.jetstream.transform_config import check_destination, subject_transform

REPLICAS_MAX: Final = 5
SUBJECTS_MAX: Final = 500
"""Of one stream. Pairs with a wildcard are compared, 75 ms at most; nats-server has no such limit."""
SOURCES_MAX: Final = 200
"""Of one stream, and as many transforms, which are compared in pairs."""
PLACE_MAX: Final = 32_768  # bytes of filters and destinations of a source: each message has them in a header
DUPLICATE_WINDOW: Final = 120 * SECOND
SHORTEST: Final = SECOND // 10
RETENTIONS: Final = ("limits", "interest", "workqueue")
WHITE: Final = frozenset(" \t\n\r\f")
_JETSTREAM: Final = (b"$JS/+/#", b"$JSC/+/#", b"$NRG/+/#")
_EVENTS: Final = b"$JS/EVENT/+/#"
_SYSTEM: Final = b"$SYS/+/#"
_ACCOUNTS: Final = b"$SYS/ACCOUNT/+/#"


class ConsumerLimits(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    inactive_threshold: Int64 = 0
    max_ack_pending: Int64 = 0


class StreamPlacement(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    cluster: str = ""
    tags: list[str] = []
    preferred: str = ""


class SubjectTransformConfig(msgspec.Struct, forbid_unknown_fields=True):
    src: str = ""
    dest: str = ""


class RepublishConfig(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    src: str = ""
    dest: str = ""
    headers_only: bool = False


class StreamSourceConfig(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    name: str = ""
    opt_start_seq: Natural = 0
    opt_start_time: str = ""
    filter_subject: str = ""
    subject_transforms: list[SubjectTransformConfig] = []
    external: dict[str, Any] | None = None
    consumer: dict[str, Any] | None = None


class SequencedStreamConfig(msgspec.Struct, forbid_unknown_fields=True):
    """In nats-server's order. Times are in nanoseconds."""

    name: str = ""
    description: str = ""
    subjects: list[str] = []
    retention: Literal["limits", "interest", "workqueue"] = "limits"
    max_consumers: Int64 = 0
    max_msgs: Int64 = 0
    max_bytes: Int64 = 0
    max_age: Int64 = 0
    max_msgs_per_subject: Int64 = 0
    max_msg_size: Int32 = 0
    discard: Literal["old", "new"] = "old"
    storage: Literal["file", "memory"] = "file"
    num_replicas: Int64 = 0
    no_ack: bool = False
    duplicate_window: Int64 = 0
    placement: StreamPlacement | None = None
    mirror: StreamSourceConfig | None = None
    sources: list[StreamSourceConfig] = []
    compression: Literal["none", "s2"] = "none"
    first_seq: Natural = 0
    subject_transform: SubjectTransformConfig | None = None
    republish: RepublishConfig | None = None
    allow_direct: bool = False
    mirror_direct: bool = False
    discard_new_per_subject: bool = False
    sealed: bool = False
    deny_delete: bool = False
    deny_purge: bool = False
    allow_rollup_hdrs: bool = False
    consumer_limits: ConsumerLimits = msgspec.field(default_factory=ConsumerLimits)
    allow_msg_ttl: bool = False
    subject_delete_marker_ttl: Int64 = 0
    allow_msg_counter: bool = False
    allow_atomic: bool = False
    allow_msg_schedules: bool = False
    persist_mode: Literal["", "default", "async"] = ""
    allow_batched: bool = False
    metadata: dict[str, str] = {}


class StreamRequest(SequencedStreamConfig):
    pedantic: bool = False


FIELDS: Final = SequencedStreamConfig.__struct_fields__
_FLAGS: Final = ("allow_direct", "mirror_direct", "sealed", "deny_delete", "deny_purge", "allow_rollup_hdrs")
ALWAYS: Final = frozenset(("max_age", "allow_msg_ttl", *_FLAGS))
"""Shown with their zero value as well."""
UNLIMITED: Final = ("max_msgs", "max_msgs_per_subject", "max_bytes", "max_msg_size", "max_consumers")
COPIED: Final = (
    "discard_new_per_subject",
    "no_ack",
    "deny_delete",
    "deny_purge",
    "sealed",
    "allow_direct",
    "first_seq",
)
RENAMED: Final = (
    ("max_messages", "max_msgs"),
    ("max_bytes", "max_bytes"),
    ("max_message_size", "max_msg_size"),
    ("max_per_subject", "max_msgs_per_subject"),
    ("max_consumers", "max_consumers"),
    ("replicas", "num_replicas"),
    ("allow_rollup", "allow_rollup_hdrs"),
    ("allow_ttl", "allow_msg_ttl"),
)
TIMES: Final = (
    ("max_age", "max_age"),
    ("duplicate_window", "duplicate_window"),
    ("delete_marker_ttl", "subject_delete_marker_ttl"),
)
"""Of the policy, and where they come from."""
NOT_SUPPORTED: Final = ("allow_msg_counter", "allow_atomic")
NOT_SUPPORTED_EITHER: Final = ("allow_msg_schedules", "allow_batched", "persist_mode")

_PER_SUBJECT: Final = "discard new per subject requires"
_NAME: Final = "stream name is required and can not contain '.', '*', '>', '\\', '/'"
_DESCRIPTION: Final = f"stream description is too long, maximum allowed is {forms.DESCRIPTION_MAX}"
_METADATA: Final = f"stream metadata exceeds maximum size of {forms.METADATA_MAX} bytes"

Rule = tuple[Callable[[SequencedStreamConfig], bool], str]
FORM: Final[tuple[Rule, ...]] = (
    (lambda c: not forms.is_name(c.name), _NAME),
    (lambda c: len(c.name) > forms.NAME_MAX, f"stream name is too long, maximum allowed is {forms.NAME_MAX}"),
    (lambda c: forms.is_too_long(c.description), _DESCRIPTION),
    (lambda c: forms.size_of(c.metadata) > forms.METADATA_MAX, _METADATA),
    (lambda c: c.num_replicas > REPLICAS_MAX, f"maximum replicas is {REPLICAS_MAX}"),
    (lambda c: c.max_age < 0, "max age can not be negative"),
    (lambda c: 0 < c.max_age < SHORTEST, "max age needs to be >= 100ms"),
)
LIMITS: Final[tuple[Rule, ...]] = (
    (lambda c: c.duplicate_window < 0, "duplicates window can not be negative"),
    (lambda c: 0 < c.max_age < c.duplicate_window, "duplicates window can not be larger then max age"),
    (lambda c: 0 < c.duplicate_window < SHORTEST, "duplicates window needs to be >= 100ms"),
    (lambda c: c.deny_purge and c.allow_rollup_hdrs, "roll-ups require the purge permission"),
    (lambda c: c.discard_new_per_subject and c.discard != "new", f"{_PER_SUBJECT} discard new policy to be set"),
    (lambda c: c.discard_new_per_subject and c.max_msgs_per_subject <= 0, f"{_PER_SUBJECT} max msgs per subject > 0"),
    (lambda c: 0 < c.subject_delete_marker_ttl < SECOND, "subject delete marker TTL must be at least 1 second"),
    (lambda c: c.subject_delete_marker_ttl < 0, "subject delete marker TTL must not be negative"),
)

_UPDATE: Final = "stream configuration update can not"
_NO_CHANGE: Final = f"{_UPDATE} change retention policy to/from workqueue"
UPDATES: Final[tuple[tuple[Callable[[SequencedStreamConfig, SequencedStreamConfig], bool], str], ...]] = (
    (lambda old, new: new.name != old.name, "stream configuration name must match original"),
    (lambda old, new: new.storage != old.storage, f"{_UPDATE} change storage type"),
    (lambda old, new: (old.retention == "workqueue") != (new.retention == "workqueue"), _NO_CHANGE),
    (lambda old, new: old.sealed and not new.sealed, f"{_UPDATE} unseal a sealed stream"),
    (lambda old, new: old.deny_delete and not new.deny_delete, f"{_UPDATE} cancel deny message deletes"),
    (lambda old, new: old.deny_purge and not new.deny_purge, f"{_UPDATE} cancel deny purge"),
    (lambda old, new: old.allow_msg_ttl and not new.allow_msg_ttl, "message TTL status can not be disabled"),
)


def invalid(words: str) -> e.ApiError:
    return e.ApiError(e.STREAM_INVALID_CONFIG, words)


def check_stream(config: StreamRequest) -> None:
    """Set the defaults and check the rules. Raises ApiError."""
    before = copy(config)
    _require(config, FORM)
    if config.num_replicas < 0:
        raise e.ApiError(e.NEGATIVE_REPLICAS)
    config.num_replicas = config.num_replicas or 1
    for name in UNLIMITED:
        if getattr(config, name) <= 0:
            setattr(config, name, -1)
    config.persist_mode = "" if config.persist_mode == "default" else config.persist_mode
    for name in NOT_SUPPORTED + NOT_SUPPORTED_EITHER:
        if getattr(config, name):
            raise invalid(f"{name} is not supported")
    if config.mirror is None and not config.sources:
        config.duplicate_window = config.duplicate_window or min(config.max_age or DUPLICATE_WINDOW, DUPLICATE_WINDOW)
    if config.pedantic:
        forms.require_unchanged(before, config)
        if not before.duplicate_window and config.duplicate_window < DUPLICATE_WINDOW:
            raise e.ApiError(e.PEDANTIC, "duplicate window cannot be bigger than max age")
    _require(config, LIMITS)
    if config.subject_delete_marker_ttl:
        if config.pedantic and not config.allow_msg_ttl:
            raise invalid("subject delete marker cannot be set if message TTLs are disabled")
        if config.pedantic and not config.allow_rollup_hdrs:
            raise invalid("subject delete marker cannot be set if roll-ups are disabled")
        config.deny_purge = config.deny_purge and config.allow_rollup_hdrs
        config.allow_rollup_hdrs = config.allow_msg_ttl = True
    check_sources(config)
    if config.mirror is None and not config.sources:
        config.subjects = config.subjects or [config.name]
    _check_subjects(config)
    _check_transform(config)
    _check_republish(config)
    if config.placement == StreamPlacement():
        config.placement = None
    if config.placement is not None and config.placement.preferred:
        raise invalid("preferred server not permitted in placement")
    config.metadata = forms.with_required_level(config.metadata, 1 if config.allow_msg_ttl else 0)


def check_stream_update(old: SequencedStreamConfig, new: SequencedStreamConfig) -> None:
    """``new`` has been checked by itself."""
    if new.mirror is not None and old.mirror != new.mirror:  # without one, it becomes a stream of its own
        raise e.ApiError(e.MIRROR_UPDATE)
    for is_wrong, words in UPDATES:
        if is_wrong(old, new):
            raise invalid(words)
    if new.sealed:
        new.max_age = 0
        new.discard = "new"
        new.deny_delete = new.deny_purge = True
        new.allow_rollup_hdrs = False


def _require(config: SequencedStreamConfig, rules: tuple[Rule, ...]) -> None:
    for is_wrong, words in rules:
        if is_wrong(config):
            raise invalid(words)


def _check_subjects(config: SequencedStreamConfig) -> None:
    subjects = config.subjects
    if len(subjects) > SUBJECTS_MAX:
        raise invalid(f"a stream has at most {SUBJECTS_MAX} subjects")
    filters = [filter_or_none(subject) for subject in subjects]
    wild = [not is_literal(subject) for subject in subjects]
    for at, own in enumerate(filters):
        if own is None:
            raise invalid("invalid subject")
        if own == b"#" and not config.no_ack:
            raise invalid("capturing all subjects requires no-ack to be true")
        if own == b"#" and config.num_replicas != 1:
            raise invalid("capturing all subjects requires replicas of 1")
        if not config.no_ack:
            if any(collide(own, each) for each in _JETSTREAM) and not covers(_EVENTS, own):
                raise invalid("subjects that overlap with jetstream api require no-ack to be true")
            if collide(own, _SYSTEM) and not covers(_ACCOUNTS, own):
                raise invalid("subjects that overlap with system api require no-ack to be true")
        for later in range(at + 1, len(subjects)):
            other = filters[later]
            if own == other or ((wild[at] or wild[later]) and other is not None and collide(own, other)):
                raise invalid(f'subject "{subjects[at]}" overlaps with "{subjects[later]}"')


def _check_transform(config: SequencedStreamConfig) -> None:
    if config.subject_transform is not None:
        check_mapping(config.subject_transform, e.TRANSFORM_SOURCE, e.TRANSFORM_DESTINATION)


def check_mapping(mapping: SubjectTransformConfig, source: e.ErrorKind, destination: e.ErrorKind) -> None:
    tokens = mapping.src.split(".")
    if mapping.src and ("" in tokens or ">" in tokens[:-1] or not WHITE.isdisjoint(mapping.src)):
        raise e.ApiError(source, f"invalid subject {mapping.src}")
    if mapping.dest:
        try:
            check_destination(mapping.dest)
            subject_transform(mapping.src, mapping.dest)
        except ValueError as error:
            raise e.ApiError(destination, error) from None


def check_sources(config: SequencedStreamConfig) -> None:
    transforms = [each for source in config.sources for each in source.subject_transforms]
    transforms += config.mirror.subject_transforms if config.mirror is not None else []
    if len(config.sources) > SOURCES_MAX or len(transforms) > SOURCES_MAX:
        raise invalid(f"a stream has at most {SOURCES_MAX} sources, and transforms of them")
    if config.mirror is not None:
        if config.first_seq:
            raise e.ApiError(e.MIRROR_FIRST)
        if config.subjects:
            raise e.ApiError(e.MIRROR_SUBJECTS)
        if config.sources:
            raise e.ApiError(e.MIRROR_AND_SOURCES)
        _check_source(config.mirror, 0)
        if config.subject_delete_marker_ttl:
            raise invalid("subject delete markers forbidden on mirrors")
    indexes = set()
    for source in config.sources:
        _check_source(source, 1)
        index = index_of(source)
        if index in indexes:
            raise e.ApiError(e.SOURCE_DUPLICATE)
        if len(index.encode()) > PLACE_MAX:
            raise invalid(f"the filters and destinations of source {source.name} are longer than {PLACE_MAX} bytes")
        indexes.add(index)


def _check_source(source: StreamSourceConfig, kind: int) -> None:
    if not forms.is_name(source.name):
        raise e.ApiError(e.NAME[kind])
    if source.external is not None or source.consumer is not None:
        raise e.ApiError(e.SETUP[kind], "external streams and consumers of a name are not supported")
    if source.opt_start_time:
        try:
            time_of(source.opt_start_time)
        except ValueError as error:
            raise e.ApiError(e.INVALID_JSON, error) from None
    mappings = source.subject_transforms
    if source.filter_subject and mappings:
        raise e.ApiError(e.FILTERS[kind])
    for subject in [each.src for each in mappings] or [source.filter_subject]:
        if subject and filter_or_none(subject) is None:
            raise e.ApiError(e.FILTER[kind], f"invalid subject {subject}")
    for mapping in mappings:
        check_mapping(mapping, e.FILTER[kind], e.DESTINATION[kind])
    filters = [filter_or_none(each.src or ">") or b"#" for each in mappings]
    for at, filter in enumerate(filters):
        if any_collide((filter,), filters[at + 1 :]):
            raise e.ApiError(e.OVERLAP[kind])


def index_of(source: StreamSourceConfig) -> str:
    """nats-server's name for a source. Functions may have white space, which would end a part."""
    mappings = source.subject_transforms or [SubjectTransformConfig(source.filter_subject)]
    sources = "\f".join(each.src or ">" for each in mappings)
    destinations = "\f".join("".join(each.dest.split()) or ">" for each in mappings)
    return f"{source.name} {sources} {destinations}"


def source_settings(source: StreamSourceConfig, mirror: bool) -> SourceSettings:
    found = SourceSettings(source.name, index_of(source).encode(), mirror)
    subjects = [each.src or ">" for each in source.subject_transforms] or [source.filter_subject]
    found.filters = [filter for filter in map(filter_or_none, subjects) if filter is not None]
    found.transforms = [subject_transform(each.src, each.dest) for each in source.subject_transforms if each.dest]
    found.start_seq = source.opt_start_seq
    found.start_time = time_of(source.opt_start_time) if source.opt_start_time else 0.0
    return found


def _check_republish(config: StreamRequest) -> None:
    republish, transform = config.republish, config.subject_transform
    if republish is None:
        return
    if config.pedantic and not republish.src:
        raise e.ApiError(e.PEDANTIC, "republish source can not be empty")
    republish.src = republish.src or ">"
    if republish.src == republish.dest == ">" and transform is not None and [transform.src] == config.subjects:
        if config.pedantic:
            raise e.ApiError(e.PEDANTIC, "implicit republish based on subject transform")
        republish.src = republish.dest = transform.dest
    filter = filter_or_none(republish.dest)
    if filter is not None and any_collide((filter,), [filter_or_none(each) or b"" for each in config.subjects]):
        raise invalid("stream configuration for republish destination forms a cycle")
    try:
        republishing_of(config)
    except ValueError:
        words = f"with transform from '{republish.src}' to '{republish.dest}' not valid"
        raise invalid(f"stream configuration for republish {words}") from None


def republishing_of(config: SequencedStreamConfig) -> Republishing | None:
    """Raises ValueError."""
    found = Republishing(config.name.encode())
    transform, republish = config.subject_transform, config.republish
    if transform is not None and transform.dest:
        found.transform = subject_transform(transform.src, transform.dest)
    if republish is not None and republish.dest:
        found.republish = subject_transform(republish.src, republish.dest)
        found.headers_only = republish.headers_only
    return None if found.transform is None and found.republish is None else found


def stored_stream(config: SequencedStreamConfig) -> bytes:
    return msgspec.json.encode(forms.shown(config, FIELDS, ALWAYS))


def stream_config_of(stored: bytes) -> SequencedStreamConfig:
    return msgspec.json.decode(stored, type=SequencedStreamConfig)


def stream_policy(config: SequencedStreamConfig) -> StreamPolicy:
    """Of a configuration that has been checked."""
    policy = StreamPolicy()
    for name in COPIED:
        setattr(policy, name, getattr(config, name))
    for name, source in RENAMED:
        setattr(policy, name, getattr(config, source))
    for name, source in TIMES:
        setattr(policy, name, getattr(config, source) / SECOND)
    policy.subjects = [each for each in map(filter_or_none, config.subjects) if each is not None]
    policy.retention = RETENTIONS.index(config.retention)
    policy.discard = 1 if config.discard == "new" else 0
    policy.memory = config.storage == "memory"
    mirror = config.mirror
    policy.sources = [source_settings(each, False) for each in config.sources]
    policy.sources += [source_settings(mirror, True)] if mirror is not None else []
    policy.republishing = republishing_of(config)
    return policy
