"""Backup of a data directory while the broker works in it, and a data directory restored from a backup.

A backup is consistent because the key-value store is true as of a journal offset, and a start replays the journal from
there. So

1. the checkpoint of the key-value store is taken first,
2. then the journal as it is by then: all that the checkpoint refers to, and some more;
3. if the journal was trimmed between the two, for a checkpoint newer than the copied one, both steps are repeated.

Nothing has to be synced for this, since the copy is synced. Both steps only make hard links in a directory beside the
data, which is quick. Afterwards the files are transferred to the target without hurry: linked if it is on the same file
system, else copied. The target has a temporary name until it is complete:

    MANIFEST   a line of JSON (sizes and CRCs of the files), a line with its own CRC; written last
    LAYOUT kv/ journal/ streams/   as in a data directory
    passwords bans.json links.json streams.json streams.token   likewise, if they exist; copies with mode 0600
"""

from __future__ import annotations

import os
import shutil
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol, runtime_checkable

import msgspec

from starlingmq.storage.data_dir import STAGE_PREFIX, STATE_FILES, DataDir
from starlingmq.storage.journal import Journal
from starlingmq.storage.kv import Kv
from starlingmq.storage.maintenance.file_copy import CopySteps, Progress, copy, draft_of, is_free, link, put_in_place
from starlingmq.storage.segment.segment_format import index_name, log_name
from starlingmq.storage.segment.segment_journal import SegmentJournal
from starlingmq.storage.streams.stream_files import RESTORED

MANIFEST: Final = "MANIFEST"
FORMAT: Final = 1
ATTEMPTS_MAX: Final = 10


class BackupError(Exception):
    """A backup could not be taken or restored; one line says why."""


@runtime_checkable
class HasCheckpoint(Protocol):
    """An engine that can copy itself: RocksDB."""

    def checkpoint(self, path: Path) -> None: ...


class _File(msgspec.Struct, frozen=True):
    path: str  # relative
    size: int
    crc: int


class _Version(msgspec.Struct):
    format: int


class _Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    facts: dict[str, str]
    """The facts of the data directory."""
    files: list[_File]


class _Part(NamedTuple):
    """A file in the stage."""

    size: int
    grows: bool
    """Only its first ``size`` bytes belong to the backup, so it must be copied."""


def backup(data: DataDir, kv: Kv, journal: Journal, target: Path, progress: Progress | None = None) -> int:
    """Take a backup into ``target``, which must not exist or be empty. Returns its size in bytes.

    Blocks until the copy is complete; call it in a thread while the broker serves. Under load, do not trim the journal
    before the first call of ``progress``: each trim repeats the first steps, and after ``ATTEMPTS_MAX`` attempts the
    backup fails.

    Raises BackupError, OSError if a disk fails, and what ``progress`` raises; then nothing is left at the target.
    """
    _refuse_non_empty(target)
    stage = data.path / f"{STAGE_PREFIX}{os.getpid()}-{target.name}"
    draft = draft_of(target)
    try:
        parts = _freeze(data, kv, journal, stage)
        steps = CopySteps(sum(part.size for part in parts.values()), progress)
        steps.done(0)
        files = _bring(stage, draft, parts, steps)
        _write_manifest(draft, _Manifest(facts=data.facts, files=files))
        put_in_place(draft, target, last=MANIFEST)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        shutil.rmtree(draft, ignore_errors=True)
    return steps.total


def restore(source: Path, target: Path, progress: Progress | None = None) -> int:
    """Create the data directory ``target``, which must not exist or be empty, from a backup. Returns its size in bytes.

    The backup is checked on the way: BackupError if a file is missing, cut off or changed. Then nothing is left at the
    target, nor if ``progress`` or a disk raises. Root gives the directory to the owner of the existing target, or of
    the directory above.
    """
    manifest = read_manifest(source)
    _refuse_non_empty(target)
    for file in manifest.files:
        _check_size(source, file)
    steps = CopySteps(sum(file.size for file in manifest.files), progress)
    owner = _owner_at(target)
    draft = draft_of(target)
    try:
        for file in manifest.files:
            (draft / file.path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if copy(source / file.path, draft / file.path, file.size, steps) != file.crc:
                raise BackupError(f"{source}: {file.path} is damaged: its checksum is wrong; use another backup")
        for stream in draft.glob("streams/*/STREAM"):
            stream.with_name(RESTORED).touch(mode=0o600)
        _give(draft, owner)
        put_in_place(draft, target, last="LAYOUT")
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return steps.total


def _owner_at(target: Path) -> os.stat_result:
    """The owner of a directory that root restores: that of the directory that exists there, else of the one above."""
    return (target if target.is_dir() else next(path for path in target.parents if path.is_dir())).stat()


def _give(draft: Path, owner: os.stat_result) -> None:
    if os.geteuid() != 0 or (owner.st_uid, owner.st_gid) == (0, 0):
        return
    for _, _, files, descriptor in os.fwalk(draft, topdown=False):  # by descriptor: no link is followed
        for name in files:
            os.chown(name, owner.st_uid, owner.st_gid, dir_fd=descriptor, follow_symlinks=False)
        os.chown(descriptor, owner.st_uid, owner.st_gid)


def read_manifest(source: Path) -> _Manifest:
    """The manifest of a backup. BackupError if the directory is no backup, is incomplete, or has an unknown format."""
    try:
        text, _, check = (source / MANIFEST).read_bytes().partition(b"\n")
    except FileNotFoundError:
        raise BackupError(f"{source}: has no MANIFEST, so it is not a complete backup; use another one") from None
    if check.strip() != b"%08x" % zlib.crc32(text):
        raise BackupError(f"{source}: MANIFEST is damaged; use another backup")
    version = msgspec.json.decode(text, type=_Version).format
    if version != FORMAT:
        raise BackupError(
            f"{source}: has backup format {version}, but this version of starlingmq supports {FORMAT} only"
        )
    manifest = msgspec.json.decode(text, type=_Manifest)
    outside = next((file.path for file in manifest.files if not _is_below(file.path)), None)
    if outside is not None:
        raise BackupError(f"{source}: MANIFEST names a file outside the backup, {outside}; use another backup")
    return manifest


def _is_below(path: str) -> bool:
    return not Path(path).is_absolute() and ".." not in Path(path).parts


def _freeze(data: DataDir, kv: Kv, journal: Journal, stage: Path) -> dict[str, _Part]:
    """Link everything, as of one moment, into ``stage``."""
    if not isinstance(kv, HasCheckpoint) or not isinstance(journal, HasCheckpoint | SegmentJournal):
        raise BackupError("a broker without a data directory cannot be backed up; set node.data_dir")
    for _ in range(ATTEMPTS_MAX):
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir(mode=0o700)
        kept = _kept(journal)
        shutil.copy2(data.path / "LAYOUT", stage / "LAYOUT")
        _copy_state(data.path, stage)
        kv.checkpoint(stage / "kv")
        try:
            growing = _freeze_journal(data.journal, journal, stage / "journal")
            growing |= _freeze_streams(data.streams, stage / "streams")
        except FileNotFoundError:  # trimmed after it was listed
            continue
        if kept <= _kept(journal):
            return {**_whole_files(stage), **growing}
    raise BackupError(
        f"{data.path}: the journal is trimmed too fast to start a backup; try again when the load is lower"
    )


def _copy_state(directory: Path, stage: Path) -> None:
    """Copied, not linked: an editor may change a password file in place. A link is followed."""
    for name in STATE_FILES:
        with suppress(FileNotFoundError):
            shutil.copyfile(directory / name, stage / name)
            os.chmod(stage / name, 0o600)


def _kept(journal: Journal) -> frozenset[int]:
    """The offsets that must still exist at the end: those of the first record, or its place, and of all segments."""
    return frozenset([journal.first, *(segment.first for segment in journal.segments())])


def _freeze_journal(directory: Path, journal: HasCheckpoint | SegmentJournal, stage: Path) -> dict[str, _Part]:
    """The files of which only a part belongs to the backup: the segment that grows, and the last one, which may grow
    after a restart."""
    if isinstance(journal, HasCheckpoint):
        journal.checkpoint(stage)
        return {}
    stage.mkdir(mode=0o700)
    segments = journal.segments()
    for segment in segments:
        os.link(directory / log_name(segment.first), stage / log_name(segment.first))
    _link_notes(directory, {segment.first for segment in segments}, stage)
    growing = [segment for segment in segments if segment.grows or segment is segments[-1]]
    return {f"journal/{log_name(segment.first)}": _Part(segment.bytes, grows=True) for segment in growing}


def _freeze_streams(directory: Path, stage: Path) -> dict[str, _Part]:
    """The logs of streams are ahead of the copied journal, or complete with it: a start appends from the journal what a
    log lacks. So a log's file may be copied at any length: a start ignores an append that was copied in part."""
    growing: dict[str, _Part] = {}
    for source in sorted(directory.glob("*/STREAM")):
        name = source.parent.name
        target = stage / name
        (target / "log").mkdir(mode=0o700, parents=True)
        os.link(source, target / "STREAM")
        with suppress(FileNotFoundError):
            shutil.copy2(source.parent / "CONSUMERS", target / "CONSUMERS")
        for log in sorted((source.parent / "log").glob("*.log")):
            os.link(log, target / "log" / log.name)
            growing[f"streams/{name}/log/{log.name}"] = _Part(log.stat().st_size, grows=True)
        firsts = {int(file.stem) for file in (target / "log").iterdir()}
        _link_notes(source.parent / "log", firsts, target / "log")
    return growing


def _link_notes(directory: Path, firsts: set[int], stage: Path) -> None:
    """Link the index files. They spare a restored journal from reading whole segments, and from reporting discarded
    records as lost. These files are replaced, never changed; an index that does not match is ignored."""
    wanted = {index_name(first) for first in firsts}
    for name in sorted(os.listdir(directory)):
        if name in wanted or name.endswith(".gone"):
            with suppress(FileNotFoundError):
                os.link(directory / name, stage / name)


def _whole_files(stage: Path) -> dict[str, _Part]:
    paths = (path for path in sorted(stage.rglob("*")) if path.is_file())
    return {str(path.relative_to(stage)): _Part(path.stat().st_size, grows=False) for path in paths}


def _bring(stage: Path, target: Path, parts: dict[str, _Part], steps: CopySteps) -> list[_File]:
    files = []
    for name, part in parts.items():
        (target / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        crc = (copy if part.grows else link)(stage / name, target / name, part.size, steps)
        files.append(_File(name, part.size, crc))
    return files


def _write_manifest(directory: Path, manifest: _Manifest) -> None:
    text = msgspec.json.encode(manifest)
    with open(directory / MANIFEST, "wb") as file:
        file.write(b"%b\n%08x\n" % (text, zlib.crc32(text)))
        file.flush()
        os.fsync(file.fileno())


def _check_size(source: Path, file: _File) -> None:
    try:
        size = (source / file.path).stat().st_size
    except FileNotFoundError:
        raise BackupError(f"{source}: {file.path} is missing; use another backup") from None
    if size != file.size:
        raise BackupError(f"{source}: {file.path} has {size} bytes instead of {file.size}; use another backup")


def _refuse_non_empty(target: Path) -> None:
    if not is_free(target):
        raise BackupError(f"{target} exists and is not empty; use a new or empty directory")
