"""Every option of mosquitto.conf (2.0 and 2.1), and its equivalent here.

``SETTINGS``: a setting with the same meaning. ``READ``: read by ``mosquitto_conf``, into the named setting.
``NOT_NEEDED``: nothing has to be done. ``NO_EQUIVALENT``: what to do; not said for the values in ``HARMLESS``.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Line(NamedTuple):
    """An option with its value, and its place (``file:line``)."""

    option: str
    value: str
    where: str


SETTINGS: Final = {
    "allow_zero_length_clientid": ("mqtt.empty_client_id", "bool"),
    "global_max_clients": ("limits.sessions", "count"),
    "global_max_connections": ("limits.max_connections", "count"),
    "max_inflight_messages": ("mqtt.max_inflight", "count"),
    "max_keepalive": ("mqtt.max_keep_alive", "count"),
    "max_packet_size": ("limits.max_packet_size", "count"),
    "max_queued_bytes": ("limits.queue_bytes", "count"),
    "max_queued_messages": ("mqtt.max_mqueue_len", "count"),
    "memory_limit": ("limits.memory", "count"),
    "queue_qos0_messages": ("mqtt.mqueue_store_qos0", "bool"),
    "retain_available": ("mqtt.retain_available", "bool"),
    "sys_interval": ("mqtt.sys_interval", "count"),
}
"""Of the whole broker. A count of -1 is 0 here: no limit."""

READ: Final = {
    "acl_file": "auth.acl.file",
    "allow_anonymous": "auth.allow_anonymous",
    "bind_address": "listeners[].url",
    "cafile": "listeners[].tls.ca",
    "certfile": "listeners[].tls.cert",
    "clientid_prefixes": "clients of the file of rules",
    "connection": "bridges[].name",
    "connection_messages": "log.connections",
    "crlfile": "listeners[].tls.crl",
    "include_dir": "",
    "keyfile": "listeners[].tls.key",
    "listener": "listeners[].url",
    "listener_allow_anonymous": "auth.allow_anonymous",
    "max_connections": "listeners[].max_connections",
    "max_qos": "mqtt.max_qos",
    "maximum_qos": "mqtt.max_qos",
    "max_topic_alias": "mqtt.topic_alias_max",
    "password_file": "auth.password.file",
    "per_listener_settings": "auth.password.file, auth.acl.file",
    "persistence": "node.data_dir",
    "persistence_file": "the data directory",
    "persistence_location": "the data directory",
    "persistent_client_expiration": "mqtt.session_expiry_v3, mqtt.max_session_expiry",
    "port": "listeners[].url",
    "protocol": "listeners[].url",
    "require_certificate": "listeners[].tls.require_client_cert",
    "socket_domain": "listeners[].url",
    "tls_version": "listeners[].tls.min_version",
    "use_identity_as_username": "listeners[].tls.use_identity_as_username, auth.methods",
    "use_subject_as_username": "listeners[].tls.use_subject_as_username, auth.methods",
    "websockets_origin": "listeners[].origins",
}

OF_LISTENERS: Final = frozenset([
    "accept_protocol_versions", "bind_address", "bind_interface", "cafile", "capath", "certfile", "ciphers",
    "ciphers_tls1.3", "crlfile", "dhparamfile", "disable_client_cert_date_checks", "enable_proxy_protocol",
    "http_api", "http_dir", "keyfile", "listener_allow_anonymous", "listener_auto_id_prefix", "max_connections",
    "max_qos", "maximum_qos", "max_topic_alias", "max_topic_alias_broker", "mount_point", "port", "protocol",
    "proxy_protocol_v2_require_tls", "psk_hint", "require_certificate", "socket_domain", "tls_engine",
    "tls_engine_kpass_sha1", "tls_keyform", "tls_version", "use_identity_as_username",
    "use_subject_as_username", "use_username_as_clientid", "websockets_origin",
])  # fmt: skip
"""Before the first ``listener`` they belong to the default listener, at port 1883 if ``port`` does not say another."""

OF_BRIDGES: Final = {
    "address": "servers",
    "addresses": "servers",
    "bridge_alpn": "tls.alpn",
    "bridge_cafile": "tls.ca",
    "bridge_certfile": "tls.cert",
    "bridge_insecure": "tls.insecure",
    "bridge_keyfile": "tls.key",
    "bridge_outgoing_retain": "retain",
    "bridge_protocol_version": "version",
    "bridge_receive_maximum": "max_inflight",
    "bridge_tls_use_os_certs": "tls",
    "clientid": "client_id",
    "keepalive_interval": "keep_alive",
    "notifications": "notifications",
    "notifications_local_only": "notifications",
    "password": "credentials.password_file",
    "remote_clientid": "client_id",
    "remote_password": "credentials.password_file",
    "remote_username": "credentials.username",
    "start_type": "start",
    "topic": "topics",
    "username": "credentials.username",
}
"""Keys of an entry of ``bridges``."""

_TIMER = "bridges connect, queue and reconnect by timers and limits of their own"
NOT_NEEDED: Final = {
    "allow_duplicate_messages": "overlapping subscriptions give one message, as in mosquitto 2",
    "auth_plugin_deny_special_chars": "names with + or # get no rights by %c and %u",
    "autosave_interval": "a message is stored before it is acknowledged",
    "autosave_on_changes": "a message is stored before it is acknowledged",
    "bridge_attempt_unsubscribe": _TIMER,
    "bridge_max_topic_alias": _TIMER,
    "bridge_reload_type": _TIMER,
    "bridge_tcp_keepalive": _TIMER,
    "bridge_tcp_user_timeout": _TIMER,
    "check_retain_source": "the right to read a retained message is checked when it is delivered",
    "ciphers": "TLS 1.2 and 1.3 with the ciphers that Python chooses",
    "ciphers_tls1.3": "TLS 1.2 and 1.3 with the ciphers that Python chooses",
    "dhparamfile": "TLS uses elliptic curves",
    "idle_timeout": _TIMER,
    "log_dest": "log lines are written to stderr, which the service manager keeps",
    "log_facility": "log lines are written to stderr",
    "log_timestamp": "log lines have the time in ISO 8601",
    "log_timestamp_format": "log lines have the time in ISO 8601",
    "log_type": "log.level has the lowest severity",
    "max_topic_alias_broker": "mqtt.topic_alias_max is for both directions",
    "memory_limit_soft": "limits.memory",
    "packet_buffer_size": "buffers grow as needed",
    "pid_file": "the service manager knows the process (deploy/systemd)",
    "restart_timeout": _TIMER,
    "retain_expiry_interval": "retained messages are removed when they expire",
    "retained_persistence": "retained messages are stored with everything else",
    "retry_interval": "mqtt.retry_interval is for 3.x clients",
    "round_robin": _TIMER,
    "set_tcp_nodelay": "always on",
    "store_clean_interval": "messages are freed at once",
    "threshold": _TIMER,
    "try_private": "a bridge never returns a message to its origin",
    "user": "the service manager sets the user (deploy/systemd)",
    "websockets_headers_size": "headers are limited to 64 KiB",
    "websockets_log_level": "log.level",
}

_PSK: Final = "TLS uses certificates here: give the clients certificates, or passwords over TLS"
_PLUGIN: Final = "plugins in C are not loaded: use auth.http, auth.jwt or a hook in Python (docs/PYTHON.md)"
_BY_BROKER: Final = "this is one setting for the whole broker here: "
NO_EQUIVALENT: Final = {
    "accept_protocol_versions": "MQTT 3.1, 3.1.1 and 5.0 are accepted at every listener; refuse others with a hook",
    "auth_plugin": _PLUGIN,
    "auto_id_prefix": "assigned client ids are 23 letters and digits: a rule that names the prefix needs another form",
    "bind_interface": "listen on the address of the interface: write it into the url of the listener",
    "bridge_bind_address": "the routing table chooses the address of a bridge",
    "bridge_capath": "put the certificates into one file, and name it in tls.ca of the bridge",
    "bridge_ciphers": "the ciphers are those that Python chooses; remove it if the other side supports TLS 1.2 or 1.3",
    "bridge_identity": _PSK,
    "bridge_max_packet_size": "limits.max_packet_size bounds what is accepted; nothing bounds what a bridge sends",
    "bridge_psk": _PSK,
    "bridge_require_ocsp": "OCSP is not asked: use short-lived certificates at the other broker",
    "bridge_session_expiry_interval": "the session of a bridge does not expire at the other broker",
    "bridge_tls_version": "a bridge uses TLS 1.2 or 1.3",
    "capath": "put the CA certificates into one file, and name it in tls.ca of the listener",
    "cleansession": "a bridge keeps its session: delete it at the other broker when the bridge is removed",
    "disable_client_cert_date_checks": "certificates that have expired are refused: renew them before the change",
    "enable_control_api": "use the HTTP API or starlingmq ctl in place of $CONTROL topics",
    "enable_proxy_protocol": "set proxy_protocol of the listener to the networks of the balancer",
    "global_plugin": _PLUGIN,
    "http_api": "add a listener http:// for the API and the dashboard (docs/HTTP.md)",
    "http_dir": "files are not served: use a web server",
    "listener_auto_id_prefix": "assigned client ids are 23 letters and digits",
    "local_cleansession": "a bridge keeps its local session",
    "local_clientid": "a bridge has no local client id",
    "local_password": "a bridge needs no local login",
    "local_username": "a bridge needs no local login: rules do not apply to it",
    "max_inflight_bytes": "limits.queue_bytes counts the window and the queue of a client together",
    "message_size_limit": "set limits.max_packet_size, which counts the whole packet",
    "mount_point": "no topic is changed: keep users apart by rules with %u, or rewrite topics in the hook on_publish",
    "notification_topic": "the state of a bridge is at $SYS/broker/connection/NAME/state",
    "plugin": _PLUGIN,
    "plugin_load": _PLUGIN,
    "plugin_use": _PLUGIN,
    "proxy_protocol_v2_require_tls": "let the balancer accept TLS only",
    "psk_file": _PSK,
    "psk_hint": _PSK,
    "tls_engine": "keys are read from files: export the key of the engine, or terminate TLS before the broker",
    "tls_engine_kpass_sha1": "keys are read from files",
    "tls_keyform": "keys are read from files",
    "upgrade_outgoing_qos": "a message is delivered at the lower QoS of publication and subscription [MQTT-3.8.4-8]",
    "use_username_as_clientid": "bind client ids to users with clients: ['%u'] in the file of rules",
}
HARMLESS: Final = {
    "auto_id_prefix": ("auto-",),
    "cleansession": ("false", "0"),
    "disable_client_cert_date_checks": ("false", "0"),
    "enable_control_api": ("false", "0"),
    "local_cleansession": ("false", "0"),
    "max_inflight_bytes": ("0",),
    "message_size_limit": ("0",),
    "proxy_protocol_v2_require_tls": ("false", "0"),
    "tls_keyform": ("pem",),
    "upgrade_outgoing_qos": ("false", "0"),
    "use_username_as_clientid": ("false", "0"),
}
PREFIXES: Final = ("auth_opt_", "plugin_opt_")
"""Options of plugins, which may have any names; their plugin is named already."""


def known(option: str) -> bool:
    tables = (SETTINGS, READ, OF_BRIDGES, NOT_NEEDED, NO_EQUIVALENT)
    return any(option in table for table in tables) or option.startswith(PREFIXES)
