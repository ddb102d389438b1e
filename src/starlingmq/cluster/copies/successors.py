"""Names a successor for a server that is gone. Only the cluster's leader does this.

The law: a successor is in step with the incarnation that it has now, and is heard by the leader. Naming raises the
generation and leaves ``in_step`` as it is, so an error about the earlier server costs a change of servers and nothing
else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlingmq.cluster.copies.copy_record import CopyRecord
from starlingmq.cluster.copies.copy_registry import StoringNode

Choose = Callable[
    [CopyRecord, Callable[[str], bool], Callable[[str], bool], Mapping[str, StoringNode], Mapping[str, int]],
    CopyRecord | None,
]


def successor(
    record: CopyRecord,
    is_gone: Callable[[str], bool],
    is_heard: Callable[[str], bool],
    nodes: Mapping[str, StoringNode],
    served: Mapping[str, int],
) -> CopyRecord | None:
    """The record that names a successor; None: none is needed, or none is possible. ``served``: how many origins each
    node serves."""
    if not record.is_stale() and not is_gone(record.server):
        return None
    return other_server(record, is_gone, is_heard, nodes, served)


def other_server(
    record: CopyRecord,
    is_gone: Callable[[str], bool],
    is_heard: Callable[[str], bool],
    nodes: Mapping[str, StoringNode],
    served: Mapping[str, int],
) -> CopyRecord | None:
    """The record that names another server: the node that serves the fewest origins, and none that is leaving if there
    is another; None: no other is able to."""
    able = [
        name
        for name, incarnation in record.in_step.items()
        if name != record.server
        and is_heard(name)
        and not is_gone(name)
        and name in nodes
        and nodes[name].incarnation == incarnation
    ]
    if not able:
        return None
    name = min(able, key=lambda each: (nodes[each].leaving, served.get(each, 0), each != record.origin, each))
    return record.handed_to(name, nodes[name].incarnation)
