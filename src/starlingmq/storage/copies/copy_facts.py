"""The file COPY of a data directory: whose data it is, and which lives of its owner it has seen.

A *life* is one opening of the data for serving. It has a generation of its own, which the cluster gives once
(``cluster.copies.copy_record``): a restart, and a successor, take a higher one. A life continues the journal where it
was found. That may be before the end that a previous life had reached, since a power failure may have cost the tail;
then offsets are given again. So the law for a copy that returns:

    It is cut to the lowest end at which any life began after the last one that it has in common with its owner: a life
    of the owner that the copy has missed, or a life of the copy that the owner has missed. If they have none in common,
    it begins with nothing.

The end of the last life alone is not enough: a copy that missed a whole life may be longer than what that life began
with, and shorter than what it ended with.

A copy in step is never cut: a node serves only if no node in step has more than it (``excess``). A cut may take what
the key-value store rests on, and then the copy is not whole until it has received another one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from starlingmq.storage.data_dir import DataDirError
from starlingmq.storage.keys import META_COPY
from starlingmq.storage.kv import Batch, Kv
from starlingmq.storage.maintenance.file_copy import sync_directory

COPY: Final = "COPY"
LIVES_MAX: Final = 32


def forget_copies(directory: Path, kv: Kv) -> None:
    """The directory is opened without copies: what is written from now on is in no life that a copy knows. Raises
    OSError."""
    if not (directory / COPY).exists():
        return
    batch = Batch()
    batch.delete(META_COPY)
    kv.write(batch)
    kv.sync()
    (directory / COPY).unlink()


class NotWhole(Exception):
    """The copy does not have everything: it was being received. Another node must serve."""


class Fenced(Exception):
    """The other side is of a generation that another one has followed."""


class Life(msgspec.Struct, frozen=True):
    """``journal_end``, ``stream_ends`` (by number): the next offsets when it began."""

    generation: int
    journal_end: int
    stream_ends: dict[int, int]


class CopyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """``generation``: of the life by which the directory was written last; 0: none. ``fenced``: earlier generations are
    refused. ``whole``: it has all that was acknowledged by that life when it was written. ``boundary``: while a copy
    catches up, the last journal offset known to be between two turns of the owner; None: each record ends well.
    ``copied``: it was written as a copy, so a stream may have more than its journal."""

    owner: str
    generation: int = 0
    fenced: int = 0
    lives: tuple[Life, ...] = ()
    whole: bool = False
    boundary: int | None = None
    copied: bool = False


def newest(facts: CopyFacts) -> int:
    """The newest generation that it knows. etcd has had it, so a server of an older one means that etcd has lost a part
    of its state: nodes ask etcd before they accept a server."""
    return max(facts.generation, facts.fenced)


def read_facts(directory: Path) -> CopyFacts | None:
    """None: there is no such file, or it is unreadable. Raises OSError."""
    try:
        return msgspec.json.decode((directory / COPY).read_bytes(), type=CopyFacts)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write_facts(directory: Path, facts: CopyFacts) -> None:
    """Durably and atomically. Raises OSError."""
    new = directory / f"{COPY}.new"
    with open(new, "wb") as file:
        file.write(msgspec.json.encode(facts) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, directory / COPY)
    sync_directory(directory)


def begin_life(directory: Path, owner: str, life: Life) -> CopyFacts:
    """Record that a life begins, before it writes anything else. Raises Fenced, NotWhole, OSError."""
    facts = with_life(read_facts(directory), owner, life)
    write_facts(directory, facts)
    return facts


def with_life(facts: CopyFacts | None, owner: str, life: Life) -> CopyFacts:
    """The facts once a life has begun. Raises Fenced, NotWhole."""
    if facts is None or facts.owner != owner:
        facts = CopyFacts(owner=owner, whole=True)
    if life.generation <= facts.generation or life.generation < facts.fenced:
        raise Fenced(f"generation {life.generation} of {owner} is over: {max(facts.generation, facts.fenced)} is known")
    if not facts.whole or facts.boundary is not None:
        raise NotWhole(f"the copy of {owner} is not whole")
    lives = (*facts.lives, life)[-LIVES_MAX:]
    return CopyFacts(owner=owner, generation=life.generation, lives=lives, whole=True)


def ends_after(own: tuple[Life, ...], lives: tuple[Life, ...]) -> Life | None:
    """The ends to which a copy that has seen its ``own`` lives is cut before it follows an owner with these ``lives``:
    journal and streams that end below them are left alone. None: they have no life in common."""
    common = {life.generation for life in own}.intersection(life.generation for life in lives)
    if not common:
        return None
    generation = max(common)
    later = [life for life in (*own, *lives) if life.generation > generation]
    streams: dict[int, int] = {}
    for life in later:
        for number, end in life.stream_ends.items():
            streams[number] = min(end, streams.get(number, end))
    return Life(generation, min((life.journal_end for life in later), default=1 << 63), streams)


def refuse_data_of_another(directory: Path, name: str) -> None:
    """Two disks were swapped: this node would replace the data by its own. Raises DataDirError."""
    facts = read_facts(directory)
    if facts is not None and facts.owner != name:
        raise DataDirError(
            f"{directory} has the data of {facts.owner}, and this node is {name}; give it the directory of {name} or "
            "an empty one (node.data_dir), or start it as that node (node.name)"
        )
