"""The filters that subscribers of this site have, as a link is told them, so that only what is wanted travels.

A session of a link (``core.messages.link_marks``) asks by SUBSCRIBE with these filters, and gets PUBLISH at QoS 0 with
the first of them as topic. One answer is under way at a time, so it costs the broker no more than one answer::

    $link/wanted      from the beginning: all filters
    $link/more        the changes since the last answer; it comes when there are some
    $link/complete    no answer: subscriptions of this session that have not been made since it asked from the
                      beginning end

An answer is a row of ``KIND FILTER NUL PATHS NUL``: ``+`` with the paths by which the filter came here, or ``-`` if it
is wanted no more; ``.`` ends what there was at the beginning. A path is the sites from the one with the subscriber to
this one, separated by spaces; paths, by semicolons. A site does not take a filter by a path that has it, so a filter
does not stay in a ring of sites after its last subscriber has gone. The path of a filter that a link has subscribed to
is known from its SUBSCRIBE (the User Property ``PATHS``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlingmq.core.context.context import Context
from starlingmq.core.messages.link_marks import base_of, is_link
from starlingmq.core.router.router import FilterWatcher, Router
from starlingmq.core.session.session import Client, Session, Subscription
from starlingmq.core.turn.job import Job
from starlingmq.wire.frames import publish_frame
from starlingmq.wire.mqtt import Subscribe
from starlingmq.wire.properties import USER_PROPERTY

OF_LINKS: Final = b"$link/"
WANTED: Final = b"$link/wanted"
MORE: Final = b"$link/more"
COMPLETE: Final = b"$link/complete"
PATHS: Final = "starlingmq-paths"
RESERVED: Final = (b"$SYS/", b"$events/", b"$bridge/", OF_LINKS)
ANSWER_BYTES: Final = 16_384
LOOKS: Final = 200  # filters of a step
KNOWN_SECONDS: Final = 60.0
PATHS_MAX: Final = 8  # of a filter: further ones are left out, as long as one is left it travels
PATH_CHARS_MAX: Final = 256  # a longer one is none


def some_of(paths: Iterable[str]) -> str:
    """The paths as they are told: not more than a property holds, the shortest first."""
    found = sorted({path for path in paths if 0 < len(path) <= PATH_CHARS_MAX}, key=lambda path: (len(path), path))
    return ";".join(sorted(found[:PATHS_MAX]))


class FilterFeed(Job):
    """That of one connection of a link. ``asked``: it waits for an answer."""

    owner: WantedFilters
    client: Client
    session: Session
    base: str  # of the client ids of all lanes
    pending: dict[bytes, None]
    told: dict[bytes, str]  # the paths of filters, as the other side knows them
    paths: dict[bytes, str]  # of the filters that it has subscribed to since it asked from the beginning
    asked: bool
    at_first: bool  # the filters that there were at the beginning are not all told
    queued: bool  # among the jobs
    complete: bool  # COMPLETE has come

    def __init__(self, owner: WantedFilters, client: Client, session: Session) -> None:
        self.owner = owner
        self.client = client
        self.session = session
        self.base = base_of(session.client_id)
        self.pending = dict(owner.known)
        self.told = {}
        self.paths = {}
        self.asked = True
        self.at_first = True
        self.queued = False
        self.complete = False

    def step(self) -> bool:
        """Look at some filters that have changed, and answer."""
        if self.session.client is not self.client:
            self.owner.end(self)
            return True
        answer: list[bytes] = []
        size = 0
        looked: list[bytes] = []
        room = ANSWER_BYTES if self.client.max_packet == 0 else min(ANSWER_BYTES, self.client.max_packet // 2)
        for filter in self.pending:
            if len(looked) >= LOOKS or size >= room:
                break
            looked.append(filter)
            said = self._say(filter)
            if said:
                answer.append(said)
                size += len(said)
        for filter in looked:
            del self.pending[filter]
        self.owner.ctx.work -= len(looked)
        if not self.pending and self.at_first:
            self.at_first = False
            answer.append(b".\0\0")
        if answer:
            self.asked = False
            payload = b"".join(answer)
            self.owner.ctx.send(self.client, publish_frame(WANTED, payload, 0, False, False, 0, 5, b""))
        self.queued = self.asked and len(self.pending) != 0
        return not self.queued

    def _say(self, filter: bytes) -> bytes:
        """The row of this filter in an answer; b"" if the other side knows it so."""
        paths = "" if filter.startswith(RESERVED) else self.owner.paths(filter, self.base)
        if paths == self.told.get(filter, ""):
            return b""
        if paths:
            self.told[filter] = paths
            return b"+%b\0%b\0" % (filter, paths.encode())
        del self.told[filter]
        return b"-%b\0\0" % filter

    def note(self, changed: Iterable[bytes], present: set[bytes]) -> None:
        """These filters have changed. Those that came and went before they were told are not remembered: the other
        side need not ask, and there may be any number of them."""
        for filter in changed:
            if filter in present or filter in self.told:
                self.pending[filter] = None
            else:
                self.pending.pop(filter, None)

    def rouse(self) -> None:
        if self.asked and not self.queued and (self.pending or self.at_first):
            self.queued = True
            self.owner.ctx.jobs.append(self)


class WantedFilters(FilterWatcher):
    """All feeds of a broker, and the filters that have changed since they were told so."""

    ctx: Context
    router: Router
    feeds: dict[str, FilterFeed]  # by client id
    changed: dict[bytes, None]
    known: dict[bytes, None]  # all filters that there are, while the router tells of changes
    until: float  # without feeds it does so until then: any client may ask, and come back to ask again

    def __init__(self, ctx: Context, router: Router) -> None:
        self.ctx = ctx
        self.router = router
        self.feeds = {}
        self.changed = {}
        self.known = {}
        self.until = 0.0

    def ask(self, client: Client, session: Session, filter: bytes) -> list[bytes]:
        """A link's client asks. Returns the filters whose subscriptions are to end."""
        feed = self.feeds.get(session.client_id)
        if filter == WANTED:
            if feed is not None and feed.client is client:
                return []  # once for each connection: all filters cost much
            if self.router.watcher is None:
                self.known = dict.fromkeys(self.router.tree.filters())
                self.router.watcher = self
            self.ctx.work -= len(self.known) // LOOKS
            feed = self.feeds[session.client_id] = FilterFeed(self, client, session)
            feed.rouse()
        elif feed is None or feed.client is not client:
            return []
        elif filter == MORE:
            feed.asked = True
            feed.rouse()
        elif filter == COMPLETE and not feed.complete:
            feed.complete = True
            return [
                whole
                for whole, _ in session.subscriptions()
                if whole not in feed.paths and not whole.startswith(b"$bridge/")
            ]
        return []

    def note(self, session: Session, filter: bytes, packet: Subscribe) -> None:
        """A link's client subscribes to a filter that came to its side by the paths that it names."""
        feed = self.feeds.get(session.client_id)
        if feed is None or feed.session is not session:
            return
        paths = ""
        pairs = packet.properties.get(USER_PROPERTY)
        for pair in pairs if isinstance(pairs, list) else []:
            if isinstance(pair, tuple) and pair[0] == PATHS:
                paths = some_of(pair[1].split(";", PATHS_MAX)[:PATHS_MAX])
        if feed.paths.get(filter) != paths:
            feed.paths[filter] = paths
            self.change(filter)

    def dropped(self, session: Session, filter: bytes) -> None:
        feed = self.feeds.get(session.client_id)
        if feed is not None and feed.session is session:  # not those of one that has ended, and is taken apart
            feed.paths.pop(filter, None)

    def change(self, filter: bytes) -> None:
        """Subscribers of this filter have changed."""
        if not self.changed:
            self.ctx.jobs.append(self)
        self.changed[filter] = None

    def step(self) -> bool:
        changed = self.changed
        self.changed = {}
        present = {filter for filter in changed if self.router.tree.has(filter)}
        for filter in changed:
            if filter in present:
                self.known[filter] = None
            else:
                self.known.pop(filter, None)
        for feed in list(self.feeds.values()):
            if feed.session.client is not feed.client:
                self.end(feed)
                continue
            feed.note(changed, present)
            feed.rouse()
        if not self.feeds and self.ctx.now >= self.until:
            self.router.watcher = None
            self.known = {}
        return True

    def end(self, feed: FilterFeed) -> None:
        if self.feeds.get(feed.session.client_id) is feed:
            del self.feeds[feed.session.client_id]
        if not self.feeds:
            self.until = self.ctx.now + KNOWN_SECONDS

    def paths(self, filter: bytes, base: str) -> str:
        """The paths by which this filter came here, other than by the link ``base``; "" if no one else wants it."""
        found: list[str] = []
        for subscriber in self.router.tree.at(filter):
            if isinstance(subscriber, Subscription) and is_link(subscriber.session.client_id):
                client_id = subscriber.session.client_id
                feed = self.feeds.get(client_id)
                if base_of(client_id) == base:
                    continue
                paths = "" if feed is None else feed.paths.get(filter, "")
                if not paths:  # of an earlier connection, so messages wait here; or not one of those that are learned
                    return self.ctx.site
                if len(found) < PATHS_MAX:
                    found += [f"{path} {self.ctx.site}" for path in paths.split(";")]
            elif not isinstance(subscriber, Subscription) or not subscriber.session.ended:
                return self.ctx.site
        return some_of(found)
