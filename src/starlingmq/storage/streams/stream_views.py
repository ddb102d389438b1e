"""Streams of one node as operators and readers see them."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType


class ConsumerView(Struct, frozen=True):
    """``lag``: messages between its position and the end. ``pins``: it holds back retention at the moment."""

    name: str
    next: int
    lag: int
    pins: bool
    heard_seconds: float


class StreamView(Struct, frozen=True):
    """``first`` and ``next`` are the bounds of the offsets that can be read. ``node`` is set in replies about several
    nodes."""

    name: str
    id: str
    topics: list[str]
    retention_time: float
    retention_size: int
    when_full: str
    created: float
    first: int
    next: int
    messages: int
    bytes: int
    files: int
    full: bool
    dropped: int
    consumers: list[ConsumerView]
    node: str | UnsetType = UNSET


class StreamTrimmed(Struct, frozen=True):
    """``trimmed``: messages that were deleted, the first one left being ``first``."""

    name: str
    first: int
    trimmed: int


class StreamDeleted(Struct, frozen=True):
    name: str


class ConsumerLag(Struct, frozen=True):
    """``name`` is that of the stream."""

    name: str
    lag: int


class ConsumerForgotten(Struct, frozen=True):
    """``name`` is that of the stream."""

    name: str
    consumer: str


class ReadableNode(Struct, frozen=True):
    """``away``: the node is not connected now."""

    name: str
    address: str
    away: bool


class ReadableNodes(Struct, frozen=True):
    """``cluster``: ``node`` is a member of one."""

    node: str
    cluster: bool
    nodes: list[ReadableNode]
