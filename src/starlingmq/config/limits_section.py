"""The settings in the section ``limits``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from starlingmq.config.section_types import Count, Duration, PositiveDuration, PositiveSize, Section, Size


class LimitsConfig(Section, frozen=True):
    max_packet_size: Annotated[
        PositiveSize, Meta(le=268_435_460, description="Largest packet a client may send, including its fixed header.")
    ] = 1024 * 1024
    write_buffer: Annotated[
        PositiveSize, Meta(description="Unsent bytes on a connection above which the client counts as slow.")
    ] = 1024 * 1024
    max_connections: Annotated[
        Count, Meta(description="Maximum number of connections on all listeners together; 0 sets no limit.")
    ] = 0
    connections_per_address: Annotated[
        Count,
        Meta(description="Maximum number of connections from one address, or one IPv6 network (/64); 0 sets no limit."),
    ] = 0
    connections_per_user: Annotated[
        Count,
        Meta(
            description="Maximum number of connections of one user name; 0 sets no limit. Anonymous "
            "clients are not limited."
        ),
    ] = 0
    connect_rate: Annotated[
        Count,
        Meta(
            description="CONNECT packets accepted per second on all listeners together; further ones "
            "are refused, or sent to a node with fewer clients. 0 sets no limit."
        ),
    ] = 0
    handshake_time: Annotated[
        PositiveDuration,
        Meta(
            description="CPU time for TLS handshakes in one turn of the event loop; connected clients are served in "
            "between. Further handshakes wait, and while many do, connections wait in the queue of the kernel."
        ),
    ] = 0.005
    message_rate: Annotated[
        Count,
        Meta(
            description="Messages read per second from one client; above it, reading from the client "
            "pauses. 0 sets no limit."
        ),
    ] = 0
    byte_rate: Annotated[
        Size,
        Meta(
            description="Bytes read per second from one client; above it, reading from the client "
            "pauses. 0 sets no limit."
        ),
    ] = 0
    sessions: Annotated[
        Count, Meta(description="Maximum number of sessions, including disconnected ones; 0 sets no limit.")
    ] = 0
    memory: Annotated[
        Size,
        Meta(
            description="Memory of the process above which new clients and messages are refused; retained messages "
            "may take half of it. 0 sets no limit."
        ),
    ] = 0
    topic_levels: Annotated[int, Meta(ge=1, le=65535, description="Maximum number of levels of a topic or filter.")] = (
        256
    )
    max_topic_length: Annotated[
        int, Meta(ge=1, le=65535, description="Maximum size of a topic or filter in bytes.")
    ] = 65535
    subscriptions_per_client: Annotated[
        Count, Meta(description="Maximum number of subscriptions of a session; 0 sets no limit.")
    ] = 100_000
    client_id_length: Annotated[
        int, Meta(ge=1, le=65535, description="Maximum size of a client id in bytes; 96 are granted to a link.")
    ] = 65535
    retained_messages: Annotated[Count, Meta(description="Maximum number of retained messages; 0 sets no limit.")] = 0
    retained_bytes: Annotated[
        Size,
        Meta(
            description="Maximum total size of the topics, payloads and properties of all retained "
            "messages; 0 sets no limit."
        ),
    ] = 0
    connect_size: Annotated[
        PositiveSize,
        Meta(
            description="Largest CONNECT, including its will. This bounds the memory that an "
            "unauthenticated client can use."
        ),
    ] = 256 * 1024
    hook_timeout: Annotated[
        PositiveDuration,
        Meta(description="Time limit of a hook; when it expires, the operation that waits for the hook is refused."),
    ] = 30.0
    queue_bytes: Annotated[
        Size,
        Meta(description="Bytes queued for a client before the oldest message is dropped; 0 sets no limit."),
    ] = 64 * 1024 * 1024
    publisher_hold: Annotated[
        Duration,
        Meta(description="How long a slow receiver delays its publishers before messages for it are dropped."),
    ] = 1.0
    producers: Annotated[
        Count,
        Meta(
            description="Maximum number of producers (such as Spark sink partitions) whose sequence "
            "numbers are remembered to detect duplicates."
        ),
    ] = 100_000
    producer_expiry: Annotated[
        PositiveDuration,
        Meta(
            description="How long the sequence number of an inactive producer is remembered. A batch may be "
            "repeated within this time."
        ),
    ] = 7 * 86400.0
    log_rate: Annotated[
        Count,
        Meta(
            description="Log lines per second for each reason; further lines are counted instead of "
            "written. 0 sets no limit."
        ),
    ] = 5
