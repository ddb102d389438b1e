"""The user of a session: the user name of the client that created it ("" for a client without one).

``None`` is an unknown user: of a session that was stored, or handed over, by a version that did not record it. Such a
session belongs to the first user who connects with its client id.
"""

from __future__ import annotations

from typing import Final

BY_USER: Final = 0  # another user with the same client id begins a new session, and the earlier one ends
BY_CLIENT_ID: Final = 1  # users share client ids and sessions
REFUSE: Final = 2  # another user is refused as long as the session lives

RULES: Final = {"user": BY_USER, "client_id": BY_CLIENT_ID, "refuse": REFUSE}  # values of ``auth.session_owner``

ANOTHER_USER: Final = "another_user"  # reason of dropped messages, and name among the counted errors
KEPT_FOR_ANOTHER: Final = "the session of this client id belongs to another user"


def is_anothers(rule: int, owner: str | None, user: str | None) -> bool:
    """Whether the session of ``owner`` must not be given to ``user``."""
    return rule != BY_CLIENT_ID and owner is not None and user is not None and owner != user
