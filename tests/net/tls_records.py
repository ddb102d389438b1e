"""A TLS 1.3 client whose records are made one by one, for what no library sends: RFC 8446, 5 and 7."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

APPLICATION_DATA: Final = 23
HANDSHAKE: Final = 22
KEY_UPDATE: Final = b"\x18\0\0\x01\0"
KEY_UPDATE_REQUESTED: Final = b"\x18\0\0\x01\x01"
HASH_SIZE: Final = 48
TAG: Final = 16


class Direction:
    """The keys of what one side sends."""

    def __init__(self, secret: bytes) -> None:
        self._use(secret)

    def _use(self, secret: bytes) -> None:
        self._secret = secret
        self._cipher = AESGCM(_expand(secret, b"key", 32))
        self._iv = int.from_bytes(_expand(secret, b"iv", 12), "big")
        self._number = 0

    def renew(self) -> None:
        self._use(_expand(self._secret, b"traffic upd", HASH_SIZE))

    def seal(self, data: bytes, kind: int = APPLICATION_DATA) -> bytes:
        header = b"\x17\x03\x03" + (len(data) + 1 + TAG).to_bytes(2, "big")
        return header + self._cipher.encrypt(self._nonce(), data + bytes([kind]), header)

    def open(self, record: bytes) -> tuple[int, bytes]:
        inner = self._cipher.decrypt(self._nonce(), record[5:], record[:5]).rstrip(b"\0")
        return inner[-1], inner[:-1]

    def _nonce(self) -> bytes:
        number, self._number = self._number, self._number + 1
        return (self._iv ^ number).to_bytes(12, "big")


def _expand(secret: bytes, label: bytes, size: int) -> bytes:
    label = b"tls13 " + label
    info = size.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0"
    return HKDFExpand(SHA384(), size, info).derive(secret)


class RecordPeer:
    """``sock`` blocks; ``out`` seals what the client sends, ``back`` opens what comes."""

    def __init__(self, sock: socket.socket, out: Direction, back: Direction) -> None:
        self.sock = sock
        self.out = out
        self.back = back

    def key_updates(self, count: int, message: bytes = KEY_UPDATE) -> bytes:
        records = bytearray()
        for _ in range(count):
            records += self.out.seal(message, HANDSHAKE)
            self.out.renew()
        return bytes(records)

    async def send(self, data: bytes) -> None:
        await asyncio.to_thread(self.sock.sendall, data)

    async def receive(self, size: int) -> bytes:
        return await asyncio.to_thread(self._receive, size)

    def _receive(self, size: int) -> bytes:
        """Return this many bytes of data; other messages are obeyed, and tickets ignored."""
        data = b""
        while len(data) < size:
            header = _exactly(self.sock, 5)
            kind, more = self.back.open(header + _exactly(self.sock, int.from_bytes(header[3:], "big")))
            if kind == APPLICATION_DATA:
                data += more
            elif kind == HANDSHAKE and more[:1] == KEY_UPDATE[:1]:
                self.back.renew()
        return data


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        assert more, "closed"
        data += more
    return data


async def connect_records(port: int, authority: str, directory: Path) -> RecordPeer:
    """Shake hands as OpenSSL does, then take over."""
    return await asyncio.to_thread(_connect, port, authority, directory)


def _connect(port: int, authority: str, directory: Path) -> RecordPeer:
    log = directory / "keys.log"
    context = ssl.create_default_context(cafile=authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.keylog_filename = str(log)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    sock = socket.create_connection(("127.0.0.1", port), 10.0)
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            sock.sendall(outgoing.read())
            header = _exactly(sock, 5)  # whole records, so that the rest belongs to the caller
            incoming.write(header + _exactly(sock, int.from_bytes(header[3:], "big")))
    sock.sendall(outgoing.read())
    assert tls.cipher() == ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256)
    secrets = {
        line.split()[0]: bytes.fromhex(line.split()[2]) for line in log.read_text().splitlines() if line[0] != "#"
    }
    return RecordPeer(
        sock, Direction(secrets["CLIENT_TRAFFIC_SECRET_0"]), Direction(secrets["SERVER_TRAFFIC_SECRET_0"])
    )
