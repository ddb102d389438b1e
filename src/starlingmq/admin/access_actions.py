"""Operators list users, and create, change and delete users and rules while the broker serves
(``auth.stored_access``).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from starlingmq.admin.declared_actions import NODE, action
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.paging import in_pieces
from starlingmq.auth.acl import AclRule
from starlingmq.auth.stored_access import ApiRole, StoredAccess, StoredRule, StoredUser, TableRefused
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


WAITING_MAX: Final = 16  # passwords to be hashed, one after the other

WITH_RIGHTS: Final = "the user {name!r} (API: {api})"  # for the log

UserName = Annotated[str, Meta(min_length=1, max_length=256, description="User name.")]
RuleName = Annotated[str, Meta(min_length=1, max_length=100, description="Name of the rule.")]
NewPassword = Annotated[str, Meta(max_length=1024, description="Password. Only its hashes are stored.")]
Revision = (
    Annotated[int, Meta(ge=0, description="Refuse if users and rules have another revision. Default: any.")] | None
)
API: Final = "Rights at the HTTP API and the dashboard."
Force = Annotated[
    bool, Meta(description="Do it although clients would have to log in from then on, or would not have to any more.")
]


class NewUser(Struct, frozen=True):
    name: UserName
    password: NewPassword
    api: Annotated[ApiRole, Meta(description=API)] = "none"
    force: Force = False
    revision: Revision = None


class UserChange(Struct, frozen=True):
    """An empty password, and ``keep``, leave what is there."""

    name: UserName
    password: NewPassword = ""
    api: Annotated[Literal["keep", "none", "viewer", "operator"], Meta(description=API)] = "keep"
    revision: Revision = None


class OneUser(Struct, frozen=True):
    name: UserName
    force: Force = False
    revision: Revision = None


class NewRule(Struct, frozen=True):
    name: RuleName
    rule: Annotated[AclRule, Meta(description="As in the ACL file, with durations in seconds.")]
    before: Annotated[
        str,
        Meta(max_length=100, description="Put it before this rule. Default: where it is; a new one is the last."),
    ] = ""
    revision: Revision = None


class OneRule(Struct, frozen=True):
    name: RuleName
    revision: Revision = None


class AccessChanged(Struct, frozen=True):
    """``revision``: of users and rules after the change."""

    revision: int


class AccessActions:
    def __init__(self, local_node: LocalNode) -> None:
        self._local_node = local_node
        self._hashing = asyncio.Lock()
        self._waiting = 0

    @action("user.add", "POST /users", body="NewUser", audit=f"created {WITH_RIGHTS}")
    async def add(self, request: NewUser) -> AccessChanged:
        """Create a user who may log in with a password on all nodes. Raises AdminError."""
        self._refuse_of_file(request.name)
        user = StoredUser(request.name, "", "", request.api)

        def make(table: StoredAccess) -> StoredAccess:
            if any(one.name == request.name for one in table.users):
                raise TableRefused(409, f"the user {request.name!r} exists; change its password instead")
            if not table.users and not request.force:
                self._refuse_first(request.api)
            return table.with_user(user)

        self._local_node.table.made(request.revision, make)  # before the password is hashed
        user = await self._hashed(request.name, request.password, request.api)
        return await self._change(request.revision, make)

    @action("user.change", "PUT /users", body="UserChange", audit=f"changed {WITH_RIGHTS}")
    async def change(self, request: UserChange) -> AccessChanged:
        """Change the password of a user, or its rights at the HTTP API; a new password disconnects its clients. Raises
        AdminError."""
        self._refuse_of_file(request.name)
        hashed: StoredUser | None = None

        def make(table: StoredAccess) -> StoredAccess:
            former = table.user(request.name)
            api = former.api if request.api == "keep" else request.api
            return table.with_user(replace(hashed or former, api=api))

        self._local_node.table.made(request.revision, make)
        if request.password:
            hashed = await self._hashed(request.name, request.password, "none")
        return await self._change(request.revision, make)

    @action(
        "user.delete",
        "DELETE /users",
        ctl="user/delete name",
        said="deleted the user {name}",
        audit="deleted the user {name!r}",
    )
    async def delete(self, request: OneUser) -> AccessChanged:
        """Delete a user that an operator has created; its clients are disconnected. Raises AdminError."""

        def make(table: StoredAccess) -> StoredAccess:
            if all(one.name != request.name for one in table.users):
                self._refuse_of_file(request.name)
            made = table.without_user(request.name)
            if not made.users and not request.force:
                self._refuse_last()
            return made

        return await self._change(request.revision, make)

    @action("rule.set", "PUT /rules", body="NewRule", audit="set the rule {name!r}: {rule}")
    async def set_rule(self, request: NewRule) -> AccessChanged:
        """Create or replace a rule of access, which comes after those of the ACL file. Raises AdminError."""
        rule = StoredRule(request.name, request.rule)
        return await self._change(request.revision, lambda table: table.with_rule(rule, request.before))

    @action(
        "rule.delete",
        "DELETE /rules",
        ctl="rule/delete name",
        said="deleted the rule {name}",
        audit="deleted the rule {name!r}",
    )
    async def delete_rule(self, request: OneRule) -> AccessChanged:
        """Delete a rule of access that an operator has created. Raises AdminError."""
        return await self._change(request.revision, lambda table: table.without_rule(request.name))

    async def _change(self, revision: int | None, make: Callable[[StoredAccess], StoredAccess]) -> AccessChanged:
        return AccessChanged((await self._local_node.table.change(revision, make)).revision)

    async def _hashed(self, name: str, password: str, api: ApiRole) -> StoredUser:
        """One at a time, since a hash takes tens of milliseconds and 64 MiB. Raises AdminError."""
        try:
            from starlingmq.auth.password_file import PasswordFile
        except ImportError as error:
            raise AdminError(409, f"users need more packages ({error}); run pip install '.[auth]'") from None
        if self._waiting >= WAITING_MAX:
            raise AdminError(503, "too many passwords are being hashed; try again")
        made = PasswordFile()
        self._waiting += 1
        try:
            async with self._hashing:
                await asyncio.to_thread(made.set, name, password)
        except ConfigError as error:
            raise AdminError(400, str(error)) from None
        finally:
            self._waiting -= 1
        return StoredUser(name, made.hashes[name], made.scram[name].line(), api)

    def _refuse_of_file(self, name: str) -> None:
        """Raises AdminError."""
        chain, file = self._local_node.access.chain, self._local_node.config().auth.password.file
        if chain is not None and chain.file_users is not None and name in chain.file_users.names():
            raise AdminError(
                409, f"the user {name!r} is in {file}, which precedes; use starlingmq passwd and ctl reload"
            )

    def _refuse_first(self, api: ApiRole) -> None:
        """The first user makes clients log in, unless another method already does. Raises TableRefused."""
        node = self._local_node
        auth = node.config().auth
        if methods_of(auth) or node.access.own_hook is not None:
            return
        if api != "operator" and not (auth.api.users or auth.api.token_file or auth.api.oidc.operators):
            raise TableRefused(
                409, "the first user has to be an operator (api), since the HTTP API asks for a login then"
            )
        if node.state.ctx.counters.clients_connected or node.cluster is not None:  # others may have clients
            raise TableRefused(
                409,
                "clients are connected, perhaps to other nodes, that did not have to log in: with a first user, those "
                "with a user name are disconnected, and all of them unless auth.allow_anonymous is true; use force if "
                "this is intended",
            )

    def _refuse_last(self) -> None:
        """Raises TableRefused."""
        if not methods_of(self._local_node.config().auth):
            raise TableRefused(
                409, "this is the last user, without whom nobody has to log in; use force if this is intended"
            )
