"""Checks of ``starlingmq doctor`` that ask the operating system: limits, disk, memory, clock, certificates."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from starlingmq.admin.expirations import expirations
from starlingmq.cli.doctor_checks import CheckResult, Level, fault, good, risk
from starlingmq.cli.progress import amount
from starlingmq.config.settings import Config
from starlingmq.net.process import clock_is_synchronized
from starlingmq.storage.data_dir import DataDirError, read_layout
from starlingmq.storage.private_files import NotPrivate, refusal, refuse_foreign, run_as, user_name

FREE_LEAST: Final = 1 << 30  # bytes; below it, one burst of messages can fill the disk
FREE_SHARE_LEAST: Final = 0.1
DESCRIPTORS_FEW: Final = 10_000
CGROUP_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
MEMORY_SHARE_MOST: Final = 0.85
VOLATILE: Final = frozenset(["tmpfs", "ramfs"])
REMOTE: Final = frozenset(["nfs", "nfs4", "cifs", "smb3", "9p"])


def certificates(config: Config, now: float) -> Iterator[CheckResult]:
    """When certificates, revocation lists, key sets and tokens end; whether private keys and secrets are private."""
    for one in expirations(config):
        state = one.state(now, config.alarms.certificate_days)
        if state == "valid":
            yield good(one.kind, one.text(now))
        else:
            level = Level.problem if state == "ended" or one.problem else Level.warning
            yield CheckResult(level, one.kind, one.text(now), one.advice())
    yield from _readable_by_all("private key", _key_files(config))
    yield from _readable_by_all("secret", _secret_files(config))


def _readable_by_all(subject: str, paths: list[Path]) -> Iterator[CheckResult]:
    for path in paths:
        with suppress(OSError):  # a file that cannot be read is an error of the settings
            if path.stat().st_mode & 0o004:
                yield risk(subject, f"all users may read {path}", f"chmod o= {path}")


def data_disk(config: Config) -> Iterator[CheckResult]:
    """Whether the user may write to the data directory, what file system it is on, and how much is free."""
    if config.node.data_dir is None:
        return
    directory = Path(config.node.data_dir).absolute()
    existing = next(path for path in (directory, *directory.parents) if _exists(path))
    subject = "disk"
    if not existing.is_dir():
        yield fault(subject, f"{existing} is not a directory", "correct node.data_dir, or move the file away")
    else:
        yield from _data_directory(directory, existing)
    kind = _file_system(existing)
    if kind in VOLATILE:
        yield risk(subject, f"{directory} is in memory ({kind}): a reboot loses it", "use a disk for node.data_dir")
    if kind in REMOTE:
        yield risk(
            subject,
            f"{directory} is on a network file system ({kind}): locks and syncs may not hold",
            "use a local disk or a block device for node.data_dir",
        )
    usage = shutil.disk_usage(existing)
    line = f"{amount(usage.free, 'bytes')} of {amount(usage.total, 'bytes')} are free at {existing}"
    if usage.free < FREE_LEAST:
        yield fault(subject, line, "free space: a broker with a full disk refuses durable messages")
    elif usage.free < FREE_SHARE_LEAST * usage.total:
        yield risk(subject, line, "free space, or set storage.retention_size and stream retention")
    else:
        yield good(subject, line)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:
        return False


def _data_directory(directory: Path, existing: Path) -> Iterator[CheckResult]:
    """Whether a broker of this user would take it."""
    subject, owner = "disk", existing.stat().st_uid
    writable = os.access(existing, os.W_OK | os.X_OK)
    if existing != directory:
        if not writable:
            yield fault(
                subject,
                f"{directory} is missing or out of reach, and {existing} is not writable",
                f"create it for the broker's user, or run starlingmq doctor as that user (this is {os.getuid()})",
            )
        return
    if os.geteuid() == 0 and owner != 0:
        yield risk(
            subject,
            f"{directory} belongs to user {user_name(owner)}, and this is root: its rights were not tried",
            f"run it as that user: {run_as(owner)} starlingmq doctor",
        )
        return
    try:
        refuse_foreign(directory)
        foreign = [entry for entry in os.scandir(directory) if entry.stat(follow_symlinks=False).st_uid != os.geteuid()]
        if foreign and owner == os.geteuid():
            raise NotPrivate(refusal(Path(foreign[0].path), foreign[0].stat().st_uid, owner, directory))
        with suppress(FileNotFoundError):
            read_layout((directory / "LAYOUT").read_text(encoding="utf-8", errors="replace"), directory)
    except (NotPrivate, DataDirError) as error:
        line, _, advice = str(error).partition("; ")
        yield fault(subject, line, advice)
    except PermissionError as error:
        if owner != os.geteuid():  # a start gives the owner access
            yield fault(subject, f"{error.filename}: {error.strerror}", "correct its mode")


def file_limit(config: Config) -> Iterator[CheckResult]:
    """Each connection is a descriptor. The broker raises its soft limit to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(config.limits.max_connections, DESCRIPTORS_FEW)
    line = f"at most {hard:,} open files, a quarter or 256 of them reserved for storage and links"
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        yield good("open files", line)
    else:
        yield risk(
            "open files",
            f"{line}; {wanted:,} are wanted",
            "raise it: LimitNOFILE in the systemd unit, ulimits of a container, ulimit -Hn in a shell",
        )


def memory(config: Config) -> Iterator[CheckResult]:
    """Whether the broker would refuse clients before the kernel ends it."""
    available = _memory_available()
    limit = config.limits.memory
    if not limit:
        yield risk(
            "memory",
            f"limits.memory is off, and there are {amount(available, 'bytes')}: the kernel may kill the broker",
            f"set limits.memory to three quarters of it: {int(available * 0.75) >> 20}MiB",
        )
    elif limit > MEMORY_SHARE_MOST * available:
        yield fault(
            "memory",
            f"limits.memory is {amount(limit, 'bytes')} of {amount(available, 'bytes')}: the kernel kills it first",
            f"set it to three quarters: {int(available * 0.75) >> 20}MiB",
        )
    else:
        yield good("memory", f"limits.memory is {amount(limit, 'bytes')} of {amount(available, 'bytes')}")


def clock(config: Config) -> Iterator[CheckResult]:
    """Whether the kernel's clock is synchronized. Retained messages of two nodes are ordered by their clocks."""
    synchronized = clock_is_synchronized()
    if synchronized is None:
        return
    if synchronized:
        yield good("clock", "it is synchronized")
    else:
        yield risk(
            "clock",
            "it is not synchronized" + (": the nodes order retained messages by it" if config.cluster.enabled else ""),
            "run chrony or systemd-timesyncd; in a container, on the machine below it",
        )


def _key_files(config: Config) -> list[Path]:
    named: list[str | None] = [listener.tls.key for listener in config.listeners if listener.tls]
    if config.cluster.enabled:
        named.append(config.cluster.tls.key)
        named += [config.cluster.etcd.tls.key] if config.cluster.etcd.tls else []
    named += [bridge.tls.key or bridge.tls.cert for bridge in (*config.bridges, *config.links)]
    return [Path(name) for name in dict.fromkeys(named) if name]


def _secret_files(config: Config) -> list[Path]:
    """Files with tokens, shared secrets and password hashes."""
    auth = config.auth
    named: list[str | None] = [auth.password.file, auth.api.token_file, auth.jwt.secret_file, config.nats.token_file]
    named += [
        auth.api.oidc.client_secret_file,
        config.streams.token_file,
        config.tracing.headers_file,
        config.cluster.secret_file,
        *(bridge.credentials.password_file for bridge in (*config.bridges, *config.links)),
    ]
    return [Path(name) for name in dict.fromkeys(named) if name]


def _file_system(path: Path) -> str:
    """The type of the file system that has this path, as in /proc/self/mountinfo; empty if that is not there."""
    best, found = "", ""
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            fields, _, rest = line.partition(" - ")
            point = fields.split()[4]
            if len(point) >= len(best) and (path == Path(point) or Path(point) in path.resolve().parents):
                best, found = point, rest.split()[0]
    return found


def _memory_available() -> int:
    """Bytes of the machine, or of the container if it has less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in CGROUP_LIMITS:
        with suppress(OSError, ValueError):
            total = min(total, int(Path(name).read_text(encoding="ascii")))
    return total
