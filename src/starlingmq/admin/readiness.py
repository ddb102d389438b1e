"""Whether load balancers should send clients to this node, and why not."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from starlingmq.admin.local_node import LocalNode


class Readiness(Struct, frozen=True):
    status: Literal["ok", "not_ready"]
    storage: Annotated[str, Meta(description="ok, full, failing or uncopied; null without storage.")]
    cluster: Annotated[str, Meta(description="serving, isolated, joining or draining; null without a cluster.")]
    reasons: Annotated[tuple[str, ...], Meta(description="Reasons why the node is not ready.")]


class NodeReadiness(Readiness, frozen=True):
    node: str


def readiness(local_node: LocalNode) -> Readiness:
    ctx = local_node.state.ctx
    storage = ctx.storage.state.partition(" ")[0] if ctx.recording else "none"
    cluster = _cluster(local_node)
    reasons = []
    if not local_node.serving:
        reasons.append("the node is starting or stopping and accepts no clients")
    if ctx.refusing:
        cause = "too few nodes store copies" if storage == "uncopied" else f"the disk is {storage}"
        reasons.append(f"nothing can be stored: {cause}")
    if ctx.quotas.short_of_memory:
        reasons.append(
            "memory is short: new clients and messages are refused until the process uses less (limits.memory)"
        )
    if cluster not in ("none", "serving"):
        reasons.append(f"this node is {cluster}")
    return Readiness("not_ready" if reasons else "ok", storage, cluster, tuple(reasons))


def _cluster(local_node: LocalNode) -> str:
    if local_node.cluster is None:
        return "none"
    state = local_node.cluster.state
    if state is None or not (state.serving or local_node.serving):
        return "joining"
    if state.drain.active:
        return "draining"
    return "isolated" if local_node.state.ctx.isolated or not state.serving else "serving"
