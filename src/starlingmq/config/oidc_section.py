"""The section ``auth.api.oidc``: logins to the dashboard by an OpenID Connect provider."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import SplitResult, urlsplit

from msgspec import Meta

from starlingmq.config.networks import is_local
from starlingmq.config.secret_masking import SECRET_URL
from starlingmq.config.section_types import ConfigError, PositiveDuration, Section

PATH: Final = "auth.api.oidc"


class OidcConfig(Section, frozen=True):
    issuer: Annotated[
        str,
        Meta(
            description="Issuer of the provider, as in the iss claim of its tokens. Empty: no such logins.",
            extra=SECRET_URL,
        ),
    ] = ""
    client_id: Annotated[str, Meta(description="Client id that the provider has given to this dashboard.")] = ""
    client_secret_file: Annotated[
        str, Meta(description="File with the secret of this client. Empty: a public client, which has none.")
    ] = ""
    url: Annotated[
        str,
        Meta(
            description="Address of the dashboard as browsers see it (https://broker.example.org/). The provider must "
            "know it, with the slash at its end, as redirect URI for logins and logouts.",
            extra=SECRET_URL,
        ),
    ] = ""
    scopes: Annotated[tuple[str, ...], Meta(description="Scopes that are requested.")] = ("openid", "profile")
    username_claim: Annotated[
        str, Meta(min_length=1, description="Claim with the user name, for the log of operators' actions.")
    ] = "sub"
    roles_claim: Annotated[
        str,
        Meta(
            min_length=1,
            description="Claim with the groups or roles of the user: a list, or one text. A dot leads into an object "
            "(realm_access.roles).",
        ),
    ] = "groups"
    operators: Annotated[
        tuple[str, ...], Meta(description="Groups or roles whose members may use the whole HTTP API.")
    ] = ()
    viewers: Annotated[
        tuple[str, ...], Meta(description="Groups or roles whose members have the rights of auth.api.viewers.")
    ] = ()
    session: Annotated[PositiveDuration, Meta(description="How long a login lasts; it is not extended.")] = 3600.0
    ca: Annotated[
        str, Meta(description="PEM file with the CA certificates of the provider. Empty: those of the system.")
    ] = ""


def check_oidc(oidc: OidcConfig) -> None:
    """Raises ConfigError for combinations that no type excludes."""
    if oidc == OidcConfig():
        return
    for name in ("issuer", "client_id", "url"):
        if not getattr(oidc, name):
            raise ConfigError(f"{PATH}.{name}: is required for logins by OpenID Connect")
    issuer, url = _address(oidc.issuer, "issuer"), _address(oidc.url, "url")
    if issuer.query or "?" in oidc.issuer:
        raise ConfigError(f"{PATH}.issuer: must have no query")
    if url.path not in ("", "/") or "?" in oidc.url:
        raise ConfigError(f"{PATH}.url: must have no path and no query; the dashboard is at /")
    if "openid" not in oidc.scopes:
        raise ConfigError(f"{PATH}.scopes: must contain openid")
    for index, scope in enumerate(oidc.scopes):
        if not scope.isascii() or not scope.isprintable() or not scope or set(scope) & set(' "\\'):
            raise ConfigError(f"{PATH}.scopes[{index}]: {scope!r} is not a scope")
    if not oidc.operators and not oidc.viewers:
        raise ConfigError(f"{PATH}.operators: name the groups or roles that may log in, here or in {PATH}.viewers")


def _address(url: str, name: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and parts.port != 0 and url.isascii() and url.isprintable()
    except ValueError:
        usable = False
    if not usable or " " in url or parts.scheme not in ("http", "https") or "@" in parts.netloc or "#" in url:
        raise ConfigError(f"{PATH}.{name}: expected https://HOST..., without a user and a fragment")
    if parts.scheme == "http" and not is_local(url):
        raise ConfigError(f"{PATH}.{name}: expected https://...; http:// is for addresses of this machine only")
    return parts
