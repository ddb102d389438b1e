"""The caches by names that clients choose. Every entry can be found again, so unused entries do not stay for long, and
caches are emptied before a client is refused."""

from __future__ import annotations

from starlingmq.core.nats.subject_cache import SubjectCache
from starlingmq.core.router.router import Router


class Caches:
    """Those of the whole broker. Others belong to a connection and end with it (``core.limits.access.Rights``)."""

    router: Router
    spellings: SubjectCache

    def __init__(self, router: Router, spellings: SubjectCache) -> None:
        self.router = router
        self.spellings = spellings

    def age(self) -> None:
        """A period is over: names that were cached before the last one began are let go, by ``let_old_go`` or now."""
        self.router.age()
        self.spellings.age()

    def let_old_go(self) -> int:
        """Let go some of what is old. Returns the number of topics that are cached."""
        self.router.let_old_go()
        return self.router.cached()

    def forget(self) -> None:
        """Memory is short: let everything go."""
        self.router.forget()
        self.spellings.forget()
