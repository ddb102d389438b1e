"""Conditions that operators should know of, the remedy of each alarm, and the page of the documentation site that
explains it.

``DROPPED`` and ``CLOSED`` have the reasons of two kinds of alarms. The tables of docs/PLAYBOOK.md begin with the same
words, which a test compares.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

Severity = Literal["warning", "critical"]


class Condition(Struct, frozen=True):
    kind: str
    subject: str
    severity: Severity
    text: Annotated[str, Meta(description="One line that states the problem.")]
    next: Annotated[str, Meta(description="What to do, in one line.")]


PAGES: Final = {
    "storage": "PLAYBOOK.html#the-disk",
    "copies": "COPIES.html#a-machine-is-lost",
    "last_copy": "COPIES.html#a-machine-is-lost",
    "disk": "PLAYBOOK.html#the-disk",
    "memory": "PLAYBOOK.html#a-node-stops-serving",
    "queue": "PLAYBOOK.html#dropped-messages",
    "unacknowledged": "PLAYBOOK.html#clients",
    "dropped": "PLAYBOOK.html#dropped-messages",
    "closed": "PLAYBOOK.html#closed-connections",
    "certificate": "SECURITY.html#tls",
    "node": "PLAYBOOK.html#a-node-stops-serving",
    "etcd": "PLAYBOOK.html#a-node-stops-serving",
    "quorum": "PLAYBOOK.html#a-node-stops-serving",
    "clock": "HTTP.html#alarms",
    "refused": "SECURITY.html#rules",
    "flapping": "PLAYBOOK.html#clients",
    "logins": "SECURITY.html#failed-logins",
    "link": "BRIDGES.html#when-something-is-wrong",
    "link_queue": "BRIDGES.html#when-something-is-wrong",
    "link_refused": "BRIDGES.html#when-something-is-wrong",
}
"""By kind of alarm, relative to the address of any copy of the site."""

DROPPED: Final = {
    "queue_full": (
        "start the client that starlingmq ctl droppers names, or end its session if it is gone for good (ctl end); for "
        "more room raise mqtt.max_mqueue_len and limits.queue_bytes"
    ),
    "search_limit": (
        "use topics of fewer levels; look for clients with thousands of patterns (ctl subscriptions), and set "
        "limits.subscriptions_per_client"
    ),
    "slow_receiver_qos0": (
        "check the network of the client (starlingmq top --sort dropped); use QoS 1 if the messages matter"
    ),
    "slow_consumer": "check the network of the NATS client, or make it faster",
    "offline_qos0": "nothing: intended by the setting; use QoS 1 if the messages matter",
    "expired": "nothing: intended by the publisher",
    "packet_too_large": "raise the Maximum Packet Size of the client's CONNECT",
    "session_ended": "nothing if you ended or kicked the client; otherwise check session expiry and clean starts",
    "unsettled_qos2": "bring nodes that are down back quickly; use QoS 1 where a duplicate does less harm than a gap",
    "returned_qos2": "let a node pass its messages on before it is removed: ctl cluster leave instead of forget",
    "await_rel_timeout": "find the publisher that gave up in the middle of a handshake",
    "handshake_memory": "find the publisher that left in the middle of a handshake",
    "not_authorized": "correct the client, or the rules in auth.acl.file; ctl may tests them",
    "revoked": "nothing: intended by the new rules",
    "hook": "nothing: a hook of your program wants it",
    "refused": "look for the traceback of your hook in the log (ctl log)",
    "memory": "look for clients with long queues, raise limits.memory, or add nodes",
    "storage_failing": "free some space in the file system of the data directory, or replace the disk",
    "lost_in_storage": "run starlingmq ctl storage check, and look for faults of the disk in the log of the kernel",
    "retention": "nothing: intended by the setting",
    "peer_unreachable": "start the node that is gone, or repair the network between the nodes; ctl peers shows them",
    "slow_peer_qos0": "check the network between the nodes; ctl peers shows them",
    "isolated": "repair the network of this node, or start the other nodes",
    "nats_wait": "add members to the group, or find the node that was down",
    "group_full": "add members to the group (ctl groups), or raise queue_groups.max_waiting or retention",
    "group_retention": "add members to the group (ctl groups), or raise queue_groups.max_waiting or retention",
    "group_gone": "nothing, if intended; otherwise the group needs members with persistent sessions",
    "no_group_member": "nothing, if rare: a group had just ended",
    "passed_on": "nothing: the message is not lost",
    "contract": "look at the publisher, or at the contract in the settings",
    "stream_refused": "look at the publisher, or at the settings of the stream",
    "stream_full": "let readers catch up, or raise the retention of the stream (ctl stream list)",
    "stream_removed": "raise the limits of the stream, or let its readers catch up",
    "max_deliveries": "find out why workers fail, and keep dead letters in a stream",
    "retained_quota": (
        "raise limits.retained_messages, retained_bytes or cluster.etcd.quota, or remove retained messages (ctl "
        "unretain)"
    ),
    "retained_unreachable": "start the nodes that keep the message",
    "beyond_limits_here": "set the same limits on all nodes",
    "bad_headers": "correct the client, which sends headers that break the protocol of NATS",
    "no_topic": "rename the topic or the subject so that both protocols have it",
    "no_subject": "rename the topic or the subject so that both protocols have it",
    "published_again": "nothing; or two producers use one name",
    "bridge_loop": "nothing; or two bridges carry the same topics, one from each side",
    "numbered_wrong": "nothing; or two producers use one name",
}
"""Reasons for which messages are dropped."""

CLOSED: Final = {
    "bad_origin": "add the origin to listeners[].origins, if the page is yours",
    "bad_path": "correct the URL, or the subprotocol of the client's library (mqtt)",
    "bad_subprotocol": "correct the URL, or the subprotocol of the client's library (mqtt)",
    "bad_user_name_or_password": "correct the device; get a new token; check the clocks",
    "client_certificate": (
        "run starlingmq ctl certificates, which shows what has ended; check the certificate of the client"
    ),
    "client_identifier_not_valid": "correct the client id, or the client ids that auth.acl.file gives to the user",
    "client_packet_limit": "raise the Maximum Packet Size in the CONNECT of the client",
    "connection_rate_exceeded": "nothing after a restart of many devices; otherwise raise limits.connect_rate",
    "connections_per_address": (
        "raise limits.connections_per_address for many devices behind one router; name a proxy in "
        "listeners[].trusted_proxies or proxy_protocol"
    ),
    "connections_per_user": "find the program that leaves connections open, or raise limits.connections_per_user",
    "credentials_expired": "have clients get a new token and connect again",
    "listener_max_connections": "raise listeners[].max_connections",
    "login_unavailable": "check the service of auth.http: starlingmq ctl connectors --test auth.http",
    "logins_waiting": "give the machine more CPU; use tokens or certificates in place of passwords",
    "max_connections": "raise limits.max_connections and the limit of descriptors, or add nodes",
    "not_a_proxy": "add the balancer's network to listeners[].proxy_protocol, or use another listener",
    "packet_too_large": (
        "raise limits.max_packet_size, or have the client send less: it comes again and again otherwise"
    ),
    "producers": "raise limits.producers; connect to the port of one node",
    "proxy_header": "switch the PROXY protocol on at the balancer",
    "quota_exceeded": "raise the limit that the log line names, or find out why the client needs more",
    "sessions": (
        "end sessions of devices that are gone (ctl end), have clients set a shorter session expiry, or raise "
        "limits.sessions"
    ),
}
"""Reasons for closed connections whose remedy is a setting, a file or a service. Memory and storage have alarms of
their own; mistakes of single clients, and a few wrong passwords, are common on an open port."""
