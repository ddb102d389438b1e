"""All metrics of a broker, with their labels and help texts; ``starlingmq_`` comes before each name."""

from __future__ import annotations

from typing import Final

COUNTERS: Final = {
    "messages_received{qos}": "Messages published by clients, by QoS; NATS messages count as QoS 0.",
    "messages_sent{qos}": "Messages sent to clients, by QoS, including retransmissions.",
    "messages_dropped{reason}": "Messages given up for a receiver, by reason (the playbook explains each).",
    "messages_queued": "Messages that could not be sent at once and went to a queue.",
    "retransmissions": "Messages sent again, because they were not acknowledged.",
    "publishers_held": "Times that a publisher was paused because a receiver was full.",
    "received_bytes": "Bytes that clients have sent, on all listeners, after decryption.",
    "sent_bytes": "Bytes written to clients, on all listeners, before encryption.",
    "connections_opened": "Connections accepted since the start, whether or not their clients were.",
    "connections_closed{reason}": (
        "Connections closed by the broker, by reason; those that clients close are not counted."
    ),
    "connections_noted{reason}": "Events that are logged and after which the connection continues, by reason.",
    "connections_refused{listener,reason}": (
        "Connections closed before any client was known, by listener and reason, such as a limit or a ban."
    ),
    "listener_messages_received{listener}": "Messages published by clients that are or were connected to the listener.",
    "listener_received_bytes{listener}": "Bytes that clients of the listener have sent, after decryption.",
    "listener_sent_bytes{listener}": "Bytes written to clients of the listener, before encryption.",
    "accept_pauses": "Times that a listener with TLS stopped accepting because too many handshakes waited.",
    "group_sent_at_once": "Messages sent to members on other nodes without asking the primary.",
    "storage_failures": "Times that the disk was full or failed, so that messages were refused.",
    "records_lost": "Records lost or damaged on disk.",
    "http_logins_refused{reason}": "Failed logins to the HTTP API, by reason.",
    "login_checks{outcome}": "Password verifications, by outcome.",
    "hashing_process_ended": "Times that the process that hashes passwords ended unexpectedly or hung.",
    "connector_requests{connector,outcome}": (
        "Requests to services outside the broker, by outcome; spans, for tracing."
    ),
    # of links to other brokers, where there are some
    "link_messages_out{link}": "Messages carried to the other broker.",
    "link_messages_in{link}": "Messages carried from the other broker.",
    "link_refused{link}": "Messages that the receiving broker refused.",
    "link_kept_out{link}": "Messages not carried: they had been there, were too large, or have no topic there.",
    "link_again{link}": "Messages sent again after the other broker had lost its session.",
    "link_dropped{link}": "Messages for the other broker dropped for lack of room, or because they expired.",
    "traced_messages": "Messages sampled for tracing on this node.",
    "traced_spans": "Spans exported to the collector.",
    "traced_spans_lost": "Spans that could not be exported.",
    "traced_left_out": (
        "Messages above tracing.rate, and steps above the limit of concurrent ones, that were not traced."
    ),
    # of a cluster
    "forwards_sent": "Messages forwarded to other nodes.",
    "forwards_received": "Messages received from other nodes.",
    "forwards_doubled": "Messages received from other nodes more than once; the duplicates were ignored.",
    "forwards_kept": (
        "Messages received from other nodes that had waited there for this node. Limits of queues do not drop them."
    ),
    "forwards_unwanted": (
        "Messages received from other nodes because of a summary of filters, and wanted by no subscriber here."
    ),
    "peer_sent_bytes": "Bytes sent to other nodes.",
    "peer_received_bytes": "Bytes received from other nodes.",
    "peer_backlog_passed_on{peer}": (
        "Messages that waited for that node when it was connected again, and that it has stored since."
    ),
    "peer_backlog_dropped{peer}": (
        "Messages that waited for that node when it was connected again, and were dropped here: they had expired, or "
        "were beyond the retention of the journal."
    ),
    "sessions_lost{reason}": "Sessions that a CONNECT did not find, by reason.",
    "share_claims": "Claims of client ids that this node has granted.",
    "retained_replays_incomplete": (
        "New subscriptions that waited for as long as allowed and got the retained messages known here."
    ),
}
GAUGES: Final = {
    "ready": "1 if this node accepts clients, else 0.",
    "build_info{node,version,python,code}": (
        "Always 1; the labels have the name of the node, the version, and whether the code is compiled."
    ),
    "alarms{kind,severity}": (
        "Active alarms of this node, by kind and severity; /api/v1/alarms and ctl alarms describe each of them."
    ),
    "expires_timestamp_seconds{kind,setting,file}": (
        "Unix time at which a certificate, revocation list, key set or token that this node uses ends."
    ),
    "connections{listener}": "Open connections, by listener, including those that have not sent CONNECT yet.",
    "handshakes_waiting": "TLS handshakes that wait for their turn (limits.handshake_time).",
    "login_checks_waiting": "Password verifications that wait for a worker.",
    "clients_connected": "MQTT and NATS clients that are connected to this node and have been accepted.",
    "sessions": "Sessions on this node, of connected and disconnected clients.",
    "sessions_away": "Sessions on this node whose clients are disconnected; messages wait for them.",
    "sessions_stalled": "Sessions for which publishers are not held any more.",
    "subscriptions": "Subscriptions of the sessions on this node, connected or not.",
    "retained_messages": "Topics with a retained message, as this node knows them, without those below $SYS.",
    "retained_bytes": "Size of the topics, payloads and properties of retained messages.",
    "queued": "Messages that wait in queues: their clients are disconnected, or slower than their publishers.",
    "queued_bytes": "Size of the topics, payloads and properties of queued messages.",
    "queued_beyond_limits": "Queued messages beyond the limits of their queues: other nodes had accepted them before.",
    "inflight": "Messages sent to clients and not acknowledged yet.",
    "awaiting_rel": "QoS 2 messages of clients that wait for their PUBREL.",
    "bans": "Addresses, users and clients that are refused at the moment.",
    "groups": "Groups with members: shared subscriptions of MQTT, queue groups of NATS.",
    "group_waiting{group}": "Messages of a group that wait on this node for a member.",
    "group_lag{group}": "Messages of a group that wait on all nodes; reported by its primary.",
    "group_members{group}": "Members of a group on all nodes.",
    "link_connected{link}": "1 if the link is connected, else 0; reported by the node that carries it.",
    "link_waiting{link}": "Messages that wait on this node for the other broker.",
    "link_waiting_bytes{link}": "Size of these messages.",
    "link_inflight{link}": "Messages sent to the other broker and not acknowledged yet.",
    "turn_max_seconds": "The longest turn since the start.",
    "storage_ok": "1 if the storage works, else 0.",
    "journal_bytes": "Size of the journal on disk, which keeps queued and unsaved data.",
    "journal_segments": "Files of the journal; one is deleted when no session refers to it.",
    "stream_bytes{stream}": "Size of a stream on the disk of this node.",
    "stream_next{stream}": (
        "Offset that the next message of a stream will get: all messages so far, also those deleted since."
    ),
    "stream_lag{stream,consumer}": "Messages of a stream that a consumer has not read yet.",
    # of a cluster
    "cluster_serving": "1 if this node serves in its cluster, else 0.",
    "peer_connected{peer}": "1 if the node is connected, else 0.",
    "peer_queued{peer}": "Messages that wait on this node until they can be sent to that node.",
    "peer_backlog_waiting{peer}": (
        "Messages that waited for that node when it was connected again, and still wait here."
    ),
    "copies_in_step{origin}": (
        "Nodes whose disks have everything that was acknowledged, by the node whose data it is; of data served here."
    ),
    "copies_missing{origin}": (
        "Nodes that cluster.copies asks for, and that are not in step or not there. By the node whose data it is; of "
        "data served here."
    ),
    "copy_behind_bytes{origin,peer}": "Bytes that a connected follower has not stored yet.",
    "copy_behind_seconds{origin,peer}": "Age of the oldest of these bytes.",
    "shares_led": "Shares of client ids that this node leads.",
    "shares_not_serving": (
        "Shares that this node leads and that grant nothing yet, because keys are being collected or copied."
    ),
    "share_requests_waiting": "Requests that wait for these shares.",
    "share_client_ids": "Client ids with an owner, in the shares that this node leads.",
    "share_unknown_nodes": (
        "Nodes that may have sessions of these shares and could not be asked: clients may be told session present 0."
    ),
    "share_behind{peer}": "Messages about owners that the node has not acknowledged yet.",
    "retained_replays_waiting": "New subscriptions that wait for retained messages from other nodes.",
    "retained_replay_wait_seconds": "How long the first of these subscriptions has waited.",
    "retained_replays_missing{peer}": ("How many of these subscriptions wait for messages that the node has accepted."),
}
HISTOGRAMS: Final = {
    "turn_seconds": (
        "Time from the first bytes read in a turn of the event loop to the last bytes written: the longest delay of a "
        "message that was published and delivered in that turn."
    ),
    "delivery_delay_seconds": (
        "Time from a message's arrival on this node until it was sent to a client, including queues, windows and "
        "hooks; sampled: one in 16 of the messages that are not sent in the turn in which they arrive."
    ),
    "commit_seconds": "Time until the writes of a turn were stored.",
    "event_loop_lag_seconds": "Delay of a timer of the event loop: the time for which everything else waited.",
    "fsync_seconds": "Duration of a sync of the journal.",
    "peer_round_trip_seconds{peer}": "Round-trip time of an empty request to a node.",
}
PROCESS: Final = {
    "process_virtual_memory_bytes": "Address space of the broker's process; much of it is not in memory.",
    "process_resident_memory_bytes": "Memory that the broker's process takes; limits.memory bounds it.",
    "process_start_time_seconds": "Unix time at which the broker's process started.",
    "process_cpu_seconds": "CPU time of the broker's process, user and system; above 0.9 per second its core is full.",
    "process_open_fds": "Open file descriptors: one for each connection, some for files.",
    "process_max_fds": "Limit of open file descriptors; connections are refused above it.",
}
"""Without the prefix: all programs with a Prometheus client have them."""
