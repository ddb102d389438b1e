"""Retained messages of the whole cluster, in etcd."""
