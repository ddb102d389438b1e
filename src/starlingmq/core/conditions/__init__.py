"""Reactions to conditions that change while clients are connected: rules, failing storage, short memory."""
