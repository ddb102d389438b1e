"""One session: its queue, inflight window, QoS handshakes, will, and how it is restored, moved and ended."""
