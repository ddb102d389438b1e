"""gRPC, which only a cluster needs: an optional part of the installation, or an error that names it."""

from __future__ import annotations

import asyncio
import os


class ClusterExtraMissing(Exception):
    """The optional packages of a cluster are not installed."""


# Children of this process become other programs at once, so gRPC need not support fork, nor warn that it does not: it
# would write a line to stderr for each connection that ends, bypassing the log.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# gRPC would write a line to stderr for each connection that ends, bypassing the log.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

try:
    import google.protobuf
    import grpc
    import grpc.aio
except ImportError as error:
    raise ClusterExtraMissing(
        f"a cluster needs grpcio and protobuf ({error}); install the extra [cluster], or Debian's package "
        "starlingmq-cluster"
    ) from None

__all__ = ["google", "grpc", "task_is_cancelled"]


def task_is_cancelled() -> bool:
    """Whether a ``CancelledError`` is for the present task.

    gRPC raises it, too, from the write or the read of a call that this program has cancelled. A task that takes it for
    its own cancellation ends silently.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
