"""Bytes of MQTT clients are assembled to packets, and each packet is passed to the package that handles it."""
