"""Claims of one node without the rest of it."""

from __future__ import annotations

from starlingmq.cluster.takeover.ownership import Ownership, OwnershipPorts


def lone_ownership() -> Ownership:
    """Every claim is wanted, nothing was discarded, and no key has to stay."""
    return Ownership("test", OwnershipPorts(lambda _: 0, lambda _: True, lambda _: False))
