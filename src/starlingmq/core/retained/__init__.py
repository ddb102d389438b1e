"""Retained messages: the store by topic, and their expiry."""
