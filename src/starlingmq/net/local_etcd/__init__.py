"""The part of etcd that workers of one machine need, in their parent process."""
