"""Requests to etcd as plain values, compare-and-set batches, elections."""
