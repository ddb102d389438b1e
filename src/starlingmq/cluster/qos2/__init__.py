"""QoS 2 handshakes of clients that continue them at another node."""
