"""Connections between nodes: server, streams, codec, and the shell around ClusterState."""
