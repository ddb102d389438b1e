"""Requests to the API in a cluster: those about a stream go to its home, what there is comes from the registry.

::

    CREATE of a new name --registry: it is this node's--> made here --> answer
    UPDATE, DELETE       --> home --registry--> done there --> answer
    LIST, INFO           --> all homes, which tell of their streams --> merged; those that do not answer are ``missing``
    others               --> home --> answer

The home follows the registry: it makes streams that it should have, and deletes the data of a stream whose entry is
``ending``, before the entry goes. A stream that is there is what its home has: if its entry says something else, or is
missing, because etcd has an older document or none, or a change was cut short, or a broker was alone, the home writes
it. So no crash in between leaves two truths, and no data is deleted that no client has deleted. If the name or subjects
of such a stream are another one's, it gets no messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from starlingmq.cluster.streams.stream_frames import ApiCall
from starlingmq.cluster.streams.stream_registry import FULL, Entries, Registration, RegistryChange, StreamEntry
from starlingmq.core.jetstream.requesters import Requester
from starlingmq.core.streams.policies import StreamPolicy
from starlingmq.core.streams.sequenced_stream import SequencedStream
from starlingmq.jetstream import api_errors as e
from starlingmq.jetstream import consumer_api, message_api, stream_api
from starlingmq.jetstream.api import (
    ABOUT_STREAMS,
    PREFIX,
    STATUSES,
    ApiRoute,
    account_info,
    answered,
    refused,
    route_of,
)
from starlingmq.jetstream.api_errors import ApiError
from starlingmq.jetstream.api_requests import Api, ApiRequest, NotAllowedError
from starlingmq.jetstream.api_rights import check_rights
from starlingmq.jetstream.json_forms import require_empty
from starlingmq.jetstream.stream_config import stream_config_of, stream_policy
from starlingmq.jetstream.subjects import FiltersOfStreams

if TYPE_CHECKING:
    from starlingmq.cluster.streams.cluster_streams import ClusterStreams
    from starlingmq.jetstream.jetstream_service import JetStreamService

log = logging.getLogger("starlingmq.jetstream")

MADE: Final = "stream %s is in the registry of the cluster, and was not here: it was made%s"
LOST: Final = " again, without the messages it had"
SUMMED: Final = ("memory", "storage", "reserved_memory", "reserved_storage", "streams", "consumers")


class ClusterApi(Api):
    """It knows the streams of all nodes."""

    entries: Callable[[], Entries]
    filters: Callable[[], dict[str, list[bytes]]]

    def config_of(self, name: str) -> bytes | None:
        entry = self.entries().get(name)
        return super().config_of(name) if entry is None else entry.config.encode()

    def stream_names(self) -> Iterable[str]:
        return {**self.entries(), **self.hub.streams}

    def count_streams(self) -> int:
        return len({**self.entries(), **self.hub.streams})

    def subjects_of(self, name: str) -> list[bytes]:
        found = self.filters().get(name)
        return super().subjects_of(name) if found is None else found


class ClusterRequests:
    def __init__(self, service: JetStreamService, streams: ClusterStreams, cluster: str, copies: int) -> None:
        self.service = service
        self.streams = streams
        self.api = service.api
        assert isinstance(self.api, ClusterApi)
        self.api.entries = lambda: streams.registry.entries
        self.api.filters = lambda: streams.registry.filters
        self.api.replicas_max = max(copies, 1)
        self.api.place = {"cluster": {"name": cluster, "leader": streams.name}}
        self._changing: dict[str, None] = {}  # names whose entries this node is changing
        self.registers = False  # a ``_Adoption`` waits
        service.on_deletion(self._delete)
        streams.on_ask = self.tell

    # Requests

    def take(self, asked: ApiRequest) -> None:
        """Of a client of this node."""
        self._take(asked, False)

    def _take(self, asked: ApiRequest, looked: bool) -> None:
        """``looked``: the registry has just been read for it."""
        route, names = route_of(asked.subject.removeprefix(PREFIX).split("."))
        try:
            if is_beyond(asked):
                self.service.answer_here(asked)
            elif route.handler in (account_info, stream_api.infos):
                self._merge(asked, route)
            elif not names or route.handler not in ABOUT_STREAMS:
                self.service.answer_here(asked)
            elif not self.streams.registry.is_read():
                raise ApiError(e.CLUSTER_NOT_AVAILABLE)
            elif route.handler is stream_api.create:
                self._change(_Creation(self, asked, route, names))
            else:
                self._ask_home(asked, route, names, looked)
        except ApiError as error:
            self.refuse(asked, route, error)
        except NotAllowedError:
            asked.refuse()

    def _ask_home(self, asked: ApiRequest, route: ApiRoute, names: list[str], looked: bool) -> None:
        entry = self.streams.registry.entries.get(names[0])
        if entry is None and not looked and names[0] not in self.api.hub.streams:
            self.streams.look_again(self.service.now(), lambda: self._take(asked, True))
            self.service.turn()
        elif entry is not None and entry.home != self.streams.name:
            self.pass_on(asked, route, names, entry)
        elif names[0] not in self.api.hub.streams and not self.streams.are_all_registered():
            raise ApiError(e.CLUSTER_NOT_AVAILABLE)
        else:
            self._answer_at_home(asked, route, names)

    def pass_on(self, asked: ApiRequest, route: ApiRoute, names: list[str], entry: StreamEntry) -> None:
        """Raises ApiError, NotAllowedError."""
        check_rights(self.api, route.handler, names, asked)
        if route.handler is consumer_api.next_message and asked.requester.is_gone():
            return  # the home would not hear of its end any more
        home = self.streams.number_of(entry.home)
        if self.streams.outbox.reaches(home):
            requester = asked.requester
            call = ApiCall(requester.client_id, asked.subject, asked.reply, asked.headers, asked.payload)
            self.streams.call(home, requester, call)
            self.service.turn()
        elif route.handler in STATUSES:
            asked.no_responders()
            self.service.turn()
        else:
            raise ApiError(e.CLUSTER_NOT_AVAILABLE)

    def called(self, requester: Requester, call: ApiCall, now: float) -> None:
        """By a client of another node, which has looked at its rights."""
        asked = ApiRequest(call.subject, call.payload, call.headers, call.reply, requester, None, now)
        route, names = route_of(asked.subject.removeprefix(PREFIX).split("."))
        known = bool(names) and route.handler in ABOUT_STREAMS and names[0] in self.api.hub.streams
        if known and not self._is_elsewhere(names[0]):
            self._answer_at_home(asked, route, names)
        elif route.handler in STATUSES:
            asked.no_responders()
        else:
            self.refuse(asked, route, ApiError(e.CLUSTER_NOT_AVAILABLE if known else e.STREAM_NOT_FOUND))

    def _is_elsewhere(self, name: str) -> bool:
        """Whether another node has the stream of this name: one that is here gets no messages."""
        entry = self.streams.registry.entries.get(name)
        return entry is not None and entry.home != self.streams.name

    def _answer_at_home(self, asked: ApiRequest, route: ApiRoute, names: list[str]) -> None:
        if is_beyond(asked):
            self.service.answer_here(asked)
        elif route.handler is stream_api.update and names[0] in self.api.hub.streams:
            self._change(_Update(self, asked, route, names))
        elif route.handler is stream_api.delete and names[0] in self.api.hub.streams:
            self._change(_Deletion(self, asked, route, names))
        else:
            self.service.answer_here(asked)

    def _change(self, change: RegistryChange) -> None:
        self.streams.change(change)
        self.service.turn()

    def refuse(self, asked: ApiRequest, route: ApiRoute, error: ApiError) -> None:
        self.service.reply(asked, refused(self.api, route, error))

    # Lists and sums of all nodes

    def _merge(self, asked: ApiRequest, route: ApiRoute) -> None:
        """Raises ApiError."""
        entries = self.streams.registry.entries
        if route.handler is account_info:
            nodes: dict[int, list[str] | None] = dict.fromkeys(self.streams.others())
            here = account_info(self.api, [], asked)
            self.streams.ask(nodes, asked.now, lambda told: self._answer_sum(asked, route, here, told))
        else:
            found, page = stream_api.infos_page(self.api, asked)
            wanted: dict[int, list[str]] = {}
            for name in found:
                entry = entries.get(name)
                home = 0 if entry is None or entry.home == self.streams.name else self.streams.number_of(entry.home)
                if self.streams.outbox.reaches(home):
                    wanted.setdefault(home, []).append(name)
            infos = stream_api.listed(self.api, found, asked.now)
            self.streams.ask(
                dict(wanted), asked.now, lambda told: self._answer_list(asked, route, found, {**page}, infos, told)
            )
        self.service.turn()

    def _answer_sum(self, asked: ApiRequest, route: ApiRoute, fields: dict[str, Any], told: dict[int, bytes]) -> None:
        self.api.total += 1
        for payload in told.values():
            other = _told(payload)
            for name in SUMMED:
                found = other.get(name)
                fields[name] += found if isinstance(found, int) else 0
        self.service.reply(asked, answered(route, fields))

    def _answer_list(
        self,
        asked: ApiRequest,
        route: ApiRoute,
        names: list[str],
        fields: dict[str, Any],
        infos: list[dict[str, Any]],
        told: dict[int, bytes],
    ) -> None:
        self.api.total += 1
        by_name = {info["config"]["name"]: info for info in infos}
        for payload in told.values():
            try:
                by_name.update({info["config"]["name"]: info for info in _told(payload).get("streams", [])})
            except (TypeError, LookupError):
                log.warning("another node tells of its streams in a form that is not known here")
        fields["streams"] = [by_name[name] for name in names if name in by_name]
        missing = [name for name in names if name not in by_name]
        if missing:
            fields["missing"] = missing
        self.service.reply(asked, answered(route, fields))

    def tell(self, names: list[str] | None) -> bytes:
        """The answer to another node that asks about the streams here."""
        now = self.service.now()
        if names is None:
            request = ApiRequest(f"{PREFIX}INFO", b"", b"", b"", Requester(""), None, now)
            return msgspec.json.encode(account_info(self.api, [], request))
        return msgspec.json.encode({"streams": stream_api.listed(self.api, names, now)})

    # The registry

    def follow(self) -> None:
        """Make the streams that the registry has, and register those that are here."""
        registry, hub = self.streams.registry, self.api.hub
        if self.streams.leaving or not registry.known:
            return
        for name, entry in registry.entries.items():
            if entry.home != self.streams.name or name in self._changing:
                continue
            stream = hub.streams.get(name)
            if entry.ending and (stream is None or stream.created == entry.ending):
                self.end_stream(name, stream, lambda: None)
            elif stream is None:
                self._make(name, entry.config.encode())
        if not self.registers:
            self.registers = True
            self._change(_Adoption(self))

    def _make(self, name: str, config: bytes) -> None:
        try:
            policy = _policy(config)
            self.api.hub.create(name, policy, config)
            level, lost = (logging.INFO, "") if policy.memory else (logging.WARNING, LOST)
            log.log(level, MADE, name, lost)
        except (ApiError, ValueError) as error:
            log.error("stream %s cannot be made as the cluster knows it: %s", name, error)

    def end_stream(self, name: str, stream: SequencedStream | None, then: Callable[[], None]) -> None:
        """Delete its data, and then its entry."""
        self.begin(name)
        removing = None if stream is None or stream.removed else self.service.remove(stream)
        if removing is None:
            self.remove_entry(name, then)
        else:
            removing.add_done_callback(lambda _: self.remove_entry(name, then))

    async def _delete(self, stream: SequencedStream) -> None:
        """An operator does: the registry is told first, as by the API. Raises StreamActionError."""
        from starlingmq.storage.streams.stream_files import StreamActionError

        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._change(_OperatorDeletion(self, stream, done))
        if why := await done:
            raise StreamActionError(f"stream {stream.name} was not deleted: {why}")

    def set_aside(self, stream: SequencedStream, why: str) -> None:
        """Until its subjects, or its name, are free."""
        if not self.service.hub.is_aside(stream):
            self.service.hub.set_aside(stream)
            log.warning("stream %s gets no messages: %s; delete one of them", stream.name, why)

    def remove_entry(self, name: str, then: Callable[[], None]) -> None:
        """Once its data is deleted at all nodes that had it: else a copy would be taken for a stream without entry."""

        def copied(done: bool) -> None:
            removal = _Removal(self, name, then)
            if done:
                self._change(removal)
            else:
                removal.failed("")

        self.begin(name)
        self.service.when_copied(copied)

    def begin(self, name: str) -> None:
        self._changing[name] = None

    def is_changing(self, name: str) -> bool:
        return name in self._changing

    def end(self, name: str) -> None:
        self._changing.pop(name, None)


def is_beyond(asked: ApiRequest) -> bool:
    """Whether it asks for more than this version can: it is refused before anything is changed."""
    return asked.headers != b"" and message_api.requires_higher_level(asked.headers)


def _told(payload: bytes) -> dict[str, Any]:
    """The answer of another node about its streams; nothing if this version cannot read it."""
    try:
        return msgspec.json.decode(payload, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def _policy(config: bytes) -> StreamPolicy:
    return stream_policy(stream_config_of(config))


class _Change(RegistryChange):
    """A request that changes the registry."""

    def __init__(self, requests: ClusterRequests, asked: ApiRequest, route: ApiRoute, names: list[str]) -> None:
        self.requests = requests
        self.asked = asked
        self.route = route
        self.names = names
        self.begun = False

    def decide(self, entries: Entries) -> Entries | None:
        try:
            wanted = self.wanted(entries)
        except ApiError as error:
            self.requests.refuse(self.asked, self.route, error)
            wanted = None
        except NotAllowedError:
            self.asked.refuse()
            wanted = None
        if wanted is None:
            self.end()
        else:
            self.begun = True
            self.requests.begin(self.names[0])
        return wanted

    def end(self) -> None:
        """If it has not begun, another change of this stream may be under way."""
        if self.begun:
            self.requests.end(self.names[0])

    def wanted(self, entries: Entries) -> Entries | None:
        """Raises ApiError, NotAllowedError. None: it is answered."""
        raise NotImplementedError

    def require_all(self) -> None:
        """Raises ApiError while a name or subject that seems free may be that of a stream of another node."""
        if not self.requests.streams.are_all_registered():
            raise ApiError(e.CLUSTER_NOT_AVAILABLE)

    def require_here(self, entries: Entries) -> None:
        """Raises ApiError if the entry is that of another node's stream, or of one that is being deleted."""
        entry = entries.get(self.names[0])
        if entry is not None and (entry.ending or entry.home != self.requests.streams.name):
            raise ApiError(e.CLUSTER_NOT_AVAILABLE)

    def done(self) -> None:
        self.end()
        service, streams = self.requests.service, self.requests.streams

        def first(then: Callable[[], None]) -> None:  # a successor of this home registers its own settings
            service.when_copied(lambda done: streams.when_known(service.now(), then))

        service.answer_here(self.asked, first)

    def failed(self, why: str) -> None:
        self.end()
        log.debug("a request about stream %s is refused: %s", self.names[0], why)
        kind = e.INSUFFICIENT_RESOURCES if why == FULL else e.CLUSTER_NOT_AVAILABLE
        self.requests.refuse(self.asked, self.route, ApiError(kind))


class _Creation(_Change):
    def wanted(self, entries: Entries) -> Entries | None:
        requests, name = self.requests, self.names[0]
        entry = entries.get(name)
        if entry is not None and entry.ending:
            raise ApiError(e.CLUSTER_NOT_AVAILABLE)  # the name will be free when its data is deleted
        if entry is not None and entry.home != requests.streams.name:
            requests.pass_on(self.asked, self.route, self.names, entry)
            return None
        check_rights(requests.api, self.route.handler, self.names, self.asked)
        checked = stream_api.checked_creation(requests.api, self.names, self.asked)
        if entry is not None or checked.policy is None:
            requests.service.answer_here(self.asked)
            return None
        self.require_all()
        return {**entries, name: _entry(requests.streams.name, checked.policy.subjects, checked.stored)}

    def done(self) -> None:
        super().done()
        name = self.names[0]
        if name not in self.requests.api.hub.streams:  # its files could not be made, as the client was told
            self.requests.remove_entry(name, lambda: None)


class _Update(_Change):
    def wanted(self, entries: Entries) -> Entries | None:
        requests, name = self.requests, self.names[0]
        self.require_here(entries)
        check_rights(requests.api, self.route.handler, self.names, self.asked)
        checked = stream_api.checked_update(requests.api, self.names, self.asked)
        assert checked.policy is not None
        entry = _entry(requests.streams.name, checked.policy.subjects, checked.stored)
        if entries.get(name) == entry:
            requests.service.answer_here(self.asked)
            return None
        self.require_all()
        return {**entries, name: entry}


class _Deletion(_Change):
    def wanted(self, entries: Entries) -> Entries | None:
        requests, name = self.requests, self.names[0]
        require_empty(self.asked.payload)
        stream = requests.api.stream(name)
        self.require_here(entries)
        entry = entries.get(name)
        if entry is None:
            requests.service.answer_here(self.asked)
            return None
        return {**entries, name: msgspec.structs.replace(entry, ending=stream.created)}

    def done(self) -> None:
        requests, name = self.requests, self.names[0]
        if name in requests.api.hub.streams:
            requests.service.answer_here(self.asked, lambda then: requests.remove_entry(name, then))
        else:
            requests.remove_entry(name, lambda: requests.refuse(self.asked, self.route, ApiError(e.STREAM_NOT_FOUND)))


class _OperatorDeletion(RegistryChange):
    def __init__(self, requests: ClusterRequests, stream: SequencedStream, answer: asyncio.Future[str]) -> None:
        self.requests = requests
        self.stream = stream
        self.answer = answer

    def decide(self, entries: Entries) -> Entries | None:
        entry = entries.get(self.stream.name)
        if entry is None or entry.home != self.requests.streams.name:
            self.done()
            return None
        self.requests.begin(self.stream.name)
        return {**entries, self.stream.name: msgspec.structs.replace(entry, ending=self.stream.created)}

    def done(self) -> None:
        self.requests.end_stream(self.stream.name, self.stream, lambda: self.failed(""))

    def failed(self, why: str) -> None:
        """``why`` "": it is done."""
        self.requests.end(self.stream.name)
        if not self.answer.done():
            self.answer.set_result(why)


class _Removal(RegistryChange):
    """The data of a stream is deleted: its entry goes."""

    def __init__(self, requests: ClusterRequests, name: str, then: Callable[[], None]) -> None:
        self.requests = requests
        self.name = name
        self.then = then

    def decide(self, entries: Entries) -> Entries | None:
        entry = entries.get(self.name)
        if entry is None or entry.home != self.requests.streams.name:
            self.done()
            return None
        self.requests.begin(self.name)
        return {name: each for name, each in entries.items() if name != self.name}

    def done(self) -> None:
        self.requests.end(self.name)
        self.then()

    def failed(self, why: str) -> None:
        """The entry is still there."""
        self.requests.end(self.name)
        self.requests.streams.follow_later()
        self.then()


class _Adoption(Registration):
    """The streams here whose entries are missing, or say something else."""

    def __init__(self, requests: ClusterRequests) -> None:
        super().__init__(requests.streams)
        self.requests = requests
        self.adopted: list[SequencedStream] = []

    def decide(self, entries: Entries) -> Entries | None:
        self.requests.registers = False
        wanted, differ = dict(entries), list[SequencedStream]()
        for stream in self.requests.api.hub.streams.values():
            if not self.requests.is_changing(stream.name) and self._differs(stream, entries.get(stream.name)):
                differ.append(stream)
        if differ:
            self._adopt(differ, wanted)
        return wanted if wanted != entries else super().decide(entries)

    def _differs(self, stream: SequencedStream, entry: StreamEntry | None) -> bool:
        if entry is not None and entry.home != self.streams.name:
            self.requests.set_aside(stream, f"{entry.home} has a stream of this name")
            return False
        if entry == self._own(stream):
            self.requests.service.hub.take_back(stream)  # it was registered, and etcd did not say so
            return False
        return entry is None or entry.ending != stream.created

    def _own(self, stream: SequencedStream) -> StreamEntry:
        return _entry(self.streams.name, stream.policy.subjects, stream.config)

    def _adopt(self, differ: list[SequencedStream], wanted: dict[str, StreamEntry]) -> None:
        filters, names = FiltersOfStreams(), {stream.name for stream in differ}
        for name, entry in wanted.items():
            if name not in names:
                filters.add(entry.filters(), name)
        for stream in differ:
            taken = filters.taken(stream.policy.subjects)
            if taken:
                self.requests.set_aside(stream, f"stream {taken} has subjects in common")
            else:
                wanted[stream.name] = self._own(stream)
                self.adopted.append(stream)
            if stream.name in wanted:
                filters.add(wanted[stream.name].filters(), stream.name)

    def done(self) -> None:
        for stream in self.adopted:
            if not stream.removed:
                self.requests.service.hub.take_back(stream)

    def failed(self, why: str) -> None:
        self.requests.registers = False
        super().failed(why)


def _entry(home: str, subjects: list[bytes], config: bytes) -> StreamEntry:
    return StreamEntry(home, tuple(each.decode() for each in subjects), config.decode())
