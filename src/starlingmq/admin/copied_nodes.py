"""Removing a node for good whose data has copies: another node serves that data, so it is handed over first.

::

    asked node                    the node that serves the data, in the name of the lost node
      | waits until it is served     |
      | -- leave.begin ------------> |  hands sessions and messages over, leaves the cluster, and
      | waits until it has left      |  replaces the record of copies by a mark: a disk that returns is old
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from starlingmq.admin.node_rpc import CALL_SECONDS, NodeReply, NodeRequest
from starlingmq.admin.operator_problem import ImpossibleAction
from starlingmq.cluster.copies.copy_record import CopyRecord
from starlingmq.net.control_socket import Report

if TYPE_CHECKING:
    from starlingmq.net.copies.copy_process import CopyProcess
    from starlingmq.net.peers.cluster_shell import Cluster

LOOK_SECONDS: Final = 0.3
SERVED_SECONDS: Final = 30.0  # until another node serves the data
LEAVING: Final = "this node is leaving"


class CopiedNode:
    """A lost node that an operator removes."""

    def __init__(self, cluster: Cluster, copies: CopyProcess, name: str, force: bool) -> None:
        self._cluster = cluster
        self._copies = copies
        self._name = name
        self._force = force

    async def hand_over(self, report: Report) -> bool:
        """Until the node that serves its data has handed it over and has left in its name. Nothing is done if there
        is nothing to hand over: no copies, or, with ``force``, none that is there. Whether there was a record of
        copies. Raises ImpossibleAction."""
        record = self._record()
        if record is None:
            return False
        name, registry = self._name, self._copies.roles.registry
        if name in registry.nodes:
            raise ImpossibleAction(
                f"{name} is online; let it leave, or stop it (after a crash: wait until its lease expires)"
            )
        if not registry.whole(record):
            if self._force:
                return True
            in_step = ", ".join(sorted(record.in_step))
            raise ImpossibleAction(
                f"no node that is there has everything that {name} has acknowledged (in step: {in_step}), and it would "
                f"be lost; start one of those with its disk, or see `starlingmq ctl cluster give-up {name}`, or forget "
                "it with --force"
            )
        await self._until_served(report)
        await self._until_left(report)
        return True

    def _record(self) -> CopyRecord | None:
        return self._copies.roles.registry.records.get(self._name)

    def _number(self) -> int | None:
        """Of the member that serves the data in the name of the lost node."""
        return next((number for number, name in self._cluster.names().items() if name == self._name), None)

    async def _until_served(self, report: Report) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + SERVED_SECONDS
        while True:
            record, number, state = self._record(), self._number(), self._cluster.state
            if record is None or number is None:
                return
            assert state is not None
            if record.server != self._name and (number == state.view.number or state.view.is_connected(number)):
                return
            if loop.time() >= until:
                raise ImpossibleAction(
                    f"no other node serves the data of {self._name} yet; `starlingmq ctl cluster copies` shows which "
                    "node will; try again then"
                )
            report(f"waiting until another node serves the data of {self._name}", 0, 0, "steps")
            await asyncio.sleep(LOOK_SECONDS)

    async def _until_left(self, report: Report) -> None:
        began = False
        while (number := self._number()) is not None and self._record() is not None:
            reply = await self._begin(number)
            if reply is not None and reply.result is not None:
                if began:
                    why = str(reply.result.get("earlier", "")) or "the log of the node that serves it says why"
                    raise ImpossibleAction(f"the data of {self._name} could not be handed over: {why}")
                began = True
            elif reply is not None and not reply.error.endswith(LEAVING):
                raise ImpossibleAction(reply.error)
            report(f"handing over the data of {self._name}", 0, 0, "steps")
            await asyncio.sleep(LOOK_SECONDS)

    async def _begin(self, number: int) -> NodeReply | None:
        """None: it has not answered."""
        arguments = {"force": "yes"} if self._force else {}
        question = msgspec.json.encode(NodeRequest("leave.begin", arguments))
        answer, problem = await self._cluster.ask(number, question, CALL_SECONDS)
        if problem:
            return None
        try:
            return msgspec.json.decode(answer, type=NodeReply)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
