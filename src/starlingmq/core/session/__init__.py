"""The state of connections and sessions: queue, inflight window, QoS handshakes, will."""
