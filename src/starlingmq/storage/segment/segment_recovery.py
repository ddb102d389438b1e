"""Opening a journal directory: which segments are usable, and what is reported as lost."""

from __future__ import annotations

import os
from itertools import pairwise

from starlingmq.storage.file_calls import FileCalls, read_what_can_be, remove_if_there, write_all
from starlingmq.storage.maintenance.damage_report import Damage
from starlingmq.storage.segment.segment_file import SegmentFile, records
from starlingmq.storage.segment.segment_format import (
    HEADER_SIZE,
    Gap,
    Scan,
    SegmentHeader,
    UnknownFormat,
    decode_header,
    doubt_name,
    index_name,
    log_name,
    parse_gone_name,
    parse_name,
)
from starlingmq.storage.segment.segment_index import decode_index
from starlingmq.storage.segment.segment_set import SegmentSet, read_file


def recover(files: FileCalls, directory: str, open_max: int) -> SegmentSet:
    """The segments of a directory, which is created if necessary. Segments without an index file are read whole.

    Raises UnknownFormat, before anything is changed, if a newer version wrote a file.
    """
    files.make_directory(directory)
    names = files.names(directory)
    firsts = sorted(first for name in names if (first := parse_name(name, "log")) is not None)
    headers = read_headers(files, directory, firsts)
    salt = next((header.salt for header in reversed(headers.values()) if header is not None), 0)
    segment_set = SegmentSet(files, directory, salt or files.salt(), open_max)
    try:
        _fill(segment_set, names, firsts, headers, known=bool(salt))
    except BaseException:
        segment_set.close()
        raise
    return segment_set


def _fill(
    segment_set: SegmentSet, names: list[str], firsts: list[int], headers: dict[int, SegmentHeader | None], known: bool
) -> None:
    # It is unknown whether a power failure could still undo the last process's changes to the directory.
    segment_set.removals = 1 if names else 0
    segment_set.unlisted = bool(names)
    segment_set.gone = sorted(span for name in names if (span := parse_gone_name(name)) is not None)
    for first in _unusable(segment_set, firsts, headers):
        firsts.remove(first)
    if firsts and not known:
        _start_after_unreadable(segment_set, firsts)
        firsts = []
    for index, first in enumerate(firsts):
        # Records after the first offset of a deleted segment are void, as after that of a present one.
        behind = [*firsts[index + 1 : index + 2], *(span[0] for span in segment_set.gone if span[0] > first)]
        limit = min(behind) if index + 1 < len(firsts) else None
        _open_segment(segment_set, first, headers[first], limit, doubt_name(first) in names)
    _report_missing(segment_set)
    _clear_away(segment_set, names)
    if segment_set.segments:
        segment_set.next = segment_set.segments[-1].next


def read_headers(files: FileCalls, directory: str, firsts: list[int]) -> dict[int, SegmentHeader | None]:
    """The readable headers. Raises OSError if there is none and some are unreadable: the disk may recover."""
    headers: dict[int, SegmentHeader | None] = {}
    failure: OSError | None = None
    for first in firsts:
        headers[first] = None
        try:
            headers[first] = read_header(files, os.path.join(directory, log_name(first)))
        except UnknownFormat:
            raise
        except OSError as error:
            failure = error
    if failure is not None and not any(headers.values()):
        raise failure
    return headers


def read_header(files: FileCalls, path: str) -> SegmentHeader | None:
    fd = files.open(path)
    try:
        return decode_header(files.read(fd, HEADER_SIZE, 0))
    except UnknownFormat as error:
        raise UnknownFormat(0, f"{path} {error.strerror}") from None
    finally:
        files.close(fd)


def _unusable(segment_set: SegmentSet, firsts: list[int], headers: dict[int, SegmentHeader | None]) -> list[int]:
    """Segments to ignore: they were being deleted when the process died, or have a wrong name."""
    unusable: list[int] = []
    for first in firsts:
        header = headers[first]
        path = segment_set.path(log_name(first))
        if any(begin <= first < end for begin, end in segment_set.gone):
            remove_if_there(segment_set.files, path)
        elif header is not None and header.first != first:
            what = f"The file name is wrong and should be {log_name(header.first)}; the file is set aside."
            _set_aside(segment_set, path, header.first, what)
        else:
            continue
        unusable.append(first)
    return unusable


def _start_after_unreadable(segment_set: SegmentSet, firsts: list[int]) -> None:
    """No header of any segment is readable, so no record can be checked. The names still show which offsets were used:
    continue after them, and only then remove the names for good, before any offset is used again."""
    segment_set.next = firsts[-1] + 1
    segment_set.begin()
    for first in firsts:
        what = "Neither copy of its header can be read, nor that of another segment; the file is set aside."
        _set_aside(segment_set, segment_set.path(log_name(first)), first, what)
    segment_set.settle_names()


def _set_aside(segment_set: SegmentSet, path: str, first: int, what: str) -> None:
    files = segment_set.files
    fd = files.open(path)
    try:
        size = files.size(fd)
    finally:
        files.close(fd)
    if size > HEADER_SIZE:
        files.rename(path, path.removesuffix(".log") + ".bad")
    else:
        files.remove(path)
    segment_set.damages.add(Damage(path, first, first - 1, size, what))


def _open_segment(
    segment_set: SegmentSet, first: int, header: SegmentHeader | None, limit: int | None, doubted: bool
) -> None:
    files, path = segment_set.files, segment_set.path(log_name(first))
    fd = files.open(path)
    try:
        modified = files.modified(fd)
        size = files.size(fd)
        known = header or SegmentHeader(first, modified, segment_set.salt)
        segment = SegmentFile(files, path, first, known.salt, known.created)
        segment.modified = modified
        segment.fd = fd
        whole = header is not None and header.whole
        if not whole:
            doubted = not _repair_header(segment_set, segment, header) or doubted
        if doubted or not whole or not _take_index(segment_set, segment, size, limit):
            _scan(segment_set, segment, size, limit)
    finally:
        files.close(fd)
    segment.fd = -1
    segment.doubted = doubted
    # A damaged segment does not grow. An empty one is written again before it is used, since its header may be torn.
    segment.sealed = limit is not None or segment.damaged or segment.torn or doubted
    segment_set.insert(segment)


def _repair_header(segment_set: SegmentSet, segment: SegmentFile, header: SegmentHeader | None) -> bool:
    """Write the header again; otherwise the salt would be lost with the segments that still have it. If that fails, the
    next sync has to copy the segment."""
    size = HEADER_SIZE if header is None else HEADER_SIZE // 2
    what = "The header was damaged and was restored from the name and the other segments; nothing is lost."
    segment_set.damages.add(Damage(segment.path, segment.first, segment.first - 1, size, what))
    try:
        write_all(
            segment_set.files, segment.fd, SegmentHeader(segment.first, segment.created, segment.salt).encode(), 0
        )
    except OSError:
        return False
    return True


def _take_index(segment_set: SegmentSet, segment: SegmentFile, size: int, limit: int | None) -> bool:
    """Whether the index file describes the whole segment; it is written when all of the segment has been synced."""
    try:
        data = read_file(segment_set.files, segment_set.path(index_name(segment.first)))
    except OSError:
        data = b"?"
    if not data:
        return False
    found = decode_index(data, segment.first)
    if found is None:
        segment_set.report_index(segment)
        return False
    _, following, indexed_size = found
    if indexed_size != size or (limit is not None and following > limit):
        return False  # it belongs to an earlier state of the segment
    segment.next = segment.synced_next = following
    segment.size = segment.synced_size = size
    segment.listed = segment.indexed = True
    segment.index = None  # read when it is needed
    return True


def _scan(segment_set: SegmentSet, segment: SegmentFile, size: int, limit: int | None) -> None:
    data, unreadable = read_what_can_be(segment_set.files, segment.fd, max(0, size - HEADER_SIZE), HEADER_SIZE)
    scan = Scan(data, segment.first, segment.salt, limit)
    segment.learn(scan)
    segment.next, segment.size = scan.next, HEADER_SIZE + scan.end
    if limit is None and scan.group_end < len(data):
        if scan.ends_whole():
            _keep_last(segment, scan, len(data))
        elif unreadable:
            segment.damaged = True  # do not cut off what may be readable later
        else:
            _cut_tail(segment_set, segment, scan)
    if unreadable:
        what = f"{unreadable} bytes cannot be read; lost messages among them are reported when they are needed."
        segment_set.damages.add(Damage(segment.path, segment.first, segment.first - 1, unreadable, what))
    scan.gaps = [gap for gap in scan.gaps if gap.last < segment.next]
    segment.damaged = segment.damaged or bool(scan.gaps)
    segment.report(scan, scan.next, HEADER_SIZE, segment_set.damages)


def _keep_last(segment: SegmentFile, scan: Scan, size: int) -> None:
    """The last record is as long as its head says, but its CRC is wrong: it was damaged later."""
    scan.gaps.append(Gap(scan.next, scan.next, scan.end, size))
    segment.next += 1
    segment.size = HEADER_SIZE + size


def _cut_tail(segment_set: SegmentSet, segment: SegmentFile, scan: Scan) -> None:
    """Ignore the append that is incomplete. It is cut off when the next segment is begun."""
    assert segment.index is not None
    segment.index.cut(scan.group_next)
    segment.next, segment.size = scan.group_next, HEADER_SIZE + scan.group_end
    segment.torn = True
    cut = len(scan.data) - scan.group_end
    what = f"{cut} bytes at the end, where record {segment.next} starts, are ignored: this append was not completed."
    segment_set.damages.add(Damage(segment.path, segment.next, segment.next - 1, cut, what))


def _report_missing(segment_set: SegmentSet) -> None:
    """Offsets between segments that were not deleted on purpose."""
    for segment, following in pairwise(segment_set.segments):
        begin = segment.next
        for span in [*segment_set.gone, (following.first, following.first)]:
            end = min(span[0], following.first)
            if begin < end:
                segment.damaged = True
                _report_range(segment_set, segment, begin, end - 1)
            begin = max(begin, span[1])


def _report_range(segment_set: SegmentSet, segment: SegmentFile, first: int, last: int) -> None:
    fd = segment_set.files.open(segment.path)
    try:
        behind = max(0, segment_set.files.size(fd) - segment.size)
    finally:
        segment_set.files.close(fd)
    why = (
        f"{behind} bytes at the end have wrong checksums"
        if behind
        else "it was truncated, or a file after it is missing"
    )
    segment_set.damages.add(Damage(segment.path, first, last, behind, f"{records(first, last)} lost: {why}."))


def _clear_away(segment_set: SegmentSet, names: list[str]) -> None:
    """Remove drafts, indexes of deleted segments, and markers without a segment before them."""
    for name in names:
        first = parse_name(name, "idx")
        if first is None:
            first = parse_name(name, "doubt")
        if name.endswith(".tmp") or (first is not None and first not in segment_set.firsts):
            remove_if_there(segment_set.files, segment_set.path(name))
    segment_set.sweep()
