"""Listening sockets, connections, TLS, WebSocket, PROXY protocol, and their limits."""
