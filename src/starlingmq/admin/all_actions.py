"""All modules that declare actions for operators: importing this one fills ``declared_actions.DECLARED``."""

from starlingmq.admin import broker_actions, member_actions, service

__all__ = ["broker_actions", "member_actions", "service"]
