"""JetStream in a cluster: which node is the home of which stream, and what homes and the nodes of clients exchange."""
