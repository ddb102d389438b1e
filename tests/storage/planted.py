"""Mistakes made on purpose in the source of core and storage: a life by seed, or a test, finds every one of them.

``python -m tests.storage.planted`` says which seed finds each of them: what seeds draw changes with the code.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from tests import planting

import starlingmq
from starlingmq.core import context
from starlingmq.core.limits import publish_admission, storage_failure
from starlingmq.core.mqtt import connecting, qos2_receiving
from starlingmq.core.routing import acknowledgements
from starlingmq.core.session import ending, production, restoring
from starlingmq.storage import (
    checkpointer,
    directory_store,
    journal_gc,
    journal_writer,
    recovery,
    store_image,
    turn_operations,
    unsaved_changes,
)
from starlingmq.storage.streams import stream_logs

SEEDS_MAX = 1000  # lives in which a mistake has to show, where the one that found it has become another one
TIMEOUT = 300.0  # seconds for those

PLUGINS = ("-p", "pytest_asyncio", "-p", "pytest_timeout", "-p", "no:cacheprovider")
"""Those that these tests need: to load all that are installed takes longer than most of the tests."""


class Bug(NamedTuple):
    module: ModuleType
    old: str  # is there once
    new: str
    found_by: int | str  # a seed, or a test where a life that finds it is rarer than one in thousands


BUGS = {
    "an acknowledgement is not written": Bug(context, "acknowledged.append(packet_id)", "pass", 0),
    "a completed handshake is not written": Bug(
        qos2_receiving,
        "ctx.write(Write(INBOUND_COMPLETED, session, packet_id))\n                ctx.work -= 1",
        "pass\n                ctx.work -= 1",
        0,
    ),
    "PUBACK before it is stored": Bug(
        qos2_receiving,
        "self.ctx.send_stored(client, frames)",
        "self.ctx.send(client, frames)",
        44,
    ),
    "a checkpoint counts what came while it was written": Bug(
        checkpointer,
        "batch.put(META_CHECKPOINT, begin.to_bytes",
        "batch.put(META_CHECKPOINT, self.writer.next.to_bytes",
        0,
    ),
    "what was replayed is not in the next checkpoint": Bug(
        checkpointer,
        "        for session in sessions:\n            self.changes.dirty[session] = None\n"
        "        if sessions or changes:",
        "        if sessions or changes:",
        5,
    ),
    "what a checkpoint knows is replayed": Bug(
        store_image, "            if offset < image.as_of:\n                continue\n", "", 0
    ),
    "operations out of order": Bug(turn_operations, "        if self._ordered:\n            self._flush()\n", "", 8),
    "a segment is given back while it grows": Bug(journal_gc, "and not grown", "", 17),
    "a new reference does not move the oldest one": Bug(
        journal_gc, "            self._oldest = min(self._oldest, offset)\n", "", 218
    ),
    "a checkpoint ahead of the journal": Bug(
        checkpointer,
        "                yield from self.thread.run(self.journal.sync)\n            yield from self._write(batch)",
        "                pass\n            yield from self._write(batch)",
        1158,
    ),
    "what is in a window is given back": Bug(
        journal_gc,
        "offsets += [outgoing.message.offset for outgoing in session.window.entries.values()]",
        "pass",
        1,
    ),
    "a retained message that was taken back is in the checkpoint": Bug(
        unsaved_changes, "self.values.delete(retained_key(write.topic))", "pass", 1
    ),
    "a retained message is not written again": Bug(
        turn_operations,
        "message if message is self._message or message.offset < 0 else message.copy()",
        "message",
        3,
    ),
    "a will that was published is not written": Bug(
        ending,
        "self.ctx.write(Write(SESSION_PUT, session))",
        "pass",
        5,
    ),
    "the end of a session is not written": Bug(ending, "ctx.write(Write(SESSION_DELETE, session))", "pass", 6),
    "the delay of a will begins again at each start": Bug(
        restoring,
        "            session.will_at = will_at if will is not None else 0.0",
        "            session.will_at = ctx.now + will.delay if will is not None else 0.0",
        53,
    ),
    "the expiry of a session begins again at each start": Bug(
        restoring,
        "            session.expires_at = expires_at\n",
        "            session.expires_at = expires_at and ctx.now + session.expiry\n",
        0,
    ),
    "a session that expired while nobody served is present": Bug(
        connecting,
        "if earlier is None and session.expires_at != 0.0 and session.expires_at <= self.ctx.now:",
        "if False:",
        57,
    ),
    "an append that failed is forgotten": Bug(
        journal_writer,
        "            self._backlog = records\n            self._fail(error)",
        "            self.next -= len(records)\n            self._fail(error)",
        130,
    ),
    "an append that failed is acknowledged": Bug(
        journal_writer,
        "            self._fail(error)\n            raise NotYetStored(self.failure) from None",
        "            self._fail(error)\n            return None",
        44,
    ),
    "a refused QoS 2 message stays held": Bug(
        storage_failure, "                self._let_go(session, packet_id)\n", "                pass\n", 89
    ),
    "a QoS 2 message that may be on the disk is refused": Bug(
        storage_failure,
        "client.version != 5 or 0 <= position < self.ctx.storage.written_before",
        "client.version != 5",
        "test_failing_disk.py::test_a_message_that_may_be_on_disk_is_not_refused",
    ),
    "a checkpoint that failed counts": Bug(
        checkpointer,
        "            self.changes.put_back(changes)\n",
        "",
        5,
    ),
    "a session that ended is in the checkpoint": Bug(
        checkpointer,
        "ended = {session.number for session in unsaved.dirty if session.ended}",
        "ended = set()",
        "test_recovery.py::test_an_ended_session_is_not_in_the_store_again_whatever_of_a_checkpoint_fails",
    ),
    "it refuses for ever": Bug(journal_writer, "            self.state.ctx.storage_works()\n", "            pass\n", 5),
    "what was put off is never said": Bug(storage_failure, "self.ctx.jobs.append(ReleaseJob(self))", "pass", 32),
    "a handshake that begins is not written": Bug(
        qos2_receiving,
        "ctx.write(Write(INBOUND_PUT, session, packet_id, message=message))",
        "pass",
        0,
    ),
    "a shared subscription is not restored": Bug(restoring, "self.router.join(share[0], subscription)", "pass", 5),
    "PUBREL before it is stored": Bug(
        acknowledgements,
        "ctx.send_stored(client, released)",
        "ctx.send(client, released)",
        36,
    ),
    "PUBREC is not written": Bug(
        acknowledgements,
        "            if recorded:\n                ctx.ready.deliver(WINDOW_PUT, session, outgoing)\n",
        "",
        2,
    ),
    "a sync that failed is acknowledged": Bug(
        journal_writer,
        "        elif isinstance(error, OSError):\n            self._doubt(error)\n            return\n",
        "        elif isinstance(error, OSError):\n            error = None\n",
        289,
    ),
    "a sync that began before the append counts": Bug(
        journal_writer,
        "        if self._sync_state is not SyncState.IDLE or not self._unsynced:\n            return\n",
        "        if self._sync_state is SyncState.RUNNING:\n"
        "            self._syncing_for += self._unsynced\n"
        "            self._unsynced = []\n"
        "        if self._sync_state is not SyncState.IDLE or not self._unsynced:\n"
        "            return\n",
        184,
    ),
    "with power a start does not sync": Bug(
        directory_store,
        "            make_safe(journal, data_dir.journal)\n",
        "            pass\n",
        "test_power.py::test_a_broker_asks_for_that_with_power_only",
    ),
    "what a process that died left counts before it is synced": Bug(
        directory_store,
        "        journal.sync()\n    except RecordsLost",
        "        pass\n    except RecordsLost",
        "test_power.py::test_messages_of_a_dead_process_are_not_acknowledged_to_other_nodes_before_a_sync",
    ),
    "what was given back is forgotten": Bug(
        journal_gc,
        "        self._given[begin:end] = [first] * (begin % 2 == 0) + [next] * (end % 2 == 0)",
        "        self._given = [0, next]",
        "test_given_back.py::test_exactly_the_freed_offsets_are_known_as_freed",
    ),
    "what was given back is wanted again after a power failure": Bug(
        journal_gc,
        "            if self.careful:  # a power failure must not restore",
        "            if False:  # a power failure must not restore",
        "test_power.py::test_a_power_failure_does_not_bring_back_the_want_of_what_was_given_back",
    ),
    "a checkpoint does not wait for streams": Bug(
        checkpointer,
        "            yield from self.thread.run(self.streams.sync)",
        "            yield from self.thread.run(lambda: None)",
        "test_streams.py::test_lives",
    ),
    "a stream may be read before it is safe": Bug(
        journal_writer,
        'if self.durability != "power" and self.copies is None:\n            self.streams',
        "if True:\n            self.streams",
        "test_streams.py::test_lives",
    ),
    "a stream is longer than what the journal knows of it": Bug(
        stream_logs, "if careful and found.stream.next > end:", "if False:", "test_streams.py::test_lives"
    ),
    "a stream lacks what the journal has": Bug(
        recovery, "            keep(image.kept)\n", "", "test_streams.py::test_lives"
    ),
    "a stream gets again what it has": Bug(
        stream_logs,
        "found is None or put.offset < found.stream.next",
        "found is None",
        "test_streams.py::test_lives",
    ),
    "what waits for a full disk is not put into streams": Bug(
        journal_writer,
        "followed = self._follow()",
        "followed = True",
        "test_streams.py::test_lives",
    ),
    "a stream's message is kept for as long as its handshake": Bug(
        turn_operations,
        "            message = message.copy()\n        self._begin(message)\n        put_receiver",
        "            pass\n        self._begin(message)\n        put_receiver",
        "test_streams.py::test_lives",
    ),
    "what is known of a producer is kept without its message": Bug(
        turn_operations,
        "            put_receiver(self._receivers, 0, 0, PRODUCER, write.value + write.topic)",
        "            self._close()\n"
        "            put_receiver(self._receivers, 0, 0, PRODUCER, write.value + write.topic)\n"
        "            known = message.copy()\n"
        "            put_message(self._record, known, b'', self._receivers.getvalue(), False)\n"
        "            self._receivers.truncate(0)\n"
        "            self.records.append(self._record.getvalue())\n"
        "            self._record.truncate(0)",
        "test_producers.py::test_lives",
    ),
    "what is known of a producer is not kept": Bug(
        store_image,
        "                self._produced(PRODUCER_FACT",
        "                (PRODUCER_FACT",
        "test_producers.py::test_lives",
    ),
    "a checkpoint does not know producers": Bug(
        unsaved_changes,
        "            self.values.put(fact_key(PRODUCER_FACT + write.topic), write.value)",
        "            pass",
        "test_producers.py::test_lives",
    ),
    "a producer leaves out what was refused": Bug(
        production,
        "        if number == next or (number > next and qos == 0):",
        "        if number >= next:",
        "test_producers.py::test_nothing_is_left_out",
    ),
    "a stream refuses nobody": Bug(
        publish_admission,
        "        if stream.full:\n            return True\n",
        "        pass\n",
        "test_streams.py::test_a_full_stream_refuses",
    ),
}


def copy(target: Path) -> Path:
    """The package, interpreted, its tests, and the list of compiled modules, which the tests read."""
    package = Path(starlingmq.__path__[0])
    tests = Path(__file__).parents[1]
    leave = shutil.ignore_patterns("*.so", "*.pyd", "node_modules", "__pycache__")
    shutil.copytree(package, target / "src" / "starlingmq", ignore=leave)
    shutil.copytree(tests, target / "tests", ignore=leave)
    shutil.copytree(tests.parent / "compiling", target / "compiling", ignore=leave)
    return target


@contextmanager
def planted(tree: Path, bug: Bug) -> Iterator[None]:
    """The file gets its earlier time back: bytecode of a mistake that is as long, made in the same second, would be
    taken for that of the restored file."""
    path = tree / "src" / planting.relative_path(bug.module)
    source, earlier = path.read_text(encoding="utf-8"), path.stat().st_mtime
    path.write_text(planting.replace(bug.module, source, bug.old, bug.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(source, encoding="utf-8")
        os.utime(path, (earlier, earlier))


def run(tree: Path, found_by: int | str) -> str:
    """Live this life, do this test, or ("") some lives: the line that says what failed, or "" if all is well."""
    if isinstance(found_by, int):
        words = ["tests.storage.seeds", "--replay", str(found_by)]
    elif found_by:
        words = ["pytest", "-q", "-x", *PLUGINS, f"tests/storage/{found_by}"]
    else:
        words = ["tests.storage.seeds", "--seeds", str(SEEDS_MAX)]
    environment = {
        **os.environ,
        "STARLINGMQ_PURE": "1",
        "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=tree, env=environment, capture_output=True, text=True, timeout=TIMEOUT
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert done.returncode == len(lines[:1]), done.stdout + done.stderr
    return lines[0] if lines else ""


@cache
def fails_without(tree: Path, found_by: int | str) -> str:
    """The failures in the unchanged tree. There must be none, or a failure with the planted bug proves nothing."""
    return run(tree, found_by)


def caught(tree: Path, bug: Bug) -> str:
    """The failure that reveals the bug: of the seed or test that found it once, or of another run."""
    for found_by in (bug.found_by, ""):
        with planted(tree, bug):
            found = run(tree, found_by)
        if found:
            assert not fails_without(tree, found_by), "it fails without the mistake too"
            return found
    return ""


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        tree = copy(Path(directory))
        missed = 0
        for name, bug in BUGS.items():
            found = caught(tree, bug)
            missed += not found
            print(f"{name}: {found or 'MISSED'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
