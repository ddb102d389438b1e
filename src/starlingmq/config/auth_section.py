"""Settings of who may come in and what they may do: the section ``auth`` of the tree."""

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
    file: Annotated[str, Meta(description="File with names and hashes, written by starlingmq passwd.")] = ""
    first_user: Annotated[
        str,
        Meta(
            description="User whom starlingmq serve makes, with a random password printed once to standard error, "
            "when file does not exist. Empty: none."
        ),
    ] = ""
    remember: Annotated[
        Duration,
        Meta(description="How long a good login is remembered, so that it is not hashed again; 0 hashes each time."),
    ] = 300.0
    waiting_per_address: Annotated[
        int,
        Meta(
            ge=1,
            le=2000,
            description="Logins from one address (IPv6: one /64) that wait to be checked at once; more get 0x89.",
        ),
    ] = 100


class JwtConfig(Section, frozen=True):
    secret_file: Annotated[str, Meta(description="File with the secret of HS256, HS384 and HS512 tokens.")] = ""
    public_key_file: Annotated[
        str, Meta(description="PEM file with the public key of RS, PS or ES tokens, RSA or elliptic curve.")
    ] = ""
    jwks_file: Annotated[str, Meta(description="File with several keys as JSON Web Key Set (RFC 7517).")] = ""
    username_claim: Annotated[str, Meta(min_length=1, description="Claim that is the user name.")] = "sub"
    client_id_claim: Annotated[
        str, Meta(description="Claim that has to be the client id; none is asked for without.")
    ] = ""
    acl_claim: Annotated[
        str, Meta(min_length=1, description="Claim with a list of rules as in the ACL file, which come before those.")
    ] = "acl"
    issuer: Annotated[str, Meta(description="What iss has to be; anything without.")] = ""
    audience: Annotated[str, Meta(description="What aud has to name; anything without.")] = ""
    leeway: Annotated[Duration, Meta(description="How far clocks may be apart.")] = 5.0
    require_expiry: Annotated[bool, Meta(description="Whether a token without exp is refused.")] = True


class HttpAuthConfig(Section, frozen=True):
    url: Annotated[
        str, Meta(description="Where a client is asked about by POST; see the manual for the form.", extra=SECRET_URL)
    ] = ""
    timeout: Annotated[PositiveDuration, Meta(description="How long an answer may take before it is a refusal.")] = 3.0
    cache: Annotated[Duration, Meta(description="How long an answer is remembered that does not say it.")] = 10.0
    connections: Annotated[int, Meta(ge=1, description="Connections to the service at once.")] = 32
    waiting_per_address: Annotated[
        int,
        Meta(
            ge=1,
            le=2000,
            description="Logins from one address (IPv6: one /64) that wait for the service at once; more get 0x89.",
        ),
    ] = 500
    headers: Annotated[
        tuple[str, ...], Meta(description="Headers to send, name: value, such as one that says who asks.", extra=SECRET)
    ] = ()


class AclConfig(Section, frozen=True):
    file: Annotated[str, Meta(description="YAML file with rules: who may publish what, and so on.")] = ""


class FailuresConfig(Section, frozen=True):
    delay: Annotated[
        Duration, Meta(description="How long the refusal of a wrong login waits, twice as long each time, up to 5 s.")
    ] = 0.2
    limit: Annotated[Count, Meta(description="Wrong logins from one address before it is banned; 0 never.")] = 20
    window: Annotated[PositiveDuration, Meta(description="Time in which they are counted.")] = 60.0
    ban: Annotated[PositiveDuration, Meta(description="How long it is banned then.")] = 300.0
    exempt: Annotated[
        tuple[str, ...],
        Meta(
            description="Networks whose addresses are not banned for wrong logins, such as that of a load balancer "
            "without PROXY protocol. There wrong logins are counted by user name only, and delayed."
        ),
    ] = ()


class FlappingConfig(Section, frozen=True):
    limit: Annotated[
        Count, Meta(description="CONNECTs with one client id before it is banned for a while; 0 never.")
    ] = 0
    window: Annotated[PositiveDuration, Meta(description="Time in which they are counted.")] = 60.0
    ban: Annotated[PositiveDuration, Meta(description="How long the client id is banned then.")] = 60.0


class AuthConfig(Section, frozen=True):
    allow_anonymous: Annotated[
        bool | None,
        Meta(
            description="Whether clients without credentials may connect; unset allows them on loopback "
            "addresses and Unix sockets only, and refuses to open another listener to everyone."
        ),
    ] = None
    session_owner: Annotated[
        Literal["user", "client_id", "refuse"],
        Meta(
            description="Whose a session is. user: the user's who made it; another user with this client id begins a "
            "new session, and the earlier one ends. refuse: another user is refused as long as the session lives. "
            "client_id: users with the same client id share its session."
        ),
    ] = "user"
    methods: Annotated[
        tuple[Literal["certificate", "scram", "jwt", "password", "http"], ...],
        Meta(description="Ways of finding out who a client is, asked in this order; by default those that are set up."),
    ] = ()
    password: Annotated[PasswordConfig, Meta(description="User names and passwords in a file.")] = PasswordConfig()
    jwt: Annotated[JwtConfig, Meta(description="Signed tokens in place of passwords.")] = JwtConfig()
    http: Annotated[HttpAuthConfig, Meta(description="A service that is asked.")] = HttpAuthConfig()
    acl: Annotated[AclConfig, Meta(description="What clients may do.")] = AclConfig()
    failures: Annotated[FailuresConfig, Meta(description="What wrong logins lead to.")] = FailuresConfig()
    flapping: Annotated[FlappingConfig, Meta(description="What comes of clients that come and go.")] = FlappingConfig()
    api: Annotated[ApiConfig, Meta(description="Who may use the HTTP API and the dashboard.")] = ApiConfig()


def methods_of(auth: AuthConfig) -> tuple[str, ...]:
    """The methods that are asked, in their order: as set, or those that have what they need."""
    if auth.methods:
        return auth.methods
    there = {
        "scram": bool(auth.password.file),
        "jwt": bool(auth.jwt.secret_file or auth.jwt.public_key_file or auth.jwt.jwks_file),
        "password": bool(auth.password.file),
        "http": bool(auth.http.url),
    }
    return tuple(name for name in METHODS if there.get(name))


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def check_auth(auth: AuthConfig) -> None:
    """Raise ConfigError for what no type checks."""
    check_api(auth.api, auth.password.file)
    if auth.password.first_user and not auth.password.file:
        raise ConfigError("auth.password.first_user: needs auth.password.file")
    parse_networks(auth.failures.exempt, "auth.failures.exempt")
    needs = {
        "scram": (auth.password.file, "auth.password.file"),
        "password": (auth.password.file, "auth.password.file"),
        "jwt": (
            auth.jwt.secret_file or auth.jwt.public_key_file or auth.jwt.jwks_file,
            "auth.jwt.secret_file, public_key_file or jwks_file",
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
