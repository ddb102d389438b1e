"""A certificate that is refused: the reason, and the remedy that fits it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from starlingmq import Broker
from starlingmq.client import Client, ConnectFailed, Tls

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("begins", "ends", "name", "host", "remedy"),
    [
        (NOW - 2 * DAY, NOW - DAY, "127.0.0.1", "127.0.0.1", "expired; renew it at the server"),
        (NOW + DAY, NOW + 2 * DAY, "127.0.0.1", "127.0.0.1", "not yet valid; correct the clock"),
        (NOW - DAY, NOW + DAY, "other.example", "localhost", "connect by a name that is in it"),
        (NOW - DAY, NOW + DAY, "other.example", "127.0.0.1", "connect by a name or address that is in it"),
    ],
)
async def test_each_reason_has_its_remedy(
    tmp_path: Path, begins: datetime, ends: datetime, name: str, host: str, remedy: str
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert(name, not_before=begins, not_after=ends)
    issued.private_key_pem.write_to_path(tmp_path / "key")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    authority.cert_pem.write_to_path(tmp_path / "ca")
    tls = {"cert": str(tmp_path / "cert"), "key": str(tmp_path / "key")}
    async with Broker(listeners=[{"url": "mqtts://127.0.0.1:0", "tls": tls}]) as broker:
        url = broker.address("mqtts").replace("127.0.0.1", host)
        with pytest.raises(ConnectFailed, match=remedy):
            await Client(url, tls=Tls(ca=str(tmp_path / "ca"))).connect()


async def test_an_unknown_authority_is_to_be_named(tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    tls = {"cert": str(tmp_path / "cert"), "key": str(tmp_path / "key")}
    async with Broker(listeners=[{"url": "mqtts://127.0.0.1:0", "tls": tls}]) as broker:
        with pytest.raises(ConnectFailed, match="name its CA certificate"):
            await Client(broker.address("mqtts")).connect()
