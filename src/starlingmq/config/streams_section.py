"""The settings of streams and of the bulk service, and checks that involve several of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from starlingmq.config.secret_masking import SECRET
from starlingmq.config.section_types import ConfigError, Duration, PositiveSize, Section, Size

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}(?!\n)$"  # a plain $ would accept a newline at the end
TOKEN_BYTES_MIN: Final = 16


class StreamConfig(Section, frozen=True):
    name: Annotated[
        str,
        Meta(
            pattern=NAME_PATTERN,
            description="Name of the stream: 1 to 64 letters, digits, dots, dashes and underscores.",
        ),
    ]
    topics: Annotated[
        tuple[str, ...],
        Meta(min_length=1, description="Filters of the topics that the stream keeps; + and # as in MQTT."),
    ]
    retention_time: Annotated[Duration, Meta(description="Minimum time that a message is kept; 0 sets no limit.")] = (
        7 * 86400.0
    )
    retention_size: Annotated[
        Size, Meta(description="Maximum size of the stream's segment files on each node; 0 sets no limit.")
    ] = 0
    when_full: Annotated[
        Literal["drop_oldest", "refuse"],
        Meta(
            description="What happens when retention_size is reached: delete the oldest segment file, or "
            "refuse QoS 1 and 2 messages (0x97)."
        ),
    ] = "drop_oldest"
    first_offset: Annotated[
        int,
        Meta(
            ge=0,
            lt=10**17,
            description="First offset on a node that creates the stream. A node that has lost its disk needs an offset "
            "here above all that readers have seen of the stream, or it gives offsets a second time.",
        ),
    ] = 0


class StreamsConfig(Section, frozen=True):
    define: Annotated[
        tuple[StreamConfig, ...],
        Meta(description="Streams that exist from the start; starlingmq ctl stream create creates others."),
    ] = ()
    events: Annotated[
        bool,
        Meta(
            description="Publish audit events of each message to $events/. A stream of these topics enables "
            "this by itself."
        ),
    ] = False
    listen: Annotated[
        str,
        Meta(
            description="Address (host:port) where bulk readers read streams; port 0 selects a free "
            "port. Empty: no listener."
        ),
    ] = ""
    advertise: Annotated[
        str,
        Meta(description="Address (host:port) at which readers reach streams.listen. Empty: the listening address."),
    ] = ""
    token: Annotated[
        str,
        Meta(
            description="Token that readers present, at least 16 bytes, the same on all nodes and different "
            "from the cluster secret. Empty: a single broker on loopback creates one in the file "
            "streams.token of its data directory.",
            extra=SECRET,
        ),
    ] = ""
    token_file: Annotated[
        str | None,
        Meta(description="File with the token, in place of streams.token; surrounding white space is ignored."),
    ] = None
    memory: Annotated[
        PositiveSize,
        Meta(description="Memory of the process that serves bulk readers; above it, the process is restarted."),
    ] = 1024**3
    calls: Annotated[
        int,
        Meta(
            ge=1,
            description="Maximum number of concurrent calls of readers. One address may use a "
            "quarter of them, at least one.",
        ),
    ] = 256
    nice: Annotated[
        int,
        Meta(
            ge=0,
            le=19,
            description="Scheduling priority (nice value) of the process that serves bulk readers; 19 is the "
            "lowest priority.",
        ),
    ] = 10
    processors: Annotated[
        tuple[Annotated[int, Meta(ge=0)], ...],
        Meta(
            description="CPUs (numbers from 0) that this process may use. Empty: all CPUs of the broker. "
            "Publishers wait far less while readers read if the process has a CPU that the "
            "broker does not need."
        ),
    ] = ()


def check_streams(streams: StreamsConfig, data_dir: str | None) -> None:
    """Checks that the bounds of single settings cannot express. Raises ConfigError."""
    names = [stream.name for stream in streams.define]
    for index, stream in enumerate(streams.define):
        if stream.name in names[:index]:
            raise ConfigError(f"streams.define[{index}].name: {stream.name} is defined twice; rename one of them")
    if data_dir is None and (streams.define or streams.listen):
        raise ConfigError("streams: need a data directory; set node.data_dir")
    if streams.token and streams.token_file:
        raise ConfigError("streams.token_file: streams.token is set as well; set only one of them")
    if streams.token:
        _check_token(streams.token.encode(), "streams.token")


def streams_token(streams: StreamsConfig) -> bytes:
    """The token that readers must present, from its file if it is in one; empty if the settings have none. Raises
    ConfigError."""
    if streams.token_file is None:
        return streams.token.encode()
    try:
        token = Path(streams.token_file).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"streams.token_file: {streams.token_file} cannot be read: {error.strerror}") from error
    _check_token(token, f"streams.token_file: {streams.token_file}")
    return token


def _check_token(token: bytes, what: str) -> None:
    if len(token) < TOKEN_BYTES_MIN:
        raise ConfigError(f"{what}: {len(token)} bytes are too few for a token; use {TOKEN_BYTES_MIN} or more")
    if not token.isascii() or not token.decode().isprintable():
        raise ConfigError(f"{what}: a token may contain printable ASCII characters only")
