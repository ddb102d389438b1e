"""The one list of modules that mypyc compiles. setup.py, the Makefile and the tests all read it here.

The rule: a module is compiled if it runs for each message, for each packet or in each turn of the event loop.

- Every module of a package in PACKAGES is compiled, at any depth. A new file there is compiled automatically.
- Of the other packages, the modules in MODULES are compiled, each for the given reason. An entry that names a
  directory stands for every module below it, except those in INTERPRETED.
- Everything else runs interpreted, which keeps the compile short.
- A module with a coroutine that waits in a loop under ``asyncio.timeout`` is not compiled: in compiled code the loop
  goes on when the time is over. tests/test_compiling.py finds such loops.

A name that matches no file is an error, so moving a module requires a change of its entry. An ``__init__.py`` is never
compiled. tests/test_compiled_modules.py imports every compiled module and checks the file that Python has loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = Path("src/starlingmq")

LIBRARY: Final = "starlingmq__mypyc"
"""The module that contains all compiled code. The extension modules next to the sources only look up their part of
it.
"""

PACKAGES: Final = ("wire", "core")

IN_EACH_TURN: Final = "the cluster runs it in each turn of the event loop"
IN_EACH_STORED_TURN: Final = "runs in each turn of the event loop in which something is stored"
FOR_EACH_MESSAGE: Final = "runs for each message that goes to another node"
FOR_EACH_SESSION: Final = "runs for each session that connects or disconnects"
FOR_EACH_CLAIM: Final = "runs for each claim of a client id"
FOR_EACH_SUBSCRIPTION: Final = "runs for each subscription, here or at another node"

SELDOM: Final = (IN_EACH_TURN, FOR_EACH_SESSION, FOR_EACH_CLAIM, FOR_EACH_SUBSCRIPTION)
"""gcc compiles these with -O1, which takes two thirds of the time. They run too seldom to cost measurably more: a turn
carries many messages.
"""

MODULES: Final = {
    "bridges/bridge_relay.py": "runs for each message of a bridge",
    "bridges/far_line.py": "reads and writes the far connection of a bridge",
    "bridges/kafka_state.py": "runs for each message of a bridge to Kafka, and of a rule",
    "bridges/nats_relay.py": "runs for each message of a bridge",
    "bridges/passed_requests.py": "runs for each request of a bridge",
    "bridges/site_mark.py": "runs for each message of a bridge",
    "bridges/subject_maps.py": "runs for each message of a bridge",
    "bridges/topic_maps.py": "runs for each message of a bridge",
    "bulk/columns.py": "runs for each message that is read from a stream",
    "cluster/balance/drain.py": IN_EACH_TURN,
    "cluster/etcd/election.py": IN_EACH_TURN,
    "cluster/etcd/etcd_requests.py": FOR_EACH_CLAIM,
    "cluster/etcd/etcd_retry.py": IN_EACH_TURN,
    "cluster/links/peer_frames.py": FOR_EACH_MESSAGE,
    "cluster/links/record_bytes.py": FOR_EACH_SUBSCRIPTION,
    "cluster/qos2/qos2_adapter.py": FOR_EACH_MESSAGE,
    "cluster/qos2/qos2_lookup.py": FOR_EACH_MESSAGE,
    "cluster/membership/isolation.py": IN_EACH_TURN,
    "cluster/links/peer_transport.py": FOR_EACH_MESSAGE,
    "cluster/links/peer_link.py": FOR_EACH_MESSAGE,
    "cluster/membership/lease_fence.py": IN_EACH_TURN,
    "cluster/membership/members.py": IN_EACH_TURN,
    "cluster/routes/filter_shape.py": FOR_EACH_SUBSCRIPTION,
    "cluster/routes/filter_summaries.py": FOR_EACH_SUBSCRIPTION,
    "cluster/routes/own_routes.py": FOR_EACH_SUBSCRIPTION,
    "cluster/routes/peer_routes.py": FOR_EACH_SUBSCRIPTION,
    "cluster/groups/group_primaries.py": IN_EACH_TURN,
    "cluster/groups/group_pull.py": IN_EACH_TURN,
    "cluster/groups/group_supply.py": IN_EACH_TURN,
    "cluster/groups/queue_groups.py": FOR_EACH_MESSAGE,
    "cluster/membership/quorum.py": IN_EACH_TURN,
    "cluster/balance/rebalance.py": IN_EACH_TURN,
    "cluster/membership/relay.py": FOR_EACH_MESSAGE,
    "cluster/streams/cluster_streams.py": FOR_EACH_MESSAGE,
    "cluster/streams/far_reads.py": FOR_EACH_MESSAGE,
    "cluster/streams/far_requester.py": FOR_EACH_MESSAGE,
    "cluster/streams/frame_outbox.py": FOR_EACH_MESSAGE,
    "cluster/retained/replay_notices.py": "inherits from a compiled class",
    "cluster/retained/large_retained.py": IN_EACH_TURN,
    "cluster/retained/retained_expiry.py": IN_EACH_TURN,
    "cluster/retained/retained_sync.py": "runs for each retained message",
    "cluster/retained/retained_writer.py": IN_EACH_TURN,
    "cluster/routes/route_facts.py": FOR_EACH_MESSAGE,
    "cluster/routes/route_table.py": FOR_EACH_MESSAGE,
    "cluster/cluster_state.py": IN_EACH_TURN,
    "cluster/peers/leadership.py": IN_EACH_TURN,
    "cluster/peers/frame_receiver.py": FOR_EACH_MESSAGE,
    "cluster/peers/frame_sender.py": FOR_EACH_MESSAGE,
    "cluster/peers/heartbeats.py": IN_EACH_TURN,
    "cluster/links/heartbeat_changes.py": "runs for each heartbeat of another node",
    "cluster/peers/peer_connections.py": FOR_EACH_MESSAGE,
    "cluster/peers/peer_inbox.py": FOR_EACH_MESSAGE,
    "cluster/peers/lost_nodes.py": IN_EACH_TURN,
    "cluster/peers/lost_node_reports.py": IN_EACH_TURN,
    "cluster/peers/member_follower.py": IN_EACH_TURN,
    "cluster/peers/node_directory.py": IN_EACH_TURN,
    "cluster/peers/serving.py": IN_EACH_TURN,
    "cluster/peers/route_exchange.py": IN_EACH_TURN,
    "cluster/peers/publishers.py": IN_EACH_TURN,
    "cluster/peers/suback_wait.py": IN_EACH_TURN,
    "cluster/shares": FOR_EACH_SESSION,
    "cluster/takeover": FOR_EACH_SESSION,
    "cluster/qos2/qos2_store.py": FOR_EACH_MESSAGE,
    "cluster/view": IN_EACH_TURN,
    "cluster/wills/cluster_wills.py": FOR_EACH_SESSION,
    "cluster/wills/lost_wills.py": FOR_EACH_SESSION,
    "cluster/wills/taken_away.py": FOR_EACH_SESSION,
    "cluster/wills/taken_wills.py": FOR_EACH_SESSION,
    "cluster/wills/will_entry.py": FOR_EACH_SESSION,
    "cluster/wills/will_registration.py": FOR_EACH_SESSION,
    "cluster/wills/will_settlement.py": FOR_EACH_SESSION,
    "cluster/wills/will_states.py": FOR_EACH_SESSION,
    "cluster/wills/will_table.py": FOR_EACH_SESSION,
    "rules/rule_flow.py": "runs for each message of a rule",
    "net/broker_clock.py": "is read in each turn of the event loop",
    "net/client_output.py": "runs for each write to a client",
    "net/client_owner.py": "a compiled class inherits from it",
    "net/client_socket.py": "reads and writes the sockets of clients",
    "net/client_sockets.py": "polls the sockets of clients",
    "net/tls_client_socket.py": "the same with TLS",
    "net/tls_handshake_socket.py": "inherits from a compiled class",
    "net/peers/peer_codec.py": FOR_EACH_MESSAGE,
    "net/peers/peer_connection.py": FOR_EACH_MESSAGE,
    "net/peers/peer_socket.py": "reads and writes the sockets of other nodes",
    "net/peers/peer_stream.py": FOR_EACH_MESSAGE,
    "net/peers/peer_wire.py": FOR_EACH_MESSAGE,
    "net/compressed_connection.py": "inherits from a compiled class",
    "net/driver.py": "is the turn of the event loop",
    "net/hook_calls.py": "runs for each message that a hook is asked about",
    "net/message_loading.py": "runs for each batch of stored messages that is sent",
    "storage/checkpointer.py": IN_EACH_STORED_TURN,
    "storage/copies/copy_records.py": "runs for each message that other nodes keep a copy of",
    "storage/durable_store.py": IN_EACH_STORED_TURN,
    "storage/file_calls.py": IN_EACH_STORED_TURN,
    "storage/journal_gc.py": "runs for each stored message that is sent",
    "storage/retention_sweep.py": IN_EACH_STORED_TURN,
    "storage/unsaved_changes.py": IN_EACH_STORED_TURN,
    "storage/journal_writer.py": IN_EACH_STORED_TURN,
    "storage/segment/segment_file.py": IN_EACH_STORED_TURN,
    "storage/segment/segment_index.py": IN_EACH_STORED_TURN,
    "storage/segment/segment_journal.py": IN_EACH_STORED_TURN,
    "storage/streams/sequence_logs.py": "reads messages for consumers",
    "storage/streams/stream_logs.py": "runs in each turn with messages of streams",
    "storage/turn_operations.py": "runs for each stored message",
    "storage/records.py": "runs for each stored message",
    "storage/segment/segment_encoding.py": "runs for each message that is written to a stream",
}

STRUCTS_WITH_OPTIONS: Final = "defines msgspec.Structs with class options, which mypyc discards"

INTERPRETED: Final = {
    "cluster/shares/share_messages.py": STRUCTS_WITH_OPTIONS,
    "cluster/takeover/transfer_frames.py": STRUCTS_WITH_OPTIONS,
}
"""Modules of the directories above that are not compiled, each for the given reason."""


class MissingModule(Exception):
    """The list names a module that does not exist."""


def hot_modules(root: Path = ROOT) -> list[str]:
    """Return the paths of all compiled modules, relative to the root, sorted."""
    found: set[Path] = set()
    for name in (*PACKAGES, *MODULES):
        found.update(_modules_of(root, name))
    for name in INTERPRETED:
        found.difference_update(_modules_of(root, name))
    return sorted(str(path.relative_to(root)) for path in found)


def _modules_of(root: Path, name: str) -> list[Path]:
    path = root / PACKAGE / name
    found = [path] if path.is_file() else [below for below in path.rglob("*.py") if below.name != "__init__.py"]
    if not found:
        raise MissingModule(f"compiling/modules.py names {name}, which is not in {PACKAGE}: has it moved?")
    return found


def compiled_parts() -> set[str]:
    """Return the packages directly below ``starlingmq`` that contain compiled modules."""
    return {name.partition("/")[0] for name in (*PACKAGES, *MODULES)}


def module_name(path: str) -> str:
    """Return the full name of the module at a path of ``hot_modules``."""
    return ".".join(Path(path).relative_to(PACKAGE.parent).with_suffix("").parts)


def level_of(c_file: str) -> tuple[str, ...]:
    """Return the flags for the C file of a hot module, in addition to those of all."""
    name = Path(c_file).stem.partition("___")[2].replace("___", "/")
    reasons = [MODULES.get(each) for each in (f"{name}.py", *map(str, Path(name).parents))]
    return ("-O1",) if any(reason in SELDOM for reason in reasons) else ()
