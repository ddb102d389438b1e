"""Sessions: queue, inflight window, QoS handshakes and will of each, and how sessions are restored, moved and ended."""
