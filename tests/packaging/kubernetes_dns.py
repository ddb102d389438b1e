"""Names of a Kubernetes, as its DNS answers them: ``kubernetes_dns.py ADDRESS SERVER TOKEN``.

Services have their address. Pods of headless services have the name ``POD.SERVICE.NAMESPACE.svc.cluster.local``; the
search list of a pod adds its end. A reverse lookup gives whole names.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import time
import urllib.request
from typing import Any, Final

DOMAIN: Final = ".cluster.local"
FRESH_SECONDS: Final = 0.3
A, PTR = 1, 12
FOUND, NO_SUCH_NAME = 0x8580, 0x8583


class Names:
    def __init__(self, server: str, token: str) -> None:
        self._server = server
        self._login = {"Authorization": f"Bearer {token}"}
        self._context = ssl.create_default_context()
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self._addresses: dict[str, set[str]] = {}
        self._since = 0.0

    def _get(self, kind: str) -> list[dict[str, Any]]:
        asked = urllib.request.Request(f"{self._server}/api/v1/{kind}", headers=self._login)
        with urllib.request.urlopen(asked, timeout=5, context=self._context) as answer:
            found: list[dict[str, Any]] = json.load(answer)["items"]
        return found

    def _refresh(self) -> None:
        found: dict[str, set[str]] = {}
        for service in self._get("services"):
            if service["spec"].get("clusterIP", "None") != "None":
                found[_name(service)] = {service["spec"]["clusterIP"]}
        for endpoints in self._get("endpoints"):
            for subset in endpoints.get("subsets", []):
                for each in [*subset.get("addresses", []), *subset.get("notReadyAddresses", [])]:
                    if "hostname" in each:
                        found[f"{each['hostname']}.{_name(endpoints)}"] = {each["ip"]}
                        found.setdefault(_name(endpoints), set()).add(each["ip"])
        self._addresses, self._since = found, time.monotonic()

    def answers(self, name: str, kind: int) -> list[bytes]:
        """The data of the records."""
        if time.monotonic() - self._since > FRESH_SECONDS:
            self._refresh()
        if kind == A:
            return [socket.inet_aton(each) for each in self._addresses.get(name.removesuffix(DOMAIN), ())]
        address = ".".join(reversed(name.removesuffix(".in-addr.arpa").split(".")))
        hosts = (each for each, found in self._addresses.items() if found == {address})
        return [_labels(each + DOMAIN) for each in hosts] if kind == PTR else []


def _name(found: dict[str, Any]) -> str:
    return f"{found['metadata']['name']}.{found['metadata']['namespace']}.svc"


def _labels(name: str) -> bytes:
    return b"".join(bytes([len(each)]) + each.encode() for each in name.split(".")) + b"\0"


def answer(names: Names, query: bytes) -> bytes:
    labels: list[str] = []
    at = 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    (kind,) = struct.unpack_from(">H", query, at + 1)
    found = names.answers(".".join(labels).lower(), kind)
    known = bool(found) or (kind != PTR and bool(names.answers(".".join(labels).lower(), A)))
    head = struct.pack(">HHHHH", FOUND if known else NO_SUCH_NAME, 1, len(found), 0, 0)
    records = b"".join(struct.pack(">HHHIH", 0xC00C, kind, 1, 1, len(each)) + each for each in found)
    return query[:2] + head + query[12 : at + 5] + records


def serve(address: str, names: Names) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((address, 53))
        while True:
            query, client = sock.recvfrom(4096)
            try:
                sock.sendto(answer(names, query), client)
            except (OSError, IndexError, UnicodeDecodeError, struct.error) as error:
                print(repr(error), file=sys.stderr, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], Names(sys.argv[2], sys.argv[3]))
