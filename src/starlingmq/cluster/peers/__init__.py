"""Connections to the other nodes, and this node among them: frames, heartbeats, routes, lost nodes, serving."""
