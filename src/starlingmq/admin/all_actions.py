"""All modules that declare actions for operators: importing this one fills ``declared_actions.DECLARED``."""

from starlingmq.admin import member_actions, service, store_actions

__all__ = ["member_actions", "service", "store_actions"]
