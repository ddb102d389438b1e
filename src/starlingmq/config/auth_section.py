"""The section ``auth``: which clients are admitted, and what they may do."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from starlingmq.config.api_section import ApiConfig, check_api
from starlingmq.config.networks import parse_networks
from starlingmq.config.secret_masking import SECRET, SECRET_URL
from starlingmq.config.section_types import ConfigError, Count, Duration, PositiveDuration, Section

METHODS = ("certificate", "scram", "jwt", "password", "http")


class PasswordConfig(Section, frozen=True):
    file: Annotated[
        str, Meta(description="File with user names and password hashes, written by starlingmq passwd.")
    ] = ""
    first_user: Annotated[
        str,
        Meta(
            description="User that starlingmq serve creates if the file does not exist. Its random password "
            "is printed once to stderr. Empty: none."
        ),
    ] = ""
    remember: Annotated[
        Duration,
        Meta(
            description="How long a successful login is cached, so that the password is not hashed again; 0 "
            "disables the cache."
        ),
    ] = 300.0
    waiting_per_address: Annotated[
        int,
        Meta(
            ge=1,
            le=2000,
            description="Logins from one address (IPv6: one /64) that may wait for verification at once; "
            "further ones get 0x89.",
        ),
    ] = 100


class JwtConfig(Section, frozen=True):
    secret_file: Annotated[str, Meta(description="File with the shared secret for HS256, HS384 and HS512 tokens.")] = ""
    public_key_file: Annotated[
        str, Meta(description="PEM file with the public key for RS, PS or ES tokens (RSA or elliptic curve).")
    ] = ""
    jwks_file: Annotated[str, Meta(description="File with a JSON Web Key Set (RFC 7517).")] = ""
    username_claim: Annotated[str, Meta(min_length=1, description="Claim that contains the user name.")] = "sub"
    client_id_claim: Annotated[str, Meta(description="Claim that must equal the client id. Empty: not checked.")] = ""
    acl_claim: Annotated[
        str,
        Meta(
            min_length=1,
            description="Claim with a list of rules as in the ACL file; they are evaluated before the ACL file.",
        ),
    ] = "acl"
    issuer: Annotated[str, Meta(description="Required value of the iss claim. Empty: not checked.")] = ""
    audience: Annotated[str, Meta(description="Value that the aud claim must contain. Empty: not checked.")] = ""
    leeway: Annotated[Duration, Meta(description="Allowed clock difference when exp and nbf are checked.")] = 5.0
    require_expiry: Annotated[bool, Meta(description="Whether tokens without an exp claim are refused.")] = True


class HttpAuthConfig(Section, frozen=True):
    url: Annotated[
        str,
        Meta(
            description="URL of the service that is asked about each client by POST; docs/SECURITY.md "
            "describes the request.",
            extra=SECRET_URL,
        ),
    ] = ""
    timeout: Annotated[
        PositiveDuration, Meta(description="Timeout of a request; when it expires, the client is refused.")
    ] = 3.0
    cache: Annotated[Duration, Meta(description="How long a response is cached if it does not say so itself.")] = 10.0
    connections: Annotated[int, Meta(ge=1, description="Maximum number of connections to the service.")] = 32
    waiting_per_address: Annotated[
        int,
        Meta(
            ge=1,
            le=2000,
            description="Logins from one address (IPv6: one /64) that may wait for the service at once; "
            "further ones get 0x89.",
        ),
    ] = 500
    headers: Annotated[
        tuple[str, ...],
        Meta(description="Request headers (name: value), for example one that authenticates the broker.", extra=SECRET),
    ] = ()


class AclConfig(Section, frozen=True):
    file: Annotated[str, Meta(description="YAML file with rules for publishing and subscribing.")] = ""
    filter: Annotated[
        Literal["subscribe", "deliver"],
        Meta(
            description="What happens to an MQTT subscription of which the rules allow only a part. subscribe: it is "
            "refused. deliver: it is granted, and messages on topics that the rules deny are not delivered, as with "
            "mosquitto. Shared subscriptions are always refused."
        ),
    ] = "subscribe"


class FailuresConfig(Section, frozen=True):
    delay: Annotated[
        Duration, Meta(description="Delay of the response to a failed login. It doubles with each failure, up to 5 s.")
    ] = 0.2
    limit: Annotated[
        Count, Meta(description="Failed logins from one address before the address is banned; 0 disables these bans.")
    ] = 20
    window: Annotated[PositiveDuration, Meta(description="Time window in which failed logins are counted.")] = 60.0
    ban: Annotated[PositiveDuration, Meta(description="Duration of the ban.")] = 300.0
    exempt: Annotated[
        tuple[str, ...],
        Meta(
            description="Networks that are never banned for failed logins, such as that of a load balancer "
            "without PROXY protocol. Failed logins from there are counted and delayed by user "
            "name only, and those without a name together."
        ),
    ] = ()


class FlappingConfig(Section, frozen=True):
    limit: Annotated[
        Count,
        Meta(description="CONNECT packets with one client id before the client id is banned; 0 disables these bans."),
    ] = 0
    window: Annotated[PositiveDuration, Meta(description="Time window in which CONNECT packets are counted.")] = 60.0
    ban: Annotated[PositiveDuration, Meta(description="Duration of the ban.")] = 60.0


class AuthConfig(Section, frozen=True):
    allow_anonymous: Annotated[
        bool | None,
        Meta(
            description="Whether clients without credentials may connect. Unset: they may on loopback "
            "addresses and Unix sockets only, and the broker does not start with any other "
            "listener that has no authentication."
        ),
    ] = None
    session_owner: Annotated[
        Literal["user", "client_id", "refuse"],
        Meta(
            description="Owner of a session. user: the user who created it; if another user connects with "
            "the same client id, the session ends and a new one begins. refuse: other users are "
            "refused while the session exists. client_id: all users with the same client id "
            "share the session."
        ),
    ] = "user"
    methods: Annotated[
        tuple[Literal["certificate", "scram", "jwt", "password", "http"], ...],
        Meta(
            description="Authentication methods in the order in which they are tried. Empty: all that are configured, "
            "and scram and password once operators have created users. password and scram need no password file."
        ),
    ] = ()
    password: Annotated[PasswordConfig, Meta(description="User names and passwords in a file.")] = PasswordConfig()
    jwt: Annotated[JwtConfig, Meta(description="Signed tokens (JWT) in place of passwords.")] = JwtConfig()
    http: Annotated[HttpAuthConfig, Meta(description="An HTTP service that authenticates clients.")] = HttpAuthConfig()
    acl: Annotated[AclConfig, Meta(description="What clients may publish and subscribe to.")] = AclConfig()
    failures: Annotated[FailuresConfig, Meta(description="Bans after failed logins.")] = FailuresConfig()
    flapping: Annotated[FlappingConfig, Meta(description="Bans of clients that connect too often.")] = FlappingConfig()
    api: Annotated[ApiConfig, Meta(description="Access to the HTTP API and the dashboard.")] = ApiConfig()


def methods_of(auth: AuthConfig) -> tuple[str, ...]:
    """The methods in use, in their order: as set, or those whose settings are complete."""
    if auth.methods:
        return auth.methods
    there = {
        "scram": bool(auth.password.file),
        "jwt": bool(auth.jwt.secret_file or auth.jwt.public_key_file or auth.jwt.jwks_file),
        "password": bool(auth.password.file),
        "http": bool(auth.http.url),
    }
    return tuple(name for name in METHODS if there.get(name))


def admits_anonymous(auth: AuthConfig) -> bool:
    """Whether a client without a login is let in, if no hook decides."""
    return not methods_of(auth) if auth.allow_anonymous is None else auth.allow_anonymous


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def check_auth(auth: AuthConfig) -> None:
    """Raises ConfigError for combinations that no type excludes."""
    check_api(auth.api, auth.password.file)
    if auth.password.first_user and not auth.password.file:
        raise ConfigError("auth.password.first_user: needs auth.password.file")
    parse_networks(auth.failures.exempt, "auth.failures.exempt")
    needs = {
        "jwt": (
            auth.jwt.secret_file or auth.jwt.public_key_file or auth.jwt.jwks_file,
            "auth.jwt.secret_file, auth.jwt.public_key_file or auth.jwt.jwks_file",
        ),
        "http": (auth.http.url, "auth.http.url"),
    }
    for name in auth.methods:
        given, setting = needs.get(name, ("-", ""))
        if not given:
            raise ConfigError(f"auth.methods: {name} needs {setting}")
    if auth.http.url and not _is_http(auth.http.url):
        raise ConfigError("auth.http.url: expected http://... or https://...")
    for index, header in enumerate(auth.http.headers):
        if ":" not in header or "\n" in header or "\r" in header:
            raise ConfigError(f"auth.http.headers[{index}]: expected name: value")
