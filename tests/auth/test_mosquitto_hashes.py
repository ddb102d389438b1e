"""Lines of mosquitto's password file: ``$7$``, PBKDF2 with HMAC-SHA-512."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from starlingmq.auth import hashing
from starlingmq.auth.password_file import read_passwords
from starlingmq.auth.passwords import made_up
from starlingmq.config.section_types import ConfigError
from starlingmq.wire.reasons import Reason
from tests.auth.conftest import Serve
from tests.auth.logins import knock

RIGHT = (
    "$7$101$WPigRX2HEwtOoFmH$KGVR6Ix3FE/DOPyh3HxLvo/oyoK4DepjELyMnoSxmy1LgrZhEyYyo2yG4TcKtX97yJQpN4s8LbB3gcf7VqOo1A=="
)
"""As mosquitto_passwd 2.0.11 writes it for the password ``right``."""
DIGEST = RIGHT.rpartition("$")[2]


async def test_clients_log_in_with_passwords_of_mosquitto(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    path.write_text(f"ann:{RIGHT}\n", encoding="utf-8")
    broker = await serve(auth={"password": {"file": str(path)}, "failures": {"delay": 0}})
    assert await knock(broker.address(), "ann", b"right") == Reason.SUCCESS
    for name, password in (("ann", b"wrong"), ("ann", b""), ("nobody", b"right")):
        assert await knock(broker.address(), name, password) == Reason.BAD_USER_NAME_OR_PASSWORD


@pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="mosquitto_passwd is not installed")
@pytest.mark.parametrize("iterations", [101, 20_000])
def test_what_mosquitto_writes_is_read(tmp_path: Path, iterations: int) -> None:
    path = tmp_path / "passwords"
    subprocess.run(["mosquitto_passwd", "-I", str(iterations), "-c", "-b", path, "ann", "a päss"], check=True)
    known = read_passwords(path).hashes["ann"]
    assert known.startswith(f"$7${iterations}$")
    assert hashing.fits(known, "a päss".encode()) and not hashing.fits(known, b"a pass")


def test_a_name_that_nobody_has_costs_as_many_iterations() -> None:
    made = made_up(RIGHT)
    assert made.startswith("$7$101$") and hashing.PBKDF2_HASH.fullmatch(made) and made != made_up(RIGHT)
    assert not hashing.fits(made, b"right")


@pytest.mark.parametrize(
    "secret",
    [
        "$7$101$WPigRX2HEwtOoFmH",
        f"$7$0$WPigRX2HEwtOoFmH${DIGEST}",
        f"$7$10000000$WPigRX2HEwtOoFmH${DIGEST}",
        f"$7$101$${DIGEST}",
        f"$7$101$WPigRX2HEwtOoFmH${DIGEST[:-4]}",
        f"$7$101$WPigRX2HEwtOoFmH${DIGEST}$",
        f"$6$WPigRX2HEwtOoFmH${DIGEST}",
    ],
)
def test_a_hash_that_is_damaged_or_weak_or_takes_minutes_is_refused(tmp_path: Path, secret: str) -> None:
    path = tmp_path / "passwords"
    path.write_text(f"ann:{secret}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r":1: .*starlingmq passwd") as refused:
        read_passwords(path)
    assert DIGEST[:20] not in str(refused.value)
