"""The connection options of all client commands, and the client built from them."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final
from urllib.parse import quote, unquote, urlsplit

import typer

from starlingmq.cli.declare import CommandError
from starlingmq.cli.packet_log import PacketLog
from starlingmq.cli.property_args import PropertyArgs
from starlingmq.client import Client, Tls, Will
from starlingmq.client.options import NEVER_EXPIRES, V5, V31, V311, ConnectFields

VERSIONS: Final = {"mqttv31": V31, "31": V31, "mqttv311": V311, "311": V311, "mqttv5": V5, "5": V5}
Qos = Annotated[int, typer.Option("-q", "--qos", min=0, max=2, help="Quality of service.")]


@dataclass(kw_only=True)
class ClientArgs:
    host: Annotated[str, typer.Option("-h", "--host", help="Host of the broker.")] = "localhost"
    port: Annotated[
        int | None,
        typer.Option("-p", "--port", min=1, max=65535, help="Port of the broker. Default: 1883, or 8883 with TLS."),
    ] = None
    url: Annotated[
        str | None,
        typer.Option(
            "-L", "--url", help="URL: mqtt://user:password@host:port/topic, mqtts://, ws://, wss://, unix:///path."
        ),
    ] = None
    unix: Annotated[str | None, typer.Option("--unix", metavar="PATH", help="Connect through a Unix socket.")] = None
    client_id: Annotated[str, typer.Option("-i", "--id", help="Client id. Default: the broker assigns one.")] = ""
    id_prefix: Annotated[
        str, typer.Option("-I", "--id-prefix", help="Client id prefix; the process id is appended.")
    ] = ""
    keep_alive: Annotated[
        int, typer.Option("-k", "--keepalive", min=0, max=65535, help="Keep-alive in seconds; 0 disables it.")
    ] = 60
    keep_session: Annotated[
        bool, typer.Option("-c", "--disable-clean-session", help="Keep the session after disconnecting.")
    ] = False
    session_expiry: Annotated[
        int | None,
        typer.Option(
            "-x", "--session-expiry-interval", min=-1, max=NEVER_EXPIRES, help="Session expiry in seconds; -1: never."
        ),
    ] = None
    version: Annotated[
        str, typer.Option("-V", "--protocol-version", help="mqttv31, mqttv311 or mqttv5; also 31, 311, 5.")
    ] = "mqttv5"
    username: Annotated[str | None, typer.Option("-u", "--username")] = None
    password: Annotated[str | None, typer.Option("-P", "--pw")] = None
    will_topic: Annotated[str | None, typer.Option("--will-topic", help="Topic of the will.")] = None
    will_payload: Annotated[str, typer.Option("--will-payload")] = ""
    will_qos: Annotated[int, typer.Option("--will-qos", min=0, max=2)] = 0
    will_retain: Annotated[bool, typer.Option("--will-retain")] = False
    cafile: Annotated[str, typer.Option("--cafile", metavar="FILE", help="CA certificates (PEM); enables TLS.")] = ""
    cert: Annotated[str, typer.Option("--cert", metavar="FILE", help="Client certificate (PEM).")] = ""
    key: Annotated[str, typer.Option("--key", metavar="FILE", help="Private key of the client certificate (PEM).")] = ""
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Do not verify the host name; without --cafile, do not verify the certificate either."
        ),
    ] = False
    tls: Annotated[
        bool, typer.Option("--tls", "--tls-use-os-certs", help="TLS with the CA certificates of this system.")
    ] = False
    property_for: Annotated[
        list[str],
        typer.Option(
            "-D",
            "--property",
            metavar="PACKET PROPERTY VALUE",
            help="Set a property, for example: -D publish content-type text.",
        ),
    ] = field(default_factory=list)
    property_words: Annotated[list[str], typer.Argument(hidden=True, metavar="")] = field(default_factory=list)
    show_packets: Annotated[bool, typer.Option("-d", help="Print every packet to stderr.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False

    takes_words: ClassVar = False  # words without an option have a meaning

    def properties(self) -> PropertyArgs:
        properties = PropertyArgs(self.property_for, self.property_words)
        if properties.rest and not self.takes_words:
            raise CommandError(f"unexpected argument {properties.rest[0]!r}")
        if properties and self.protocol() != V5:
            raise CommandError("properties (-D) need MQTT 5 (-V mqttv5)")
        return properties

    def protocol(self) -> int:
        version = VERSIONS.get(self.version.lower())
        if version is None:
            raise CommandError(f"-V {self.version}: the version must be mqttv31, mqttv311 or mqttv5")
        return version

    def url_topic(self) -> str:
        """The topic in an mqtt:// URL, "" if there is none."""
        parts = urlsplit(self.url or "", allow_fragments=False)  # a # belongs to the filter
        return unquote(parts.path[1:]) if parts.scheme in ("mqtt", "mqtts") else ""

    def address(self) -> str:
        """The URL to connect to."""
        if self.url is not None and self.unix is not None:
            raise CommandError("-L and --unix both name a broker; give only one")
        if self.url is not None:
            return self.url if "://" in self.url else f"mqtt://{self.url}"
        if self.unix is not None:
            return f"unix://{quote(self.unix)}"
        secure = self.tls or bool(self.cafile or self.cert) or self.insecure
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if secure else 'mqtt'}://{host}{f':{self.port}' if self.port else ''}"

    def client(self, reconnect: bool = False, max_inflight: int = 65_535) -> Client:
        """Build the client. Raises CommandError for options that contradict each other."""
        watch = PacketLog(self.protocol()) if self.show_packets else None
        fields = self.fields() | {"max_inflight": max_inflight}
        try:
            return Client(self.address(), tls=self.tls_files(), reconnect=reconnect, watch=watch, **fields)
        except ValueError as error:
            raise CommandError(str(error)) from error

    def tls_files(self) -> Tls:
        return Tls(ca=self.cafile, cert=self.cert, key=self.key, insecure=self.insecure)

    def fields(self) -> ConnectFields:
        """Raises CommandError for options that contradict each other."""
        properties = self.properties()
        expiry = self.session_expiry if self.session_expiry is not None else (-1 if self.keep_session else 0)
        fields: ConnectFields = {
            "client_id": self._client_id(),
            "version": self.protocol(),
            "clean_start": not self.keep_session,
            "keep_alive": self.keep_alive,
            "will": self._will(properties),
            "session_expiry": expiry & NEVER_EXPIRES,
            "properties": properties.of("connect"),
        }
        if self.username is not None or self.password is not None:
            fields["username"] = self.username
            fields["password"] = None if self.password is None else self.password.encode()
        return fields

    def _client_id(self) -> str:
        if self.client_id and self.id_prefix:
            raise CommandError("-i and -I both name a client id; give only one")
        if self.id_prefix:
            return f"{self.id_prefix}{os.getpid()}"
        if self.keep_session and not self.client_id:
            raise CommandError("a persistent session (-c) needs a client id (-i), so that the client can resume it")
        # 3.1 has no empty client id; some 3.1.1 brokers refuse it.
        return self.client_id or ("" if self.protocol() == V5 else f"starling-{secrets.token_hex(6)}")

    def _will(self, properties: PropertyArgs) -> Will | None:
        if self.will_topic is None:
            if self.will_payload or self.will_qos or self.will_retain or properties.of("will"):
                raise CommandError("a will needs a topic (--will-topic)")
            return None
        return Will(
            self.will_topic.encode(),
            self.will_payload.encode(),
            self.will_qos,
            self.will_retain,
            properties.of("will"),
        )
