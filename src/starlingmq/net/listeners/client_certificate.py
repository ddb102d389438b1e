"""The name of a client in its verified certificate: the common name, or the whole subject as in RFC 2253."""

from __future__ import annotations

from typing import Any, Final, Protocol

SHORT: Final = {
    "businessCategory": "businessCategory",
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "givenName": "GN",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "street",
    "surname": "SN",
    "userId": "UID",
}
"""OpenSSL's short names of attributes, as ``openssl x509 -nameopt RFC2253`` writes them; other attributes have only one
name."""


class HasExtraInfo(Protocol):
    def get_extra_info(self, name: str, default: Any = None) -> Any: ...


def certificate_name(transport: HasExtraInfo) -> str:
    """The name in the client certificate; "" without TLS, certificate or name, or if Python cannot read it. The context
    of the listener says which name is used."""
    try:
        certificate = transport.get_extra_info("peercert")
    except (ValueError, OSError):  # OpenSSL does not check the text in a certificate
        return ""
    if not certificate:
        return ""
    subject = certificate.get("subject", ())
    if getattr(transport.get_extra_info("sslcontext"), "whole_subject", False):
        return whole_subject(subject)
    return next((str(value) for part in subject for key, value in part if key == "commonName"), "")


def whole_subject(subject: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    """As OpenSSL and mosquitto write it: the last part first, ``CN=sensor-7,OU=devices,O=Example``."""
    parts = (
        "+".join(f"{SHORT.get(key, key)}={_escaped(value)}" for key, value in reversed(part))
        for part in reversed(subject)
    )
    return ",".join(parts)


def _escaped(value: str) -> str:
    last = len(value) - 1
    return "".join(_escaped_sign(sign, at, last) for at, sign in enumerate(value))


def _escaped_sign(sign: str, at: int, last: int) -> str:
    if sign in ',+"\\<>;' or (sign == " " and at in (0, last)) or (sign == "#" and at == 0):
        return "\\" + sign
    if sign < " " or sign > "~":
        return "".join(f"\\{byte:02X}" for byte in sign.encode())
    return sign
