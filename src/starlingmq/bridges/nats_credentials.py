"""The login of a bridge at a NATS server: what its CONNECT says, from the settings and the nonce of INFO."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from itertools import pairwise
from pathlib import Path

from starlingmq._version import __version__
from starlingmq.config.bridges_section import BridgeConfig
from starlingmq.config.nkeys import user_key_text, user_seed


def login(config: BridgeConfig, site: str, info: dict[str, object]) -> dict[str, object]:
    """Raises ValueError with a sentence."""
    options: dict[str, object] = {
        "name": config.client_id or f"{config.name}-{site}",
        "lang": "starlingmq",
        "version": __version__,
        "tls_required": bool(info.get("tls_required")),
    }
    credentials = config.credentials
    password = credentials.password
    try:
        if credentials.creds_file:
            return options | _signed(Path(credentials.creds_file).read_text(), str(info.get("nonce", "")))
        if credentials.password_file:
            password = Path(credentials.password_file).read_text().removesuffix("\n")
    except OSError as error:
        raise ValueError(f"cannot read the credentials: {error}") from None
    if credentials.username is not None:
        options |= {"user": credentials.username, "pass": password or ""}
    elif password is not None:
        options["auth_token"] = password
    return options


def _signed(text: str, nonce: str) -> dict[str, object]:
    """Proof of the seed in a file, with the JWT in front of it if there is one."""
    try:
        from nacl.signing import SigningKey
    except ImportError:
        raise ValueError(
            "credentials.creds_file: signing needs PyNaCl; pip install '.[nkeys]' in the sources"
        ) from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    after = {before.strip("- "): line for before, line in pairwise(lines) if before[:3] == "---"}
    seed = after.get("BEGIN USER NKEY SEED") or next((line for line in lines if line.startswith("SU")), "")
    try:
        key = SigningKey(user_seed(seed))
    except ValueError as error:
        raise ValueError(f"credentials.creds_file: {error}") from None
    signature = urlsafe_b64encode(key.sign(nonce.encode()).signature).decode().rstrip("=")
    jwt = after.get("BEGIN NATS USER JWT")
    if jwt:
        return {"jwt": jwt, "sig": signature}
    return {"nkey": user_key_text(bytes(key.verify_key)), "sig": signature}
