"""The users who may log in at this node, and those of its connected clients."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, Struct

from starlingmq.admin.declared_actions import NODE, action
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.paging import in_pieces
from starlingmq.config.auth_section import methods_of
from starlingmq.config.section_types import ConfigError
from starlingmq.core.reports.session_totals import of_clients

if TYPE_CHECKING:
    from starlingmq.admin.local_node import LocalNode

USERS_MAX: Final = 500  # in one reply


class UserSearch(Struct, frozen=True):
    q: Annotated[
        str, Meta(max_length=65535, description="Only users whose names contain this text.", extra={"ctl": "PART"})
    ] = ""


class ListedUser(Struct, frozen=True):
    name: str
    stored: Annotated[
        list[Literal["password", "scram"]],
        Meta(description="What is stored of the user; empty: another method, or no check, gave the name."),
    ]
    origin: Annotated[
        Literal["", "file", "operator"],
        Meta(description="Where the user is stored: in the password file, or by an operator's request."),
    ]
    clients: Annotated[int, Meta(description="Connected clients of the user at this node.")]
    api: Annotated[Literal["", "operator", "viewer"], Meta(description="The rights of the user at the HTTP API.")]


class UsersReply(Struct, frozen=True):
    """``file`` is empty without a password file. ``revision``: of users and rules of operators.
    ``total``: users that match, ``users`` the first ones by name."""

    methods: Annotated[list[str], Meta(description="Authentication methods in use, in their order; empty: none.")]
    file: str
    anonymous: Annotated[int, Meta(description="Connected clients without a user name at this node.")]
    revision: int
    total: int
    users: list[ListedUser]


class UserActions:
    def __init__(self, local_node: LocalNode) -> None:
        self._local_node = local_node

    @action(
        "users",
        "GET /users",
        NODE,
        ctl="users q?",
        columns="name: user, clients, origin: from, stored, api",
        none="there are no users",
    )
    async def users(self, request: UserSearch) -> UsersReply:
        """List the users of the password file, of operators and of connected clients, at most 500. Raises
        AdminError."""
        auth, table = self._local_node.config().auth, self._local_node.access.stored
        file = await _stored(auth.password.file) if auth.password.file else {}
        made = {one.name: one for one in table.users if one.name not in file}
        clients = await self._clients()
        anonymous = clients.pop("", 0)
        roles: dict[str, Literal["operator", "viewer"]] = dict.fromkeys(auth.api.viewers, "viewer")
        roles |= dict.fromkeys(auth.api.users, "operator")
        roles = {name: one.api for name, one in made.items() if one.api != "none"} | roles
        names = sorted(name for name in {*file, *made, *clients} if request.q in name)
        shown = [
            ListedUser(
                name,
                file.get(name, ["password", "scram"] if name in made else []),
                "file" if name in file else "operator" if name in made else "",
                clients.get(name, 0),
                roles.get(name, ""),
            )
            for name in names[:USERS_MAX]
        ]
        methods = list(methods_of(table.effective(auth)))
        return UsersReply(methods, auth.password.file or "", anonymous, table.revision, len(names), shown)

    async def _clients(self) -> Counter[str]:
        """The connected clients by user."""
        found: Counter[str] = Counter()
        for piece in in_pieces(self._local_node.state.ctx.sessions):
            found.update(one.client.username for one in piece if one.client is not None and of_clients(one))
            await asyncio.sleep(0)  # lets other tasks run
        return found


async def _stored(path: str) -> dict[str, list[Literal["password", "scram"]]]:
    """The kinds of passwords that the file has of each user. Raises AdminError."""
    from starlingmq.auth.password_file import read_passwords  # late: it loads the hashes' libraries

    try:
        file = await asyncio.to_thread(read_passwords, path)
    except ConfigError as error:
        raise AdminError(409, str(error)) from None
    found: dict[str, list[Literal["password", "scram"]]] = {name: ["password"] for name in file.hashes}
    for name in file.scram:
        found.setdefault(name, []).append("scram")
    return found
