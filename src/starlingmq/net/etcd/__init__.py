"""The etcd client, and the etcd process that a node runs itself."""
