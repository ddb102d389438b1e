"""The retained messages of a world's cluster: in etcd now, in etcd at any time, and as nodes show them."""

from __future__ import annotations

from tests.sim.etcd_store import Store
from tests.sim.node import Process

from starlingmq.cluster.retained.retained_records import MARK, RetainedError, RetainedValue, decode_value, prefix

KEYS = prefix("starling")


def retained_in(store: Store) -> dict[bytes, RetainedValue]:
    """By topic."""
    found = {entry.key[len(KEYS) :]: entry.value for entry in store.get(KEYS, prefix=True)}
    return {topic: decode_value(value) for topic, value in found.items() if not topic.startswith(MARK)}


def retained_ever(store: Store) -> dict[bytes, None]:
    """Payloads of all messages that were in etcd at some time, as far as they are there as a whole."""
    found: dict[bytes, None] = {}
    for value in store.written:
        try:
            found[decode_value(value).payload] = None
        except RetainedError:
            continue
    return found


def written_again(store: Store) -> list[str]:
    """Messages that were put twice: one of another node may have been there in between."""
    found: list[str] = []
    for data, count in store.written.items():
        try:
            value = decode_value(data)
        except RetainedError:
            continue
        if count > 1:
            found.append(f"{value} was written {count} times")
    return found


def payload_of(processes: list[Process], topic: bytes, value: RetainedValue) -> bytes | None:
    """None: no node has it."""
    if not value.holders:
        return value.payload
    for process in processes:
        whole = process.cluster.retained.copies.whole(topic, value)
        if whole is not None:
            return whole.payload
    return None


def compare_retained(process: Process, wanted: dict[bytes, RetainedValue]) -> list[str]:
    """The retained messages that this node has wrong."""
    index = process.cluster.retained
    if index.state != "following":
        return [f"it is {index.state} what is retained"]
    if len(index.writer):
        return [f"{len(index.writer)} retained messages are to be written"]
    found: list[str] = []
    shown = dict(process.state.retained.items())
    for topic in {**wanted, **shown}:
        value, message = wanted.get(topic), shown.get(topic)
        if value is None or message is None:
            found.append(f"{topic!r} is {'not ' if message is None else ''}retained")
        elif value.holders and index.copies.pointers.get(topic, (None, 0))[0] != value:
            found.append(f"{topic!r} is {index.copies.pointers.get(topic)}, and should be {value}")
        elif not value.holders and message.payload != value.payload:
            found.append(f"{topic!r} is {message.payload!r}, and should be {value.payload!r}")
    return found
