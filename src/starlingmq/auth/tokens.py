"""JSON Web Tokens (RFC 7519) in place of passwords: signature, validity, user name and granted rules."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jwt
import msgspec

from starlingmq.auth.acl import AclFile, Rule, rules_of
from starlingmq.auth.method import REFUSED, Verdict, refused
from starlingmq.config.section_types import ConfigError
from starlingmq.config.tree_builder import build

if TYPE_CHECKING:
    from starlingmq.config.auth_section import JwtConfig
    from starlingmq.hooks import AuthRequest

log = logging.getLogger("starlingmq.auth")

SECRET_BYTES_MIN: Final = 32  # as long as the hash (RFC 7518, section 3.2)
ALGORITHMS: Final = {
    "oct": ("HS256", "HS384", "HS512"),
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
}
REFUSALS: Final[dict[type[Exception], str]] = {
    jwt.ExpiredSignatureError: "its token has expired (exp)",
    jwt.ImmatureSignatureError: "its token is not valid yet (nbf, iat): check the clocks",
    jwt.InvalidAudienceError: "its token is for another audience (auth.jwt.audience)",
    jwt.InvalidIssuerError: "its token is of another issuer (auth.jwt.issuer)",
    jwt.MissingRequiredClaimError: "its token lacks a claim that the settings require (auth.jwt)",
}
"""They are raised after the signature was found good, so only the holder of a genuine token learns them."""

TOKEN_MAX: Final = 16 * 1024  # bytes


class Tokens:
    """Raises ConfigError for an unreadable key. A key is used only for algorithms of its own kind."""

    def __init__(self, config: JwtConfig) -> None:
        self._config = config
        self._told = False  # that an audience is not checked
        self._keys: list[tuple[str, Any, tuple[str, ...], bytes]] = []  # id or "", key, algorithms, mark
        if config.secret_file:
            self._add_secret(config.secret_file)
        if config.public_key_file:
            self._add_public(config.public_key_file)
        if config.jwks_file:
            self._add_jwks(config.jwks_file)

    async def check(self, request: AuthRequest) -> Verdict | None:
        """A password that is not a token is left to other methods."""
        token = request.password
        if request.method or token is None or token.count(b".") != 2 or len(token) > TOKEN_MAX:
            return None
        try:
            header = jwt.get_unverified_header(token)
            found = self._claims(token, header)
        except (jwt.InvalidTokenError, RecursionError):  # RecursionError: a header of thousands of brackets
            return None
        if isinstance(found, Verdict):
            return refused(self._name(_unverified(token)), found.detail)
        if not self._config.audience and "aud" in found[0] and not self._told:
            self._told = True
            log.warning(
                "tokens have the audience %.200r, which is not checked, so tokens for other services of their issuer "
                "are accepted too; set auth.jwt.audience",
                found[0]["aud"],
            )
        return self._verdict(*found, request)

    def holds(self, username: str, proof: object) -> bool:
        """Whether the key of the token is still configured. Its expiry ends the connection."""
        return proof is None or any(proof == mark for _, _, _, mark in self._keys)

    async def close(self) -> None:
        """Holds no resources."""

    def _claims(self, token: bytes, header: dict[str, Any]) -> tuple[dict[str, Any], bytes] | Verdict:
        """The claims of a token that one of the keys has signed and that is valid now, and the mark of that key; or the
        refusal, which says what is wrong with a token that one of the keys has signed."""
        config = self._config
        refusal = REFUSED
        for name, key, algorithms, mark in self._keys:
            if (name and header.get("kid") not in (None, name)) or header.get("alg") not in algorithms:
                continue
            try:
                claims: dict[str, Any] = jwt.decode(
                    token,
                    key,
                    list(algorithms),
                    options={
                        "require": ["exp"] if config.require_expiry else [],
                        "verify_aud": bool(config.audience),
                    },
                    audience=config.audience or None,
                    issuer=config.issuer or None,
                    leeway=config.leeway,
                )
            except (jwt.InvalidTokenError, ValueError, TypeError, OverflowError) as error:
                text = next((text for kind, text in REFUSALS.items() if isinstance(error, kind)), "")
                refusal = refused(None, text) if text else refusal
                continue
            return claims, mark
        return refusal

    def _verdict(self, claims: dict[str, Any], mark: bytes, request: AuthRequest) -> Verdict:
        config = self._config
        name = self._name(claims)
        if name is None:
            return refused(None, "its token has no user name (auth.jwt.username_claim)")
        if config.client_id_claim and claims.get(config.client_id_claim) != request.client_id:
            return refused(name, "its token is for another client id (auth.jwt.client_id_claim)")
        rules: tuple[Rule, ...] | None = None
        if config.acl_claim in claims:
            try:
                rules = rules_of(build(AclFile, {"rules": claims[config.acl_claim]}).rules)
            except (ConfigError, msgspec.ValidationError, TypeError, AttributeError):
                return refused(name, "the rules in its token are not valid (auth.jwt.acl_claim)")
        expiry = claims.get("exp")
        valid = float(expiry) + config.leeway - time.time() if isinstance(expiry, int | float) else 0.0
        valid = max(valid, 0.001) if expiry is not None else 0.0
        return Verdict(username=name, rules=rules, valid=valid, proof=mark)

    def _name(self, claims: dict[str, Any]) -> str | None:
        """The user name in the claims; None if there is none that UTF-8 can express."""
        name = claims.get(self._config.username_claim)
        if not isinstance(name, str) or not name or name != name.encode(errors="replace").decode():
            return None
        return name

    def _add_secret(self, path: str) -> None:
        secret = _read(path, "auth.jwt.secret_file").strip()
        if len(secret) < SECRET_BYTES_MIN:
            raise ConfigError(f"auth.jwt.secret_file: {path}: the secret must have at least {SECRET_BYTES_MIN} bytes")
        self._keys.append(("", secret, ALGORITHMS["oct"], mark_of(secret)))

    def _add_public(self, path: str) -> None:
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        try:
            key = load_pem_public_key(_read(path, "auth.jwt.public_key_file"))
        except ValueError:
            raise ConfigError(f"auth.jwt.public_key_file: {path}: is not a public key in PEM format") from None
        if isinstance(key, RSAPublicKey):
            self._keys.append(("", key, ALGORITHMS["RSA"], mark_of(key)))
        elif isinstance(key, EllipticCurvePublicKey):
            self._keys.append(("", key, ALGORITHMS["EC"], mark_of(key)))
        else:
            raise ConfigError(f"auth.jwt.public_key_file: {path}: must be an RSA key or on an elliptic curve of NIST")

    def _add_jwks(self, path: str) -> None:
        try:
            found = jwt.PyJWKSet.from_dict(json.loads(_read(path, "auth.jwt.jwks_file")))
        except (ValueError, AttributeError, TypeError, jwt.PyJWTError) as error:
            raise ConfigError(f"auth.jwt.jwks_file: {path}: is not a JSON Web Key Set (RFC 7517): {error}") from None
        for key in found.keys:
            algorithms = ALGORITHMS.get(str(key.key_type))
            if algorithms is None or key.public_key_use not in (None, "sig"):
                continue
            named = key.algorithm_name
            allowed = (named,) if named in algorithms else algorithms
            self._keys.append((key.key_id or "", key.key, allowed, mark_of(key.key)))
        if not self._keys:
            raise ConfigError(f"auth.jwt.jwks_file: {path}: contains no key for one of {', '.join(ALGORITHMS)}")


def _unverified(token: bytes) -> dict[str, Any]:
    """The claims of a token that is not valid, so that a refusal names the user whom it claims to be."""
    try:
        claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    except (jwt.InvalidTokenError, ValueError, RecursionError):
        return {}
    return claims


def mark_of(key: Any) -> bytes:
    """An identifier of a secret or a public key."""
    if isinstance(key, bytes):
        return hashlib.sha256(key).digest()
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()


def _read(path: str, setting: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting}: {path}: cannot be read: {error.strerror}") from error
