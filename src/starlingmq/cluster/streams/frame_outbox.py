"""The frames of a turn to the homes of streams and to the nodes of their clients."""

from __future__ import annotations

from collections.abc import Callable

from starlingmq.cluster.streams.stream_frames import BATCH_BYTES, StreamFrame, encode_frame, pack
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.session.session import Session


class NodeFrames:
    """Of one node. ``stored``: those that tell what is stored."""

    def __init__(self) -> None:
        self.brief: list[bytes] = []
        self.stored: list[bytes] = []


class FrameOutbox:
    """``session_of``: the receiver that stands for a node; None: it is no member."""

    waits: bool  # there are frames

    def __init__(self, delivery: Delivery, session_of: Callable[[int], Session | None]) -> None:
        self.waits = False
        self._delivery = delivery
        self._session_of = session_of
        self._nodes: dict[int, NodeFrames] = {}

    def reaches(self, node: int) -> bool:
        session = self._session_of(node)
        return session is not None and session.client is not None

    def add(self, node: int, frame: StreamFrame, stored: bool = False) -> None:
        frames = self._nodes.get(node)
        if frames is None:
            frames = self._nodes[node] = NodeFrames()
        (frames.stored if stored else frames.brief).append(encode_frame(frame))
        self.waits = True

    def flush(self) -> None:
        nodes, self._nodes, self.waits = self._nodes, {}, False
        for node, frames in nodes.items():
            session = self._session_of(node)
            if session is None:
                continue
            for payload in _batches(frames.brief):
                self._delivery.send_to_node(session, payload, 0)
            for payload in _batches(frames.stored):
                self._delivery.send_to_node(session, payload)


def _batches(frames: list[bytes]) -> list[bytes]:
    found: list[bytes] = []
    batch: list[bytes] = []
    size = 0
    for frame in frames:
        if batch and size + len(frame) > BATCH_BYTES:
            found.append(pack(batch))
            batch, size = [], 0
        batch.append(frame)
        size += len(frame)
    if batch:
        found.append(pack(batch))
    return found
