"""The section ``auth.api``: who may administer a broker over HTTP."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from starlingmq.config.oidc_section import OidcConfig, check_oidc
from starlingmq.config.section_types import ConfigError, Section

API_SCHEMES: Final = ("http", "https")
SET_LOGIN: Final = (
    "make an operator with starlingmq ctl user add NAME --api operator, or name users in auth.api.users, or a file of "
    "tokens in auth.api.token_file"
)
NO_LOGIN_YET: Final = f"clients have to log in, and no login is set for operators; {SET_LOGIN}"


class ApiConfig(Section, frozen=True):
    token_file: Annotated[
        str, Meta(description="File with one API token per line, each of at least 16 characters.")
    ] = ""
    users: Annotated[
        tuple[str, ...], Meta(description="Users of the password file who may use the HTTP API with their password.")
    ] = ()
    viewers: Annotated[
        tuple[str, ...],
        Meta(
            description="Users of the password file who may look at everything but the content of messages, and change "
            "nothing."
        ),
    ] = ()
    hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Host names besides localhost under which browsers may reach a loopback listener "
            "that has no authentication."
        ),
    ] = ()
    oidc: Annotated[OidcConfig, Meta(description="Logins to the dashboard by an OpenID Connect provider.")] = (
        OidcConfig()
    )


def guarded(api: ApiConfig) -> bool:
    """Whether the API requires a login."""
    return bool(api.token_file or api.users or api.viewers or api.oidc.issuer)


def check_api(api: ApiConfig, password_file: str) -> None:
    """Raises ConfigError for combinations that no type excludes."""
    for name, users in (("users", api.users), ("viewers", api.viewers)):
        if users and not password_file:
            raise ConfigError(f"auth.api.{name}: needs auth.password.file")
    check_oidc(api.oidc)
    for index, host in enumerate(api.hosts):
        if not host or "/" in host or (":" in host and not host.startswith("[")):
            raise ConfigError(
                f"auth.api.hosts[{index}]: {host!r} is not a host name; leave out the scheme and the port"
            )
