"""gRPC, which only a cluster needs: the optional part of the installation, or one line that names it."""

from __future__ import annotations


class ClusterExtraMissing(Exception):
    """The optional packages of a cluster are not installed."""


try:
    import google.protobuf
    import grpc
    import grpc.aio
except ImportError as error:
    raise ClusterExtraMissing(
        f"a cluster needs grpcio and protobuf ({error}): pip install 'starlingmq[cluster]'"
    ) from None

__all__ = ["google", "grpc"]
