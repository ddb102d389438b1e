"""The form of a part of a node in a cluster, and its view of the other nodes."""
