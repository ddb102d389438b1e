"""Whose a session is: the user who made it, by the name under which it was let in ("" for a client without a name).

``None`` is an owner that is not known: of a session that was stored, or handed over, by a version that kept no owner.
Such a session is the first user's who connects with its client id.
"""

from __future__ import annotations

from typing import Final

BY_USER: Final = 0  # another user with the same client id begins a new session, and the earlier one ends
BY_CLIENT_ID: Final = 1  # users share client ids, and with them sessions
REFUSE: Final = 2  # another user is refused as long as the session lives

RULES: Final = {"user": BY_USER, "client_id": BY_CLIENT_ID, "refuse": REFUSE}  # as ``auth.session_owner`` says

ANOTHER_USER: Final = "another_user"  # why messages were dropped, and what is counted among the errors
KEPT_FOR_ANOTHER: Final = "the session of this client id belongs to another user"


def is_anothers(rule: int, owner: str | None, user: str | None) -> bool:
    """Whether the session of ``owner`` must not be given to ``user``."""
    return rule != BY_CLIENT_ID and owner is not None and user is not None and owner != user
