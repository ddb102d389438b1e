"""Actions on the streams of this node, for commands, for the bulk service, and for other nodes."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from starlingmq.admin.stream_requests import (
    AccessRequest,
    ConsumerPosition,
    NewStream,
    OneConsumer,
    OneStream,
    StreamsReply,
    StreamTrim,
)
from starlingmq.admin.typed_actions import NoArguments, typed
from starlingmq.auth.readers import ReaderAccess, StreamReaders
from starlingmq.net.control_socket import Action, Report
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

    def actions(self) -> dict[str, Action]:
        return {
            "stream.create": typed(NewStream, self.create),
            "stream.list": typed(NoArguments, self.list_streams),
            "stream.show": typed(OneStream, self.show),
            "stream.trim": typed(StreamTrim, self.trim),
            "stream.delete": typed(OneStream, self.delete),
            "stream.commit": typed(ConsumerPosition, self.commit),
            "stream.nodes": typed(NoArguments, self.nodes),
            "stream.forget": typed(OneConsumer, self.forget),
            "stream.access": typed(AccessRequest, self.access),
        }

    async def _copied(self, reply: T) -> T:
        """The reply, once the nodes that store copies have what was done."""
        await self.admin.store.copied()
        return reply

    async def create(self, report: Report, request: NewStream) -> StreamView:
        return await self._copied(self.admin.create(request.settings()))

    async def list_streams(self, report: Report, request: NoArguments) -> StreamsReply:
        return StreamsReply(self.admin.views(), self.admin.node)

    async def show(self, report: Report, request: OneStream) -> StreamView:
        return replace(self.admin.show(request.name), node=self.admin.node)

    async def trim(self, report: Report, request: StreamTrim) -> StreamTrimmed:
        return await self._copied(await self.admin.trim(request.name, request.before))

    async def delete(self, report: Report, request: OneStream) -> StreamDeleted:
        return await self._copied(await self.admin.delete(request.name))

    async def commit(self, report: Report, request: ConsumerPosition) -> ConsumerLag:
        return await self._copied(self.admin.commit(request.name, request.consumer, request.next, request.pins))

    async def nodes(self, report: Report, request: NoArguments) -> ReadableNodes:
        return self.admin.nodes()

    async def forget(self, report: Report, request: OneConsumer) -> ConsumerForgotten:
        return await self._copied(self.admin.forget(request.name, request.consumer))

    async def access(self, report: Report, request: AccessRequest) -> ReaderAccess:
        return await self._readers.access(request.user, request.peer, request.streams.split("\n"))
