"""Errors of JetStream's API: code, error code and description as nats-server's errors.json has them.

A description may have one field, ``{}``.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class ErrorKind(NamedTuple):
    code: int
    err_code: int
    description: str


class ApiError(Exception):
    """A request that is refused."""

    def __init__(self, kind: ErrorKind, detail: object = "") -> None:
        self.kind = kind
        self.description = kind.description.format(detail)
        super().__init__(self.description)

    def fields(self) -> dict[str, object]:
        return {"code": self.kind.code, "err_code": self.kind.err_code, "description": self.description}


BAD_REQUEST: Final = ErrorKind(400, 10003, "bad request")
CLUSTER_NOT_AVAILABLE: Final = ErrorKind(503, 10008, "JetStream system temporarily unavailable")
CLUSTER_REQUIRED: Final = ErrorKind(503, 10010, "JetStream clustering support required")
INSUFFICIENT_RESOURCES: Final = ErrorKind(503, 10023, "insufficient resources")
INVALID_JSON: Final = ErrorKind(400, 10025, "invalid JSON: {}")
NOT_EMPTY_REQUEST: Final = ErrorKind(400, 10038, "expected an empty request payload")
REQUIRED_API_LEVEL: Final = ErrorKind(412, 10185, "JetStream minimum api level required")
PEDANTIC: Final = ErrorKind(400, 10157, "pedantic mode: {}")
NEGATIVE_REPLICAS: Final = ErrorKind(400, 10133, "replicas count cannot be negative")
STREAM_INVALID_CONFIG: Final = ErrorKind(500, 10052, "{}")
STREAM_MISMATCH: Final = ErrorKind(400, 10056, "stream name in subject does not match request")
STREAM_NAME_EXISTS: Final = ErrorKind(400, 10058, "stream name already in use with a different configuration")
STREAM_NAME_HAS_SEPARATORS: Final = ErrorKind(400, 10128, "Stream name can not contain path separators")
STREAM_NOT_FOUND: Final = ErrorKind(404, 10059, "stream not found")
STREAM_SEALED: Final = ErrorKind(400, 10109, "invalid operation on sealed stream")
STREAM_OVERLAP: Final = ErrorKind(400, 10065, "subjects overlap with an existing stream")
STREAM_REPLICAS: Final = ErrorKind(500, 10074, "replicas > 1 not supported in non-clustered mode")
STREAM_UPDATE: Final = ErrorKind(500, 10069, "{}")
STREAM_SNAPSHOT: Final = ErrorKind(500, 10064, "snapshot failed: {}")
STREAM_RESTORE: Final = ErrorKind(500, 10062, "restore failed: {}")
TRANSFORM_SOURCE: Final = ErrorKind(400, 10155, "stream transform source: {}")
TRANSFORM_DESTINATION: Final = ErrorKind(400, 10156, "stream transform: {}")
MIRROR_TOO_SMALL: Final = ErrorKind(400, 10030, "stream mirror must have max message size >= source")
MIRROR_AND_SOURCES: Final = ErrorKind(400, 10031, "stream mirrors can not also contain other sources")
MIRROR_SUBJECTS: Final = ErrorKind(400, 10034, "stream mirrors can not contain subjects")
MIRROR_FIRST: Final = ErrorKind(400, 10143, "stream mirrors can not have first sequence configured")
MIRROR_UPDATE: Final = ErrorKind(400, 10055, "stream mirror configuration can not be updated")
SOURCE_DUPLICATE: Final = ErrorKind(400, 10140, "duplicate source configuration detected")
# of a mirror, and of a source
SETUP: Final = (ErrorKind(500, 10029, "{}"), ErrorKind(500, 10045, "{}"))
SIZE: Final = (MIRROR_TOO_SMALL, ErrorKind(400, 10046, "stream source must have max message size >= target"))
NAME: Final = (
    ErrorKind(400, 10142, "mirrored stream name is invalid"),
    ErrorKind(400, 10141, "sourced stream name is invalid"),
)
FILTERS: Final = (
    ErrorKind(400, 10150, "mirror with multiple subject transforms cannot also have a single subject filter"),
    ErrorKind(400, 10144, "source with multiple subject transforms cannot also have a single subject filter"),
)
FILTER: Final = (
    ErrorKind(400, 10151, "mirror transform source: {}"),
    ErrorKind(400, 10145, "source transform source: {}"),
)
DESTINATION: Final = (ErrorKind(400, 10154, "mirror transform: {}"), ErrorKind(400, 10146, "source transform: {}"))
OVERLAP: Final = (
    ErrorKind(400, 10152, "mirror subject filters can not overlap"),
    ErrorKind(400, 10147, "source filters can not overlap"),
)
STREAM_PURGE_FAILED: Final = ErrorKind(500, 10110, "{}")
STREAM_MESSAGE_DELETE_FAILED: Final = ErrorKind(500, 10057, "{}")
MAXIMUM_STREAMS: Final = ErrorKind(400, 10027, "maximum number of streams reached")
SEQUENCE_NOT_FOUND: Final = ErrorKind(400, 10043, "sequence {} not found")
NO_MESSAGE_FOUND: Final = ErrorKind(404, 10037, "no message found")
MAXIMUM_CONSUMERS: Final = ErrorKind(400, 10026, "maximum consumers limit reached")
CONSUMER_NOT_FOUND: Final = ErrorKind(404, 10014, "consumer not found")
CONSUMER_NAME_EXISTS: Final = ErrorKind(400, 10013, "consumer name already in use")
CONSUMER_EXISTS: Final = ErrorKind(400, 10148, "consumer already exists")
CONSUMER_MISSING: Final = ErrorKind(400, 10149, "consumer does not exist")
CONSUMER_CREATE: Final = ErrorKind(500, 10012, "{}")
CONSUMER_NAME_HAS_SEPARATORS: Final = ErrorKind(400, 10127, "Consumer name can not contain path separators")
CONSUMER_NAME_TOO_LONG: Final = ErrorKind(400, 10102, "consumer name is too long, maximum allowed is {}")
CONSUMER_DESCRIPTION_TOO_LONG: Final = ErrorKind(400, 10107, "consumer description is too long, maximum allowed is {}")
CONSUMER_METADATA_TOO_LONG: Final = ErrorKind(400, 10135, "consumer metadata exceeds maximum size of {}")
DURABLE_NOT_SET: Final = ErrorKind(400, 10018, "consumer expected to be durable but a durable name was not set")
DURABLE_MISMATCH: Final = ErrorKind(400, 10017, "consumer name in subject does not match durable name in request")
DURABLE_AND_NAME: Final = ErrorKind(400, 10132, "Consumer Durable and Name have to be equal if both are provided")
EPHEMERAL_WITH_DURABLE: Final = ErrorKind(
    400, 10020, "consumer expected to be ephemeral but a durable name was set in request"
)
FILTER_MISMATCH: Final = ErrorKind(
    400, 10131, "Consumer create request did not match filtered subject from create subject"
)
FILTERS_IN_SUBJECT: Final = ErrorKind(400, 10137, "consumer with multiple subject filters cannot use subject based API")
FILTER_AND_FILTERS: Final = ErrorKind(
    400, 10136, "consumer cannot have both FilterSubject and FilterSubjects specified"
)
FILTERS_OVERLAP: Final = ErrorKind(400, 10138, "consumer subject filters cannot overlap")
FILTER_EMPTY: Final = ErrorKind(400, 10139, "consumer filter in FilterSubjects cannot be empty")
CONSUMER_REPLICAS: Final = ErrorKind(400, 10126, "consumer config replica count exceeds parent stream")
CONSUMER_REPLICAS_MATCH: Final = ErrorKind(
    400, 10134, "consumer config replicas must match interest retention stream's replicas"
)
ACK_WAIT_NEGATIVE: Final = ErrorKind(400, 10183, "consumer ack wait needs to be positive")
BACKOFF_NEGATIVE: Final = ErrorKind(400, 10184, "consumer backoff needs to be positive")
BACKOFF_TOO_LONG: Final = ErrorKind(400, 10116, "max deliver is required to be > length of backoff values")
DELIVER_TO_WILDCARDS: Final = ErrorKind(400, 10079, "consumer deliver subject has wildcards")
DELIVER_INVALID: Final = ErrorKind(400, 10112, "invalid push consumer deliver subject")
DELIVER_CYCLE: Final = ErrorKind(400, 10081, "consumer deliver subject forms a cycle")
PUSH_MAX_WAITING: Final = ErrorKind(400, 10080, "consumer in push mode can not set max waiting")
PENDING_NEEDS_ACKS: Final = ErrorKind(400, 10082, "consumer requires ack policy for max ack pending")
HEARTBEAT_TOO_SMALL: Final = ErrorKind(400, 10083, "consumer idle heartbeat needs to be >= 100ms")
PULL_REQUIRES_ACK: Final = ErrorKind(
    400, 10084, "consumer in pull mode requires explicit ack policy on workqueue stream"
)
PULL_RATE_LIMIT: Final = ErrorKind(400, 10086, "consumer in pull mode can not have rate limit set")
HEARTBEAT_REQUIRES_PUSH: Final = ErrorKind(400, 10088, "consumer idle heartbeat requires a push based consumer")
FLOW_CONTROL_REQUIRES_PUSH: Final = ErrorKind(400, 10089, "consumer flow control requires a push based consumer")
FLOW_CONTROL_NEEDS_HEARTBEATS: Final = ErrorKind(400, 10108, "consumer with flow control also needs heartbeats")
EXPIRES_TOO_SMALL: Final = ErrorKind(400, 10115, "consumer max request expires needs to be >= 1ms")
ACK_PENDING_EXCESS: Final = ErrorKind(400, 10121, "consumer max ack pending exceeds system limit of {}")
INACTIVE_EXCESS: Final = ErrorKind(400, 10153, "consumer inactive threshold exceeds system limit of {}")
DIRECT_REQUIRES_PUSH: Final = ErrorKind(400, 10090, "consumer direct requires a push based consumer")
DIRECT_REQUIRES_EPHEMERAL: Final = ErrorKind(400, 10091, "consumer direct requires an ephemeral consumer")
INVALID_POLICY: Final = ErrorKind(400, 10094, "{}")
INVALID_SAMPLING: Final = ErrorKind(400, 10095, "failed to parse consumer sampling configuration: {}")
INVALID_RESET: Final = ErrorKind(400, 10204, "invalid reset: {}")
INVALID_GROUP: Final = ErrorKind(400, 10160, "Provided priority group does not exist for this consumer")
GROUPS_WITHOUT_POLICY: Final = ErrorKind(400, 10196, "consumer can not have priority groups when policy is none")
PINNED_WITHOUT_POLICY: Final = ErrorKind(400, 10197, "PinnedTTL cannot be set when PriorityPolicy is none")
WORK_QUEUE_ACKS: Final = ErrorKind(400, 10098, "workqueue stream requires explicit ack")
WORK_QUEUE_UNFILTERED: Final = ErrorKind(400, 10099, "multiple non-filtered consumers not allowed on workqueue stream")
WORK_QUEUE_UNIQUE: Final = ErrorKind(400, 10100, "filtered consumer not unique on workqueue stream")
WORK_QUEUE_ALL: Final = ErrorKind(400, 10101, "consumer must be deliver all on workqueue stream")
