"""Tokens (JWT): what they are signed with, which claims must fit, and what they grant."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from starlingmq.wire.mqtt import Disconnect
from starlingmq.wire.reasons import Reason
from tests.auth.conftest import Join, Serve
from tests.auth.logins import FAST, SECRET, knock, token


def pem(key: Any) -> bytes:
    return bytes(key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))


async def test_tokens_signed_with_a_secret(serve: Serve, secret_file: str) -> None:
    broker = await serve(auth={"jwt": {"secret_file": secret_file, "leeway": 0}, **FAST})
    address = broker.address()
    assert await knock(address, None, token()) == 0
    assert await knock(address, "whatever", token()) == 0
    good = token()
    head, body, _ = good.split(b".")
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').rstrip(b"=") + b"." + body + b"."
    wrong = [
        token(exp=time.time() - 1),
        token(nbf=time.time() + 60),
        token(key=SECRET[::-1]),
        unsigned,
        head + b"." + body + b".AAAA",
        token(sub=""),
        token(sub=7),
        jwt.encode({"sub": "ann"}, SECRET, "HS256").encode(),
    ]
    for text in wrong:
        assert await knock(address, None, text) in (Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED)
    assert await knock(address, "ann", b"a.b.c") == Reason.BAD_USER_NAME_OR_PASSWORD


@pytest.mark.parametrize("kind", ["RSA", "EC"])
async def test_tokens_signed_with_a_key(serve: Serve, tmp_path: Path, kind: str) -> None:
    key: Any
    if kind == "RSA":
        key, algorithm = rsa.generate_private_key(65537, 2048), "RS256"
    else:
        key, algorithm = ec.generate_private_key(ec.SECP256R1()), "ES256"
    path = tmp_path / "public.pem"
    path.write_bytes(pem(key.public_key()))
    broker = await serve(auth={"jwt": {"public_key_file": str(path)}, **FAST})
    assert await knock(broker.address(), None, token(key, algorithm)) == 0
    # The public key, which everybody may know, is no secret of HS256.
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=")
    claims = base64.urlsafe_b64encode(json.dumps({"sub": "ann", "exp": time.time() + 60}).encode()).rstrip(b"=")
    import hashlib
    import hmac

    signature = hmac.digest(path.read_bytes(), header + b"." + claims, hashlib.sha256)
    forged = b".".join([header, claims, base64.urlsafe_b64encode(signature).rstrip(b"=")])
    assert await knock(broker.address(), None, forged) == Reason.BAD_USER_NAME_OR_PASSWORD


async def test_a_set_of_keys(serve: Serve, tmp_path: Path) -> None:
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("one", "two", "three")}
    published = [
        {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())), "kid": name, "use": "sig"}
        for name, key in keys.items()
        if name != "three"
    ]
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": published}))
    broker = await serve(auth={"jwt": {"jwks_file": str(path)}, **FAST})
    for name, expected in (("one", 0), ("two", 0), ("three", Reason.BAD_USER_NAME_OR_PASSWORD)):
        assert await knock(broker.address(), None, token(keys[name], "ES256", {"kid": name})) == expected
    assert (
        await knock(broker.address(), None, token(keys["three"], "ES256", {"kid": "one"}))
        == Reason.BAD_USER_NAME_OR_PASSWORD
    )


async def test_claims_that_have_to_fit(serve: Serve, secret_file: str) -> None:
    broker = await serve(
        auth={
            "jwt": {
                "secret_file": secret_file,
                "issuer": "us",
                "audience": "broker",
                "client_id_claim": "device",
                "username_claim": "name",
            },
            **FAST,
        }
    )
    good: dict[str, Any] = {"iss": "us", "aud": ["broker", "others"], "device": "c", "name": "Ann"}
    assert await knock(broker.address(), None, token(**good)) == 0
    for wrong in ({"iss": "them"}, {"aud": "others"}, {"device": "d"}, {"name": None}):
        assert await knock(broker.address(), None, token(**{**good, **wrong})) == Reason.BAD_USER_NAME_OR_PASSWORD


async def test_a_token_brings_rules_and_an_end(serve: Serve, join: Join, secret_file: str) -> None:
    broker = await serve(auth={"jwt": {"secret_file": secret_file, "leeway": 0}, **FAST})
    rules = [{"allow": "publish", "topics": ["mine/%c"]}]
    peer = await join(broker, "c", password=token(acl=rules, exp=time.time() + 1.2))
    assert await peer.publish("mine/c") == Reason.NO_MATCHING_SUBSCRIBERS
    assert await peer.publish("others") == Reason.NOT_AUTHORIZED, "nothing is allowed that no rule allows"
    assert await peer.subscribe("mine/c") == [Reason.NOT_AUTHORIZED]
    assert (await peer.expect(Disconnect)).reason == Reason.NOT_AUTHORIZED
    assert await knock(broker.address(), None, token(acl=[{"allow": "fly"}])) == Reason.BAD_USER_NAME_OR_PASSWORD
    assert await knock(broker.address(), None, token(acl="all")) == Reason.BAD_USER_NAME_OR_PASSWORD


async def test_an_empty_grant_allows_nothing_and_a_token_without_grants_everything(
    serve: Serve, join: Join, secret_file: str
) -> None:
    broker = await serve(auth={"jwt": {"secret_file": secret_file}, **FAST})
    nothing = await join(broker, "n", password=token(acl=[]))
    assert await nothing.publish("any") == Reason.NOT_AUTHORIZED
    assert await nothing.subscribe("any") == [Reason.NOT_AUTHORIZED]
    silent = await join(broker, "s", password=token())
    assert await silent.publish("any") == Reason.NO_MATCHING_SUBSCRIBERS
    rules = [{"deny": "connect"}]
    assert await knock(broker.address(), None, token(acl=rules)) == Reason.NOT_AUTHORIZED


async def test_an_audience_that_is_not_checked_is_warned_of_once(
    serve: Serve, secret_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    """RFC 7519, section 4.1.3, wants such a token refused; that would lock out fleets that connect today."""
    broker = await serve(auth={"jwt": {"secret_file": secret_file}, **FAST})
    assert await knock(broker.address(), None, token()) == 0 and "audience" not in caplog.text
    for _ in range(2):
        assert await knock(broker.address(), None, token(aud="shop")) == 0
    assert caplog.text.count("tokens have the audience 'shop', which is not checked") == 1
    checked = await serve(auth={"jwt": {"secret_file": secret_file, "audience": "broker"}, **FAST})
    assert await knock(checked.address(), None, token(aud="shop")) == Reason.BAD_USER_NAME_OR_PASSWORD
    assert await knock(checked.address(), None, token(aud=["shop", "broker"])) == 0
