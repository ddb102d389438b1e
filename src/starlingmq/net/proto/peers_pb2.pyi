from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Dialler(_message.Message):
    __slots__ = ("envelopes",)
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    envelopes: _containers.RepeatedCompositeFieldContainer[Envelope]
    def __init__(self, envelopes: _Optional[_Iterable[_Union[Envelope, _Mapping[str, object]]]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("cluster", "name", "number", "incarnation", "version_min", "version_max", "nonce", "target", "software", "purpose")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_MIN_FIELD_NUMBER: _ClassVar[int]
    VERSION_MAX_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    name: str
    number: int
    incarnation: int
    version_min: int
    version_max: int
    nonce: bytes
    target: int
    software: str
    purpose: str
    def __init__(self, cluster: _Optional[str] = ..., name: _Optional[str] = ..., number: _Optional[int] = ..., incarnation: _Optional[int] = ..., version_min: _Optional[int] = ..., version_max: _Optional[int] = ..., nonce: _Optional[bytes] = ..., target: _Optional[int] = ..., software: _Optional[str] = ..., purpose: _Optional[str] = ...) -> None: ...

class Challenge(_message.Message):
    __slots__ = ("version", "name", "number", "incarnation", "nonce", "software")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    version: int
    name: str
    number: int
    incarnation: int
    nonce: bytes
    software: str
    def __init__(self, version: _Optional[int] = ..., name: _Optional[str] = ..., number: _Optional[int] = ..., incarnation: _Optional[int] = ..., nonce: _Optional[bytes] = ..., software: _Optional[str] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("source", "incarnation", "target", "target_incarnation", "relayed", "heartbeat", "route_records", "route_applied", "sync_request", "route_snapshot", "data", "data_ack", "handshake_call", "handshake_reply", "group_pull", "group_report", "operator_call", "operator_reply", "share_frame")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TARGET_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RELAYED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    ROUTE_RECORDS_FIELD_NUMBER: _ClassVar[int]
    ROUTE_APPLIED_FIELD_NUMBER: _ClassVar[int]
    SYNC_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ROUTE_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DATA_ACK_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_CALL_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_REPLY_FIELD_NUMBER: _ClassVar[int]
    GROUP_PULL_FIELD_NUMBER: _ClassVar[int]
    GROUP_REPORT_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_CALL_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_REPLY_FIELD_NUMBER: _ClassVar[int]
    SHARE_FRAME_FIELD_NUMBER: _ClassVar[int]
    source: int
    incarnation: int
    target: int
    target_incarnation: int
    relayed: bool
    heartbeat: Heartbeat
    route_records: RouteRecords
    route_applied: RouteApplied
    sync_request: SyncRequest
    route_snapshot: RouteSnapshot
    data: Data
    data_ack: DataAck
    handshake_call: HandshakeCall
    handshake_reply: HandshakeReply
    group_pull: GroupPull
    group_report: GroupReport
    operator_call: OperatorCall
    operator_reply: OperatorReply
    share_frame: ShareFrame
    def __init__(self, source: _Optional[int] = ..., incarnation: _Optional[int] = ..., target: _Optional[int] = ..., target_incarnation: _Optional[int] = ..., relayed: _Optional[bool] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping[str, object]]] = ..., route_records: _Optional[_Union[RouteRecords, _Mapping[str, object]]] = ..., route_applied: _Optional[_Union[RouteApplied, _Mapping[str, object]]] = ..., sync_request: _Optional[_Union[SyncRequest, _Mapping[str, object]]] = ..., route_snapshot: _Optional[_Union[RouteSnapshot, _Mapping[str, object]]] = ..., data: _Optional[_Union[Data, _Mapping[str, object]]] = ..., data_ack: _Optional[_Union[DataAck, _Mapping[str, object]]] = ..., handshake_call: _Optional[_Union[HandshakeCall, _Mapping[str, object]]] = ..., handshake_reply: _Optional[_Union[HandshakeReply, _Mapping[str, object]]] = ..., group_pull: _Optional[_Union[GroupPull, _Mapping[str, object]]] = ..., group_report: _Optional[_Union[GroupReport, _Mapping[str, object]]] = ..., operator_call: _Optional[_Union[OperatorCall, _Mapping[str, object]]] = ..., operator_reply: _Optional[_Union[OperatorReply, _Mapping[str, object]]] = ..., share_frame: _Optional[_Union[ShareFrame, _Mapping[str, object]]] = ...) -> None: ...

class MemberInfo(_message.Message):
    __slots__ = ("name", "number", "incarnation", "address", "version", "joining", "first", "since")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    JOINING_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    number: int
    incarnation: int
    address: str
    version: str
    joining: bool
    first: int
    since: int
    def __init__(self, name: _Optional[str] = ..., number: _Optional[int] = ..., incarnation: _Optional[int] = ..., address: _Optional[str] = ..., version: _Optional[str] = ..., joining: _Optional[bool] = ..., first: _Optional[int] = ..., since: _Optional[int] = ...) -> None: ...

class Membership(_message.Message):
    __slots__ = ("revision", "members")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    members: _containers.RepeatedCompositeFieldContainer[MemberInfo]
    def __init__(self, revision: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberInfo, _Mapping[str, object]]]] = ...) -> None: ...

class Applied(_message.Message):
    __slots__ = ("node", "epoch", "version")
    NODE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    node: int
    epoch: int
    version: int
    def __init__(self, node: _Optional[int] = ..., epoch: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("epoch", "version", "vector", "heard", "connected", "serving", "membership", "relayed", "number", "taken", "listeners", "draining", "clients", "retained", "gone", "since", "changed")
    class HeardEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class RelayedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class TakenEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class GoneEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    RELAYED_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    LISTENERS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    RETAINED_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: int
    vector: _containers.RepeatedCompositeFieldContainer[Applied]
    heard: _containers.ScalarMap[int, int]
    connected: _containers.RepeatedScalarFieldContainer[int]
    serving: bool
    membership: Membership
    relayed: _containers.ScalarMap[int, int]
    number: int
    taken: _containers.ScalarMap[int, int]
    listeners: _containers.RepeatedScalarFieldContainer[str]
    draining: bool
    clients: int
    retained: int
    gone: _containers.ScalarMap[int, int]
    since: int
    changed: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[int] = ..., vector: _Optional[_Iterable[_Union[Applied, _Mapping[str, object]]]] = ..., heard: _Optional[_Mapping[int, int]] = ..., connected: _Optional[_Iterable[int]] = ..., serving: _Optional[bool] = ..., membership: _Optional[_Union[Membership, _Mapping[str, object]]] = ..., relayed: _Optional[_Mapping[int, int]] = ..., number: _Optional[int] = ..., taken: _Optional[_Mapping[int, int]] = ..., listeners: _Optional[_Iterable[str]] = ..., draining: _Optional[bool] = ..., clients: _Optional[int] = ..., retained: _Optional[int] = ..., gone: _Optional[_Mapping[int, int]] = ..., since: _Optional[int] = ..., changed: _Optional[_Iterable[int]] = ...) -> None: ...

class EpochStart(_message.Message):
    __slots__ = ("epoch", "first")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    first: int
    def __init__(self, epoch: _Optional[int] = ..., first: _Optional[int] = ...) -> None: ...

class RouteRecords(_message.Message):
    __slots__ = ("epoch", "first", "records", "history", "quiet")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    QUIET_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    first: int
    records: bytes
    history: _containers.RepeatedCompositeFieldContainer[EpochStart]
    quiet: bool
    def __init__(self, epoch: _Optional[int] = ..., first: _Optional[int] = ..., records: _Optional[bytes] = ..., history: _Optional[_Iterable[_Union[EpochStart, _Mapping[str, object]]]] = ..., quiet: _Optional[bool] = ...) -> None: ...

class RouteApplied(_message.Message):
    __slots__ = ("epoch", "version", "retained")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RETAINED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: int
    retained: int
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[int] = ..., retained: _Optional[int] = ...) -> None: ...

class SyncRequest(_message.Message):
    __slots__ = ("epoch", "version", "of")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: int
    of: int
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[int] = ..., of: _Optional[int] = ...) -> None: ...

class RouteSnapshot(_message.Message):
    __slots__ = ("epoch", "version", "chunk", "last", "records", "of")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: int
    chunk: int
    last: bool
    records: bytes
    of: int
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[int] = ..., chunk: _Optional[int] = ..., last: _Optional[bool] = ..., records: _Optional[bytes] = ..., of: _Optional[int] = ...) -> None: ...

class Data(_message.Message):
    __slots__ = ("sequence", "count", "blob", "waited", "kept")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    count: int
    blob: bytes
    waited: float
    kept: bool
    def __init__(self, sequence: _Optional[int] = ..., count: _Optional[int] = ..., blob: _Optional[bytes] = ..., waited: _Optional[float] = ..., kept: _Optional[bool] = ...) -> None: ...

class DataAck(_message.Message):
    __slots__ = ("sequence", "room")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    room: int
    def __init__(self, sequence: _Optional[int] = ..., room: _Optional[int] = ...) -> None: ...

class HandshakeCall(_message.Message):
    __slots__ = ("number", "questions", "users")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    number: int
    questions: bytes
    users: bytes
    def __init__(self, number: _Optional[int] = ..., questions: _Optional[bytes] = ..., users: _Optional[bytes] = ...) -> None: ...

class HandshakeReply(_message.Message):
    __slots__ = ("number", "since", "answers")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    number: int
    since: int
    answers: bytes
    def __init__(self, number: _Optional[int] = ..., since: _Optional[int] = ..., answers: _Optional[bytes] = ...) -> None: ...

class Allotment(_message.Message):
    __slots__ = ("node", "online", "room", "standing", "limit")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ONLINE_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    node: int
    online: int
    room: int
    standing: int
    limit: int
    def __init__(self, node: _Optional[int] = ..., online: _Optional[int] = ..., room: _Optional[int] = ..., standing: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class Pull(_message.Message):
    __slots__ = ("key", "epoch", "allotments", "stands")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ALLOTMENTS_FIELD_NUMBER: _ClassVar[int]
    STANDS_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    epoch: int
    allotments: _containers.RepeatedCompositeFieldContainer[Allotment]
    stands: bool
    def __init__(self, key: _Optional[bytes] = ..., epoch: _Optional[int] = ..., allotments: _Optional[_Iterable[_Union[Allotment, _Mapping[str, object]]]] = ..., stands: _Optional[bool] = ...) -> None: ...

class GroupPull(_message.Message):
    __slots__ = ("number", "pulls")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PULLS_FIELD_NUMBER: _ClassVar[int]
    number: int
    pulls: _containers.RepeatedCompositeFieldContainer[Pull]
    def __init__(self, number: _Optional[int] = ..., pulls: _Optional[_Iterable[_Union[Pull, _Mapping[str, object]]]] = ...) -> None: ...

class Taken(_message.Message):
    __slots__ = ("node", "count")
    NODE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    node: int
    count: int
    def __init__(self, node: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class GroupState(_message.Message):
    __slots__ = ("key", "epoch", "waiting", "online", "room", "taken", "wants", "limit")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    ONLINE_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    WANTS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    epoch: int
    waiting: int
    online: int
    room: int
    taken: _containers.RepeatedCompositeFieldContainer[Taken]
    wants: bool
    limit: int
    def __init__(self, key: _Optional[bytes] = ..., epoch: _Optional[int] = ..., waiting: _Optional[int] = ..., online: _Optional[int] = ..., room: _Optional[int] = ..., taken: _Optional[_Iterable[_Union[Taken, _Mapping[str, object]]]] = ..., wants: _Optional[bool] = ..., limit: _Optional[int] = ...) -> None: ...

class GroupReport(_message.Message):
    __slots__ = ("number", "states")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    number: int
    states: _containers.RepeatedCompositeFieldContainer[GroupState]
    def __init__(self, number: _Optional[int] = ..., states: _Optional[_Iterable[_Union[GroupState, _Mapping[str, object]]]] = ...) -> None: ...

class OperatorCall(_message.Message):
    __slots__ = ("number", "question")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    number: int
    question: bytes
    def __init__(self, number: _Optional[int] = ..., question: _Optional[bytes] = ...) -> None: ...

class ShareFrame(_message.Message):
    __slots__ = ("version", "sequence", "taken", "messages", "table")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    version: int
    sequence: int
    taken: int
    messages: bytes
    table: bytes
    def __init__(self, version: _Optional[int] = ..., sequence: _Optional[int] = ..., taken: _Optional[int] = ..., messages: _Optional[bytes] = ..., table: _Optional[bytes] = ...) -> None: ...

class OperatorReply(_message.Message):
    __slots__ = ("number", "answer")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    number: int
    answer: bytes
    def __init__(self, number: _Optional[int] = ..., answer: _Optional[bytes] = ...) -> None: ...
