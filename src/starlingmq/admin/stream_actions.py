"""Actions on the streams of this node, for commands, for the bulk service, and for other nodes."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from starlingmq.admin.declared_actions import action
from starlingmq.admin.stream_requests import (
    AccessRequest,
    ConsumerPosition,
    NewStream,
    OneConsumer,
    OneStream,
    StreamsReply,
    StreamTrim,
)
from starlingmq.auth.readers import ReaderAccess, StreamReaders
from starlingmq.storage.streams.stream_admin import StreamAdmin
from starlingmq.storage.streams.stream_views import (
    ConsumerForgotten,
    ConsumerLag,
    ReadableNodes,
    StreamDeleted,
    StreamTrimmed,
    StreamView,
)

T = TypeVar("T")


class StreamActions:
    def __init__(self, admin: StreamAdmin, readers: StreamReaders) -> None:
        self.admin = admin
        self._readers = readers

    async def _copied(self, reply: T) -> T:
        """The reply, once the nodes that store copies have what was done."""
        await self.admin.store.copied()
        return reply

    @action("stream.create", audit="created the stream {name!r}")
    async def create(self, request: NewStream) -> StreamView:
        return await self._copied(self.admin.create(request.settings()))

    @action("stream.list")
    async def list_streams(self) -> StreamsReply:
        return StreamsReply(self.admin.views(), self.admin.node)

    @action("stream.show")
    async def show(self, request: OneStream) -> StreamView:
        return replace(self.admin.show(request.name), node=self.admin.node)

    @action("stream.trim", audit="deleted messages of the stream {name!r}, up to offset {first}")
    async def trim(self, request: StreamTrim) -> StreamTrimmed:
        return await self._copied(await self.admin.trim(request.name, request.before))

    @action("stream.delete", audit="deleted the stream {name!r}")
    async def delete(self, request: OneStream) -> StreamDeleted:
        return await self._copied(await self.admin.delete(request.name))

    @action("stream.commit")
    async def commit(self, request: ConsumerPosition) -> ConsumerLag:
        return await self._copied(self.admin.commit(request.name, request.consumer, request.next, request.pins))

    @action("stream.nodes")
    async def nodes(self) -> ReadableNodes:
        return self.admin.nodes()

    @action("stream.forget", audit="deleted the position of the consumer {consumer!r} of the stream {name!r}")
    async def forget(self, request: OneConsumer) -> ConsumerForgotten:
        return await self._copied(self.admin.forget(request.name, request.consumer))

    @action("stream.access")
    async def access(self, request: AccessRequest) -> ReaderAccess:
        return await self._readers.access(request.user, request.peer, request.streams.split("\n"))
