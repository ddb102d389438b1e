"""gRPC, which only a cluster needs: the optional part of the installation, or one line that names it."""

from __future__ import annotations

import os


class ClusterExtraMissing(Exception):
    """The optional packages of a cluster are not installed."""


# Children of this process become other programs at once; gRPC need not, and need not say that it can not, follow them.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# It would write a line to stderr for each connection that ends, past our own log.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

try:
    import google.protobuf
    import grpc
    import grpc.aio
except ImportError as error:
    raise ClusterExtraMissing(
        f"a cluster needs grpcio and protobuf ({error}); run pip install 'starlingmq[cluster]'"
    ) from None

__all__ = ["google", "grpc"]
