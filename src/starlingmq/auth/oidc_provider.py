"""An OpenID Connect provider: its metadata, its keys, and the identity of a person whose browser came back with a code.

OpenID Connect Core 1.0 and Discovery 1.0, with PKCE (RFC 7636). An ID token counts only if all of this holds:

| claim | rule |
|---|---|
| signature | by a key of the provider, with an asymmetric algorithm that fits the key; never ``none`` or an HMAC |
| ``iss`` | equals the issuer of the settings |
| ``aud`` | contains the client id of the settings |
| ``azp`` | equals the client id; required if ``aud`` has more than one value |
| ``exp``, ``iat``, ``nbf`` | it has not expired and is not from the future, give or take ``LEEWAY_SECONDS`` |
| ``nonce`` | equals that of this login |

Everything that the provider sends is bounded in bytes and in time. Metadata and keys are fetched once for all
logins that wait for them, and at most once in ``RETRY_SECONDS``, even if strangers begin many logins.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import Awaitable, Callable, Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from time import monotonic
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import quote_plus, urlencode, urlsplit

import httpx
import jwt
from msgspec import MsgspecError, Struct, convert, json

from starlingmq.auth.oidc_outcome import OidcError, ProviderUnavailable
from starlingmq.auth.tokens import ALGORITHMS
from starlingmq.config.networks import is_local
from starlingmq.config.oidc_section import PATH, OidcConfig
from starlingmq.config.section_types import ConfigError
from starlingmq.log import printable

ASYMMETRIC: Final = {"RSA": ALGORITHMS["RSA"], "EC": ALGORITHMS["EC"], "OKP": ("EdDSA",)}
ANSWER_MAX: Final = 256 << 10  # bytes
ANSWER_SECONDS: Final = 10.0
LEEWAY_SECONDS: Final = 30.0
METADATA_SECONDS: Final = 3600.0
KEYS_SECONDS: Final = 300.0  # a key that the provider has withdrawn counts no longer than this
KEYS_MAX: Final = 100  # those after them do not count
RETRY_SECONDS: Final = 5.0
CONNECTIONS_MAX: Final = 16
NAME_MAX: Final = 256  # characters
SHOWN_MAX: Final = 100  # characters of texts of the provider, in an error
INVALID: Final[dict[type[Exception], str]] = {
    jwt.ExpiredSignatureError: "has expired (exp)",
    jwt.ImmatureSignatureError: "is not valid yet (nbf, iat): check the clocks",
    jwt.InvalidAudienceError: "is for another client (aud)",
    jwt.InvalidIssuerError: f"is of another issuer (iss) than {PATH}.issuer",
    jwt.MissingRequiredClaimError: "lacks a required claim",
    jwt.InvalidSignatureError: "is not signed by a key of the provider",
}

T = TypeVar("T")


class Metadata(Struct, frozen=True):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    end_session_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class OidcIdentity(NamedTuple):
    """``name``: not empty. ``roles``: as the provider names them. ``logout``: where to end the session at the provider;
    "" if it cannot."""

    name: str
    roles: tuple[str, ...]
    logout: str


class Provider:
    """Raises ConfigError for unreadable files. Call ``close`` at the end."""

    def __init__(self, config: OidcConfig) -> None:
        self._config = config
        self._secret = _secret(config.client_secret_file) if config.client_secret_file else ""
        self.redirect_uri = config.url.rstrip("/") + "/"
        self._http = httpx.AsyncClient(
            timeout=ANSWER_SECONDS,
            verify=_context(config.ca),
            headers={"accept": "application/json", "accept-encoding": "identity"},
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # one login tells nothing to the next
            trust_env=False,
        )
        self._metadata = ProviderDocument(self._fetch_metadata, METADATA_SECONDS)
        self._keys = ProviderDocument(self._fetch_keys, KEYS_SECONDS)

    async def address(self, state: str, nonce: str, verifier_hash: str) -> str:
        """Where a browser is sent to log in. Raises OidcError."""
        endpoint = (await self._metadata.get()).authorization_endpoint
        return _with_query(
            endpoint,
            response_type="code",
            client_id=self._config.client_id,
            redirect_uri=self.redirect_uri,
            scope=" ".join(self._config.scopes),
            state=state,
            nonce=nonce,
            code_challenge=verifier_hash,
            code_challenge_method="S256",
        )

    async def identify(self, code: str, verifier: str, nonce: str) -> OidcIdentity:
        """The person for whom the provider has issued this code. Raises OidcError."""
        metadata = await self._metadata.get()
        granted = await self._redeem(metadata, code, verifier)
        token = granted.get("id_token")
        if not isinstance(token, str):
            raise ProviderUnavailable("the provider has sent no ID token")
        claims = await self._claims(token)
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(errors="replace"), nonce.encode()):
            raise OidcError("the ID token is for another login (nonce)")
        wanted = (self._config.username_claim, self._config.roles_claim)
        if metadata.userinfo_endpoint and any(_claim(claims, name) is None for name in wanted):
            claims = {**await self._userinfo(metadata.userinfo_endpoint, granted, claims["sub"]), **claims}
        roles = _claim(claims, self._config.roles_claim)
        listed = roles if isinstance(roles, list) else [roles]
        return OidcIdentity(
            self._name(_claim(claims, self._config.username_claim)),
            tuple(one for one in listed if isinstance(one, str)),
            self._logout(metadata, token),
        )

    async def close(self) -> None:
        await self._http.aclose()

    def _name(self, name: object) -> str:
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > NAME_MAX:
            raise OidcError(f"the provider tells no usable user name ({PATH}.username_claim)")
        return name

    def _logout(self, metadata: Metadata, token: str) -> str:
        """OpenID Connect RP-Initiated Logout 1.0."""
        if not metadata.end_session_endpoint:
            return ""
        return _with_query(
            metadata.end_session_endpoint,
            id_token_hint=token,
            client_id=self._config.client_id,
            post_logout_redirect_uri=self.redirect_uri,
        )

    # Requests to the provider.

    async def _fetch_metadata(self) -> Metadata:
        address = self._config.issuer.rstrip("/") + "/.well-known/openid-configuration"
        told = await self._call("GET", address, "the metadata of the provider")
        try:
            metadata = convert(told, Metadata)
        except MsgspecError as error:
            raise ProviderUnavailable(f"the metadata of the provider is not valid: {error}") from None
        if metadata.issuer != self._config.issuer:
            raise ProviderUnavailable(
                f"the provider names itself {_shown(metadata.issuer)}, not {self._config.issuer} ({PATH}.issuer)"
            )
        plain = urlsplit(self._config.issuer).scheme == "http"
        for name in Metadata.__struct_fields__:
            if name.endswith(("_endpoint", "_uri")) and getattr(metadata, name) is not None:
                _check_endpoint(name, getattr(metadata, name), plain)
        return metadata

    async def _fetch_keys(self) -> list[jwt.PyJWK]:
        told = await self._call("GET", (await self._metadata.get()).jwks_uri, "the keys of the provider")
        listed = told.get("keys")
        keys = [_key(one) for one in listed[:KEYS_MAX]] if isinstance(listed, list) else []
        found = [key for key in keys if key is not None]
        if not found:
            raise ProviderUnavailable("the provider has no usable keys")
        return found

    async def _redeem(self, metadata: Metadata, code: str, verifier: str) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
            "code_verifier": verifier,
        }
        login = None
        if self._secret and "client_secret_basic" in metadata.token_endpoint_auth_methods_supported:
            login = httpx.BasicAuth(quote_plus(self._config.client_id), quote_plus(self._secret))  # RFC 6749, 2.3.1
        else:
            form["client_id"] = self._config.client_id
            if self._secret:
                form["client_secret"] = self._secret
        return await self._call("POST", metadata.token_endpoint, "the provider", data=form, auth=login)

    async def _userinfo(self, endpoint: str, granted: dict[str, Any], subject: str) -> dict[str, Any]:
        """More claims about the same person."""
        headers = {"authorization": f"Bearer {granted.get('access_token', '')}"}
        if not headers["authorization"].isascii() or not headers["authorization"].isprintable():
            raise ProviderUnavailable("the provider has sent no usable access token")
        told = await self._call("GET", endpoint, "the provider (userinfo)", headers=headers)
        if told.get("sub") != subject:  # OpenID Connect Core 1.0, 5.3.2
            raise OidcError("the provider tells about another person (sub) than that of the ID token")
        return told

    async def _call(self, method: str, url: str, what: str, **options: Any) -> dict[str, Any]:
        """The JSON object of an answer. Raises OidcError."""
        body = bytearray()
        try:
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                self._http.stream(method, url, **options) as response,
            ):
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > ANSWER_MAX:
                        raise ProviderUnavailable(f"{what}: an answer of more than {ANSWER_MAX:,} bytes")
        except TimeoutError:
            raise ProviderUnavailable(f"{what}: no answer within {ANSWER_SECONDS:.0f} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, RuntimeError) as error:  # RuntimeError: closed by a reload
            raise ProviderUnavailable(f"{what}: {_shown(str(error) or type(error).__name__)}") from None
        try:
            told = json.decode(bytes(body))
        except (MsgspecError, ValueError, RecursionError):
            told = None
        refusal = told.get("error") if isinstance(told, dict) else None
        if response.status_code in (400, 401) and isinstance(refusal, str):  # but for invalid_grant, a setting is wrong
            kind = OidcError if refusal == "invalid_grant" else ProviderUnavailable
            raise kind(f"{what} refuses: {_shown(refusal)}")
        if response.status_code != 200 or not isinstance(told, dict):
            raise ProviderUnavailable(f"{what}: status {response.status_code}, where a JSON object was expected")
        return told

    # The ID token.

    async def _claims(self, token: str) -> dict[str, Any]:
        """Raises OidcError."""
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise OidcError("the ID token is no signed JSON Web Token") from None
        keys = _fitting(await self._keys.get(), header) or _fitting(await self._keys.get(newer=True), header)
        problem: Exception = jwt.InvalidSignatureError()
        for key in keys:
            try:
                claims = self._decoded(token, key, header["alg"])
            except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
                problem = error if isinstance(problem, jwt.InvalidSignatureError) else problem
                continue
            return self._for_us(claims)
        raise _invalid(problem)

    def _decoded(self, token: str, key: jwt.PyJWK, algorithm: str) -> dict[str, Any]:
        claims: dict[str, Any] = jwt.decode(
            token,
            key.key,
            [algorithm],
            options={"require": ["iss", "sub", "aud", "exp", "iat"]},
            audience=self._config.client_id,
            issuer=self._config.issuer,
            leeway=LEEWAY_SECONDS,
        )
        return claims

    def _for_us(self, claims: dict[str, Any]) -> dict[str, Any]:
        """OpenID Connect Core 1.0, 3.1.3.7: 2, 4 and 5. PyJWT 2.10.0 takes a part of the issuer for the issuer."""
        if claims["iss"] != self._config.issuer:
            raise _invalid(jwt.InvalidIssuerError())
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if several else self._config.client_id) != self._config.client_id:
            raise OidcError("the ID token is for another client (azp)")
        return claims


class ProviderDocument(Generic[T]):
    """The result of ``fetch``, which is called once for all callers that wait, and kept for ``seconds``. After a
    failure it is not called for RETRY_SECONDS: all callers get the same error at once."""

    def __init__(self, fetch: Callable[[], Awaitable[T]], seconds: float) -> None:
        self._fetch = fetch
        self._seconds = seconds
        self._lock = asyncio.Lock()
        self._at = float("-inf")
        self._value: T | None = None
        self._failure: ProviderUnavailable | None = None

    async def get(self, newer: bool = False) -> T:
        """``newer``: the kept value does not help. Raises OidcError."""
        async with self._lock:
            age = monotonic() - self._at
            if age < RETRY_SECONDS and self._failure is not None:
                raise ProviderUnavailable(str(self._failure))
            if self._value is not None and age < (RETRY_SECONDS if newer else self._seconds):
                return self._value
            try:
                value = await self._fetch()
            except OidcError as error:
                self._at, self._value, self._failure = monotonic(), None, ProviderUnavailable(str(error))
                raise self._failure from None
            self._at, self._value, self._failure = monotonic(), value, None
            return value


def _key(told: Any) -> jwt.PyJWK | None:
    """The key that signs tokens; None for another one, and for one that cannot be used: others still can."""
    try:
        return jwt.PyJWK(told) if told["kty"] in ASYMMETRIC and told.get("use", "sig") == "sig" else None
    except (jwt.PyJWTError, ValueError, TypeError, LookupError, AttributeError, NotImplementedError):
        return None


def _fitting(keys: Sequence[jwt.PyJWK], header: dict[str, Any]) -> list[jwt.PyJWK]:
    """The keys that may have signed a token with this header. A key is used only for algorithms of its own kind."""
    kid, algorithm = header.get("kid"), header.get("alg")
    return [
        key
        for key in keys
        if (kid is None or key.key_id is None or key.key_id == kid)
        and algorithm == key.algorithm_name
        and algorithm in ASYMMETRIC[str(key.key_type)]
    ]


def _invalid(problem: Exception) -> OidcError:
    text = next((text for kind, text in INVALID.items() if isinstance(problem, kind)), "is not valid")
    return OidcError(f"the ID token {text}")


def _claim(claims: dict[str, Any], name: str) -> Any:
    """The claim of this name, or the one to which its dots lead; None if there is none."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _with_query(endpoint: str, **parameters: str) -> str:
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(parameters)}"


def _check_endpoint(name: str, url: str, plain: bool) -> None:
    """A browser is sent there, or a secret. ``plain``: the provider is on this machine and without TLS, so these may
    be; no other one may name services of this machine. Raises ProviderUnavailable."""
    try:
        parts = urlsplit(url)
        safe = parts.scheme == "https" or (plain and parts.scheme == "http" and is_local(url))
        usable = safe and bool(parts.hostname) and "@" not in parts.netloc and not parts.fragment
    except ValueError:
        usable = False
    if not usable or not url.isascii() or not url.isprintable() or " " in url:
        raise ProviderUnavailable(f"the metadata of the provider has no usable {name}: {_shown(url)}")


def _shown(text: str) -> str:
    return printable(text[:SHOWN_MAX])


def _secret(path: str) -> str:
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{PATH}.client_secret_file: {path}: cannot be read: {reason}") from None
    if not secret:
        raise ConfigError(f"{PATH}.client_secret_file: {path}: is empty")
    return secret


def _context(ca: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as error:  # ssl.SSLError, too
        raise ConfigError(f"{PATH}.ca: {ca}: cannot be used: {error.strerror or error}") from None
    return context
