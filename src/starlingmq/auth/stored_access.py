"""Users and rules that operators create while the broker serves: one table, and how it changes.

The table is one JSON document, which ``admin.access_table`` stores in etcd or in the data directory. It has hashes,
never a password. Each change makes a new table with the next ``revision``; a change that was asked for at another
revision is refused, so that two operators do not overwrite each other.

A user of the password file precedes one of the table with the same name. The rules of the table come after those of the
ACL file; they are in order, and each has a name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from msgspec import MsgspecError, Struct, json
from msgspec.structs import replace

from starlingmq.auth.acl import AclRule, Rule
from starlingmq.config.auth_section import METHODS, AuthConfig, methods_of
from starlingmq.config.section_types import ConfigError

if TYPE_CHECKING:
    from starlingmq.auth.password_file import PasswordFile

USERS_MAX: Final = 2000
RULES_MAX: Final = 500
BYTES_MAX: Final = 1 << 20  # of the document; etcd accepts requests of 1.5 MiB

ApiRole = Literal["none", "viewer", "operator"]


class TableRefused(Exception):
    """The change is refused: the HTTP status, and one line that says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class StoredUser(Struct, frozen=True, forbid_unknown_fields=True):
    """``password`` and ``scram`` are hashes as in the password file. ``api``: the rights at the HTTP API."""

    name: str
    password: str
    scram: str
    api: ApiRole = "none"

    def __repr__(self) -> str:
        return f"StoredUser({self.name!r})"


class StoredRule(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    rule: AclRule


class StoredAccess(Struct, frozen=True, forbid_unknown_fields=True):
    revision: int = 0
    users: tuple[StoredUser, ...] = ()
    rules: tuple[StoredRule, ...] = ()

    # Changes

    def with_user(self, user: StoredUser) -> StoredAccess:
        """With this user in place of the one of the same name, or at the end. Raises TableRefused."""
        names = [one.name for one in self.users]
        if user.name in names:
            return self._next(users=tuple([user if one.name == user.name else one for one in self.users]))
        if len(names) >= USERS_MAX:
            raise TableRefused(507, f"the limit of {USERS_MAX:,} users is reached; use a password file for more")
        return self._next(users=(*self.users, user))

    def without_user(self, name: str) -> StoredAccess:
        """Raises TableRefused."""
        self.user(name)
        return self._next(users=tuple([one for one in self.users if one.name != name]))

    def user(self, name: str) -> StoredUser:
        """Raises TableRefused."""
        for one in self.users:
            if one.name == name:
                return one
        raise TableRefused(404, f"there is no user {name!r} that an operator has created")

    def with_rule(self, rule: StoredRule, before: str) -> StoredAccess:
        """With this rule in place of the one of the same name; ``before`` moves it to before that rule, and "" leaves
        it where it is, or puts a new one at the end. Raises TableRefused."""
        try:
            Rule(rule.rule, "rule")
        except ConfigError as error:
            raise TableRefused(400, str(error)) from None
        names = [one.name for one in self.rules]
        others = [one for one in self.rules if one.name != rule.name]
        if before and before not in [one.name for one in others]:
            raise TableRefused(404, f"before: there is no other rule {before!r} that an operator has created")
        if len(others) >= RULES_MAX:
            raise TableRefused(507, f"the limit of {RULES_MAX} rules is reached; use a file of rules for more")
        if before:
            at = [one.name for one in others].index(before)
        else:
            at = names.index(rule.name) if rule.name in names else len(others)
        return self._next(rules=(*others[:at], rule, *others[at:]))

    def without_rule(self, name: str) -> StoredAccess:
        """Raises TableRefused."""
        if name not in [one.name for one in self.rules]:
            raise TableRefused(404, f"there is no rule {name!r} that an operator has created")
        return self._next(rules=tuple([one for one in self.rules if one.name != name]))

    def _next(
        self, users: tuple[StoredUser, ...] | None = None, rules: tuple[StoredRule, ...] | None = None
    ) -> StoredAccess:
        return StoredAccess(
            self.revision + 1, self.users if users is None else users, self.rules if rules is None else rules
        )

    # Its meaning

    def effective(self, auth: AuthConfig) -> AuthConfig:
        """The settings with the methods of authentication that these users need, unless the settings name methods."""
        if not self.users or auth.methods:
            return auth
        used = {*methods_of(auth), "scram", "password"}
        return replace(auth, methods=tuple([name for name in METHODS if name in used]))

    def joined(self, file: PasswordFile) -> PasswordFile:
        """The users of the file, and those of the table that it has not."""
        from starlingmq.auth.password_file import PasswordFile, scram_keys

        own = self._beside(file)
        return PasswordFile(
            file.hashes | {one.name: one.password for one in own},
            file.scram | {one.name: scram_keys(one.scram, f"user {one.name!r}") for one in own},
        )

    def roles(self, file: PasswordFile) -> dict[str, ApiRole]:
        """The users of the table with rights at the HTTP API."""
        return {one.name: one.api for one in self._beside(file) if one.api != "none"}

    def _beside(self, file: PasswordFile) -> list[StoredUser]:
        return [one for one in self.users if one.name not in file.hashes and one.name not in file.scram]

    def made_rules(self) -> tuple[Rule, ...]:
        return tuple([Rule(one.rule, f"rule {one.name!r}", one.name) for one in self.rules])

    # The document

    def encoded(self) -> bytes:
        """Raises TableRefused."""
        data = json.encode(self)
        if len(data) > BYTES_MAX:
            raise TableRefused(507, f"users and rules would take more than {BYTES_MAX >> 20} MiB; use files for more")
        return data


NOTHING_STORED: Final = StoredAccess()


def decoded(data: bytes) -> StoredAccess:
    """The table of a document, checked as a whole; b"": an empty one. Raises ConfigError, without a secret."""
    if not data:
        return NOTHING_STORED
    try:
        table = json.decode(data, type=StoredAccess)
    except (MsgspecError, UnicodeError) as error:
        raise ConfigError(f"stored users and rules are malformed, or of a later version: {error}") from None
    table.made_rules()
    if table.users:
        try:
            from starlingmq.auth.password_file import PasswordFile, check_hash
        except ImportError as error:
            raise ConfigError(f"stored users: {error}; run pip install '.[auth]' in the sources") from None
        for one in table.users:
            check_hash(one.password, f"user {one.name!r}")
        table.joined(PasswordFile())
    return table
