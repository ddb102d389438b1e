"""The settings of streams and of the service that reads them in bulk, and the checks that involve several of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from starlingmq.config.secret_masking import SECRET
from starlingmq.config.section_types import ConfigError, Duration, PositiveSize, Section, Size

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}(?!\n)$"  # a plain $ lets a newline at the end through
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
        tuple[str, ...], Meta(min_length=1, description="Topic filters of what it keeps; # and + as in MQTT.")
    ]
    retention_time: Annotated[Duration, Meta(description="How long a message is kept at least; 0 sets no limit.")] = (
        7 * 86400.0
    )
    retention_size: Annotated[
        Size, Meta(description="Bytes of files that each node keeps of the stream at most; 0 sets no limit.")
    ] = 0
    when_full: Annotated[
        Literal["drop_oldest", "refuse"],
        Meta(description="What happens at retention_size: the oldest file goes, or QoS 1 and 2 are refused (0x97)."),
    ] = "drop_oldest"


class StreamsConfig(Section, frozen=True):
    define: Annotated[
        tuple[StreamConfig, ...],
        Meta(description="Streams that there are from the start; others are made by starlingmq ctl stream create."),
    ] = ()
    events: Annotated[
        bool,
        Meta(description="Tell on $events/ what becomes of each message; a stream of such topics asks by itself."),
    ] = False
    listen: Annotated[
        str, Meta(description="Where streams are read in bulk, host:port; port 0 takes a free one, empty is nowhere.")
    ] = ""
    advertise: Annotated[
        str, Meta(description="Address host:port at which readers reach streams.listen; empty is the one bound.")
    ] = ""
    token: Annotated[
        str,
        Meta(
            description="Token that readers show, 16 bytes or more, one for all nodes, not the cluster's secret. "
            "Empty: a single broker on loopback makes one, in streams.token of its data directory.",
            extra=SECRET,
        ),
    ] = ""
    token_file: Annotated[
        str | None, Meta(description="File with the token, in place of streams.token; white space is cut off.")
    ] = None
    memory: Annotated[
        PositiveSize,
        Meta(description="Memory of the process that streams are read from, beyond which it is started again."),
    ] = 1024**3
    calls: Annotated[
        int, Meta(ge=1, description="Calls of readers at once; a quarter of them from one address, and at least one.")
    ] = 256
    nice: Annotated[
        int,
        Meta(
            ge=0,
            le=19,
            description="How far the process that streams are read from stands back for the broker, as nice has it; "
            "19 is furthest.",
        ),
    ] = 10
    processors: Annotated[
        tuple[Annotated[int, Meta(ge=0)], ...],
        Meta(
            description="The processors (numbers, from 0) that this process may use; none: all that the broker may. "
            "Where it has one that the broker does not need, publishers wait far less while somebody reads."
        ),
    ] = ()


def check_streams(streams: StreamsConfig, data_dir: str | None) -> None:
    """What the bounds of single settings cannot say. Raises ConfigError."""
    names = [stream.name for stream in streams.define]
    for index, stream in enumerate(streams.define):
        if stream.name in names[:index]:
            raise ConfigError(f"streams.define[{index}].name: {stream.name} is there already")
    if data_dir is None and (streams.define or streams.listen):
        raise ConfigError("streams: need a data directory; set node.data_dir")
    if streams.token and streams.token_file:
        raise ConfigError("streams.token_file: streams.token is there already; set one of the two")
    if streams.token:
        _check_token(streams.token.encode(), "streams.token")


def streams_token(streams: StreamsConfig) -> bytes:
    """The token that readers show, from its file if it is in one; empty if the settings have none. Raises
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
        raise ConfigError(f"{what}: {len(token)} bytes are too few for a token; take {TOKEN_BYTES_MIN} or more")
    if not token.isascii() or not token.decode().isprintable():
        raise ConfigError(f"{what}: a token has printable ASCII characters only")
