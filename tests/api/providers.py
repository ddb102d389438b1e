"""OpenID Connect providers: a real one (oidc-provider for Node.js), and a small one that sends false answers."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key

from tests.api.trusted import trust
from tests.patience import within

JS: Final = Path(__file__).parent.parent / "js"
SECRET: Final = "secret+/% of the test"
GROUPS: Final = {"olga": ["staff", "brokers"], "vera": ["watchers"], "nils": ["staff"]}
NOWHERE: Final = "http://127.0.0.1:1/"  # where a browser of these tests is not sent
FIELD: Final = re.compile(r'<form [^>]*action="([^"]+)"')

needs_provider = pytest.mark.skipif(
    shutil.which("node") is None or not (JS / "node_modules/oidc-provider").exists(),
    reason="oidc-provider is not installed: npm ci in tests/js",
)


def settings(issuer: str, directory: Path, url: str = NOWHERE, **more: Any) -> dict[str, Any]:
    """The section ``auth``."""
    secret = directory / "client-secret"
    secret.write_text(SECRET + "\n", encoding="utf-8")
    oidc = {
        "issuer": issuer,
        "client_id": "broker",
        "client_secret_file": str(secret),
        "url": url,
        "username_claim": "preferred_username",
        "operators": ["brokers"],
        "viewers": ["watchers"],
    }
    return {"failures": {"delay": 0}, "api": {"oidc": {**oidc, **more}}}


@asynccontextmanager
async def real_provider(
    redirect: str = "http://127.0.0.1:1/", port: int = 0, in_token: bool = True
) -> AsyncIterator[str]:
    """Its issuer."""
    told = json.dumps({"port": port, "redirect": redirect, "groups": GROUPS, "in_token": in_token})
    process = await asyncio.create_subprocess_exec(
        "node", "provider.mjs", told, cwd=JS, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        async with within(30):
            issuer = (await process.stdout.readline()).decode().strip()
        assert issuer, "the provider does not serve"
        yield issuer
    finally:
        process.kill()
        await process.wait()


class Person:
    """A browser at the provider, with cookies of its own: logs in, consents, and stops where it is sent back."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._http = httpx.AsyncClient(trust_env=False, timeout=30, verify=trust())

    async def log_in(self, address: str) -> dict[str, str]:
        """The parameters with which the provider sends the browser back to the dashboard."""
        place = f"{urlsplit(address).scheme}://{urlsplit(address).netloc}"
        answer = await self._http.get(address)
        for prompt in ("login", "consent", ""):
            while answer.is_redirect:
                target = httpx.URL(answer.headers["location"])
                if "state" in target.params:
                    return dict(target.params)
                answer = await self._http.get(answer.url.join(target))
            form = FIELD.search(answer.text)
            assert prompt and form is not None, answer.text
            fields = {"prompt": prompt, "login": self._name, "password": "any"}
            answer = await self._http.post(httpx.URL(place).join(form[1]), data=fields)
        raise AssertionError("the provider does not send the browser back")

    async def close(self) -> None:
        await self._http.aclose()


class Key:
    def __init__(self, name: str, algorithm: str = "RS256") -> None:
        self.name = name
        self.algorithm = algorithm
        self.private: RSAPrivateKey = generate_private_key(65537, 2048)

    def public(self) -> dict[str, Any]:
        told = jwt.algorithms.RSAAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        return {**told, "kid": self.name, "use": "sig", "alg": self.algorithm}


class HostileProvider:
    """Correct by default. ``claims`` replaces claims of the ID token, ``token`` makes it, ``raw`` replaces the body of
    a path, ``status`` its status, ``more`` is a header of all answers; requests to a path in ``silent`` get no
    answer. ``asked``: the paths of all requests, ``heads`` their heads."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.issuer = ""
        self.asked: list[str] = []
        self.nonce = ""
        self.metadata: dict[str, Any] = {}
        self.keys: list[dict[str, Any]] = [key.public()]
        self.token: Callable[[dict[str, Any]], str] = self.signed
        self.claims: dict[str, Any] = {}
        self.userinfo: dict[str, Any] = {}
        self.silent: set[str] = set()
        self.raw: dict[str, bytes] = {}
        self.status: dict[str, int] = {}
        self.more = ""
        self.heads: list[str] = []
        self._unanswered: list[asyncio.StreamWriter] = []
        self.waits = asyncio.Event()  # a request is not answered

    def signed(self, claims: dict[str, Any]) -> str:
        return jwt.encode(claims, self.key.private, self.key.algorithm, headers={"kid": self.key.name})

    def hang_up(self) -> None:
        """Close the connections of requests that get no answer."""
        while self._unanswered:
            self._unanswered.pop().close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            form = parse_qs((await reader.readexactly(int(length[1]) if length else 0)).decode())
            path = head.split(b" ")[1].decode()
            self.asked.append(path)
            self.heads.append(head.decode())
            if path in self.silent:
                self._unanswered.append(writer)
                self.waits.set()
                await reader.read()  # until the broker gives up
                return
            body = self.raw.get(path) or json.dumps(self.answer(path, form)).encode()
            told = f"HTTP/1.1 {self.status.get(path, 200)} OK\r\nconnection: close\r\n{self.more}"
            writer.write(told.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def answer(self, path: str, form: dict[str, list[str]]) -> dict[str, Any]:
        if path == "/jwks":
            return {"keys": self.keys}
        if path == "/me":
            return self.userinfo
        if path == "/token":
            now = int(time.time())
            claims = {
                "iss": self.issuer, "sub": "1", "aud": "broker", "iat": now, "exp": now + 60, "nonce": self.nonce,
                "preferred_username": "olga", "groups": ["brokers"],
            }  # fmt: skip
            claims |= self.claims
            return {"access_token": "x", "id_token": self.token({k: v for k, v in claims.items() if v is not None})}
        names = {"authorization": "auth", "token": "token", "userinfo": "me"}
        return {
            "issuer": self.issuer,
            "jwks_uri": f"{self.issuer}/jwks",
            **{f"{name}_endpoint": f"{self.issuer}/{path}" for name, path in names.items()},
            **self.metadata,
        }


@asynccontextmanager
async def hostile_provider(key: Key, tls: ssl.SSLContext | None = None) -> AsyncIterator[HostileProvider]:
    provider = HostileProvider(key)
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0, ssl=tls)
    scheme, host = ("http", "127.0.0.1") if tls is None else ("https", "localhost")
    provider.issuer = f"{scheme}://{host}:{server.sockets[0].getsockname()[1]}"
    try:
        yield provider
    finally:
        server.close()


def bearer(told: dict[str, Any]) -> dict[str, str]:
    return {"authorization": f"Bearer {told['token']}"}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
