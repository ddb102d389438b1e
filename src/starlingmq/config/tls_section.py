"""Settings of TLS for one listener: the section ``listeners[].tls`` of the tree."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from starlingmq.config.secret_masking import SECRET
from starlingmq.config.section_types import ConfigError, Section


class TlsConfig(Section, frozen=True):
    cert: Annotated[str, Meta(min_length=1, description="PEM file with the certificate chain of the listener.")]
    key: Annotated[
        str | None, Meta(description="PEM file with the private key. Empty: the key is read from the certificate file.")
    ] = None
    key_password: Annotated[str | None, Meta(description="Password of an encrypted private key.", extra=SECRET)] = None
    ca: Annotated[
        str | None, Meta(description="PEM file with the CA certificates used to verify client certificates.")
    ] = None
    crl: Annotated[
        tuple[str, ...],
        Meta(
            description="PEM files with certificate revocation lists, one for each CA that issues client "
            "certificates. Clients with a revoked certificate are refused. A reload reads the "
            "files again and disconnects clients whose certificate has been revoked."
        ),
    ] = ()
    require_client_cert: Annotated[
        bool, Meta(description="Whether clients must present a certificate issued by one of these CAs.")
    ] = False
    use_identity_as_username: Annotated[
        bool, Meta(description="Whether the common name of the client certificate is used as the user name.")
    ] = False
    use_subject_as_username: Annotated[
        bool,
        Meta(
            description="Whether the whole subject of the client certificate is used as the user name, written as in "
            "RFC 2253: CN=sensor-7,OU=devices,O=Example."
        ),
    ] = False
    min_version: Annotated[Literal["1.2", "1.3"], Meta(description="Lowest TLS version accepted.")] = "1.2"


def check_tls(tls: TlsConfig, path: str) -> None:
    """Raises ConfigError for combinations that no type excludes."""
    if tls.use_identity_as_username and tls.use_subject_as_username:
        raise ConfigError(
            f"{path}: use_identity_as_username and use_subject_as_username are both set; set only one of them"
        )
