"""Limits of one client: its rights to publish and to subscribe, its rate, the key of its address."""
