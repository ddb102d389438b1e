"""One broker, assembled from all parts: as an object (``Broker``), as a process, and as a node that has copies."""
