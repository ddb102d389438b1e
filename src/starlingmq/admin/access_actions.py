"""Operators create, change and delete users and rules while the broker serves (``auth.stored_access``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from starlingmq.admin.declared_actions import action
from starlingmq.admin.operator_problem import AdminError
from starlingmq.auth.acl import AclRule
from starlingmq.auth.stored_access import ApiRole, StoredAccess, StoredRule, StoredUser, TableRefused
from starlingmq.config.auth_section import methods_of
from starlingmq.config.section_types import ConfigError

if TYPE_CHECKING:
    from starlingmq.admin.local_node import LocalNode

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
