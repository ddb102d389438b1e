"""Requests and answers of ``cluster.etcd.etcd_requests`` as messages of etcd, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlingmq.cluster.etcd.etcd_requests import (
    Compare,
    Get,
    KeyChange,
    KeyValue,
    Operation,
    Put,
    Txn,
    TxnAnswer,
    Watch,
    WatchEvent,
)
from starlingmq.net.proto import etcd_pb2 as pb

RESULTS: Final = {
    "=": pb.Compare.EQUAL,
    ">": pb.Compare.GREATER,
    "<": pb.Compare.LESS,
    "!=": pb.Compare.NOT_EQUAL,
}


def txn_request(txn: Txn, lease: int) -> pb.TxnRequest:
    return pb.TxnRequest(
        compare=[_compare(compare) for compare in txn.compares],
        success=_operations(txn.success, lease),
        failure=_operations(txn.failure, lease),
    )


def txn_answer(txn: Txn, response: pb.TxnResponse) -> TxnAnswer:
    found = tuple(tuple(_key_value(each) for each in op.response_range.kvs) for op in response.responses)
    return TxnAnswer(txn.tag, response.succeeded, response.header.revision, found)


def watch_request(watch: Watch, revision: int) -> pb.WatchRequest:
    create = pb.WatchCreateRequest(
        key=watch.prefix or b"\0", range_end=range_end(watch.prefix), start_revision=revision, progress_notify=True
    )
    return pb.WatchRequest(create_request=create)


def watch_event(watch: Watch, response: pb.WatchResponse) -> WatchEvent:
    changes = tuple(
        KeyChange(event.kv.key, None, event.kv.mod_revision)
        if event.type == pb.Event.DELETE
        else KeyChange(event.kv.key, event.kv.value, event.kv.mod_revision, event.kv.create_revision)
        for event in response.events
    )
    return WatchEvent(watch.prefix, changes[-1].mod_revision, changes)


def range_end(prefix: bytes) -> bytes:
    """The first key after all keys with this prefix; for an empty prefix, or one of 0xff bytes only, etcd's sign for
    all."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\0"


def _compare(compare: Compare) -> pb.Compare:
    message = pb.Compare(key=compare.key, result=RESULTS[compare.operator])
    if compare.target == "value":
        assert isinstance(compare.operand, bytes), "a value must be compared with bytes"
        message.target, message.value = pb.Compare.VALUE, compare.operand
        return message
    assert isinstance(compare.operand, int), "a revision must be compared with a number"
    if compare.target == "create_revision":
        message.target, message.create_revision = pb.Compare.CREATE, compare.operand
    else:
        message.target, message.mod_revision = pb.Compare.MOD, compare.operand
    return message


def _operations(operations: Iterable[Operation], lease: int) -> list[pb.RequestOp]:
    return [_operation(operation, lease) for operation in operations]


def _operation(operation: Operation, lease: int) -> pb.RequestOp:
    if isinstance(operation, Put):
        leased = lease if operation.leased else 0
        return pb.RequestOp(request_put=pb.PutRequest(key=operation.key, value=operation.value, lease=leased))
    end = range_end(operation.key) if operation.prefix else b""
    # etcd does not accept an empty key: the first possible key is the zero byte.
    key = operation.key or b"\0"
    if isinstance(operation, Get):
        start = operation.after + b"\0" if operation.after else key
        return pb.RequestOp(request_range=pb.RangeRequest(key=start, range_end=end, limit=operation.limit))
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key, range_end=end))


def _key_value(message: pb.KeyValue) -> KeyValue:
    return KeyValue(message.key, message.value, message.create_revision, message.mod_revision, message.lease)
