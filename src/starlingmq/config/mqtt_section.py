"""The settings in the section ``mqtt``."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from starlingmq.config.section_types import Count, Duration, PositiveDuration, Seconds, Section

NO_SESSION_EXPIRY: Final = 0xFFFFFFFF


class MqttConfig(Section, frozen=True):
    retry_interval: Annotated[
        Duration,
        Meta(
            description="Time after which unacknowledged QoS 1 and 2 packets are sent again to a 3.1 or "
            "3.1.1 client; 0 disables it."
        ),
    ] = 30.0
    max_inflight: Annotated[
        Count,
        Meta(
            le=65535,
            description="QoS 1 and 2 messages that may be in flight to a client, also if its Receive Maximum is "
            "higher. 0: its Receive Maximum, or, if it names none (3.1 and 3.1.1 have none), 100, and more while it "
            "keeps up. 65535 leaves the limit to the protocol.",
        ),
    ] = 0
    max_mqueue_len: Annotated[
        Count,
        Meta(
            description="Messages queued for a client, beyond those in flight, before the oldest is dropped; 0 sets no "
            "limit. In a cluster, messages that waited at another node for this one are not counted."
        ),
    ] = 1000
    mqueue_store_qos0: Annotated[
        bool, Meta(description="Whether QoS 0 messages are queued as well for a disconnected or slow client.")
    ] = True
    max_awaiting_rel: Annotated[
        Count,
        Meta(
            le=65535,
            description="QoS 2 messages of a client that may wait for their PUBREL; 0 leaves the "
            "limit to the protocol.",
        ),
    ] = 0
    await_rel_timeout: Annotated[
        Duration,
        Meta(
            description="How long, while the client is connected, a QoS 2 message waits for its PUBREL and a "
            "completed one is remembered. While the client is disconnected, both are kept as "
            "long as its session."
        ),
    ] = 300.0
    unknown_pubrel: Annotated[
        Literal["close_once", "complete", "end_session"],
        Meta(
            description="Response to a PUBREL of a 3.1 or 3.1.1 client whose packet identifier no node "
            "knows. close_once: the connection is closed, the session is kept, and a repeated "
            "PUBREL gets PUBCOMP. complete: PUBCOMP at once. end_session: like close_once, but "
            "the session ends too, so session present = 0 reports the loss. Each case is counted "
            "and logged. MQTT 5 clients get PUBCOMP 0x92 instead."
        ),
    ] = "close_once"
    max_qos: Annotated[int, Meta(ge=0, le=2, description="Highest QoS that is accepted and granted.")] = 2
    retain_available: Annotated[bool, Meta(description="Whether clients may publish retained messages.")] = True
    wildcard_subscription: Annotated[bool, Meta(description="Whether filters may contain + and #.")] = True
    shared_subscription: Annotated[bool, Meta(description="Whether clients may subscribe to $share/group/filter.")] = (
        True
    )
    subscription_identifier: Annotated[
        bool, Meta(description="Whether subscriptions may carry a subscription identifier.")
    ] = True
    max_session_expiry: Annotated[
        Seconds,
        Meta(
            le=NO_SESSION_EXPIRY,
            description="Longest session expiry interval granted to an MQTT 5 client; 4294967295 sets no limit.",
        ),
    ] = NO_SESSION_EXPIRY
    session_expiry_v3: Annotated[
        Seconds,
        Meta(
            le=NO_SESSION_EXPIRY,
            description="Session expiry of 3.1 and 3.1.1 sessions with clean session = 0; 4294967295 means never.",
        ),
    ] = 7 * 86400
    server_keep_alive: Annotated[
        Seconds, Meta(le=65535, description="Keep-alive imposed on MQTT 5 clients; 0 accepts the client's value.")
    ] = 0
    max_keep_alive: Annotated[
        Seconds, Meta(le=65535, description="Longest keep-alive a client may request; 0 sets no limit.")
    ] = 0
    connect_timeout: Annotated[
        PositiveDuration, Meta(description="Time limit for a new connection to send its complete CONNECT.")
    ] = 10.0
    topic_alias_max: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description="Topic aliases per connection and direction; 0 allows none.",
        ),
    ] = 16
    response_information: Annotated[
        str,
        Meta(description="Topic prefix sent to clients that request response information. Empty: none is sent."),
    ] = ""
    server_reference: Annotated[
        str,
        Meta(description="Server reference sent to MQTT 5 clients at shutdown. Empty: none is sent."),
    ] = ""
    sys_interval: Annotated[
        Duration, Meta(description="Interval at which $SYS topics are published; 0 disables them.")
    ] = 10.0
    empty_client_id: Annotated[
        bool,
        Meta(
            description="Whether a client may connect with an empty client id and be assigned one. If "
            "not, it gets 0x85 (3.x: 2)."
        ),
    ] = True
    strict_client_id: Annotated[
        bool,
        Meta(
            description="Whether only client ids of 1 to 23 letters and digits are accepted. That of a link is $link/ "
            "with letters, digits, dots, dashes, underscores and slashes, 96 bytes in all."
        ),
    ] = False
    retained_batch: Annotated[
        int,
        Meta(
            ge=1,
            description="Retained messages sent to a new subscription in one batch, before other "
            "clients get their turn.",
        ),
    ] = 500
