"""Everything with an end that the settings name. It is the one list of ``config check``, ``doctor``, a reload, the
alarms, ``/certificates`` and the metrics.

| in | ends |
|---|---|
| ``tls.cert``, ``tls.ca`` of listeners, bridges and links, ``cluster.tls``, ``cluster.etcd.tls`` | the certificate that ends first; of several with one subject the last |
| ``tls.crl`` | the revocation list whose next one is due first; of several of one issuer the last; or it lacks one of an authority in ``tls.ca`` |
| ``auth.jwt.jwks_file`` | the last key, if all have ``exp`` or a certificate (``x5c``) |
| tokens and headers with tokens, in files and settings | the first token that is a JWT with ``exp``; other tokens have no end |
"""  # noqa: E501

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from starlingmq.config.settings import Config
from starlingmq.net.listeners.der import DerError
from starlingmq.net.listeners.validity import (
    Validity,
    certificate,
    certificates,
    latest,
    revocation_lists,
    without_list,
)

DAY: Final = 86_400.0
CRITICAL_DAYS: Final = 7
TIME_MAX: Final = 253_402_300_800.0  # the year 10,000
AT_START: Final = ("cluster.", "streams.")  # sections that a reload does not change
LIFETIME_SHARE: Final = 3  # a list that is valid for six days is no problem before its last two

_TOKEN: Final = re.compile(rb"[\w-]+\.([\w-]+)\.[\w-]*")

State = Literal["valid", "soon", "critical", "ended"]
Kind = Literal["certificate", "authority", "revocation list", "key set", "token"]

Key = tuple[Kind, str, bool]
End = tuple[str, float, float]
"""The name of what ends, when it begins (0: unknown), and when it ends."""

OUTCOMES: Final[dict[Kind, str]] = {
    "certificate": "connections that verify it fail",
    "authority": "the certificates that it has issued are refused",
    "revocation list": "every client with a certificate of this authority is refused",
    "key set": "its issuer does not vouch for the keys any more",
    "token": "requests with it are refused",
}
"""Of each kind: what happens from its end on."""


class Expiration(NamedTuple):
    """``name``: the certificate, authority, key or header in the file. ``file``: "" for a value of the settings.
    ``begins``: 0 if unknown. ``ends``: None with a ``problem``. ``renewed``: the file has a later one than the node
    uses."""

    kind: Kind
    name: str
    setting: str
    file: str
    begins: float
    ends: float | None
    problem: str = ""
    renewed: bool = False

    @property
    def place(self) -> str:
        return self.file or self.setting

    @property
    def at_start(self) -> bool:
        """Whether it is read at the start of the node only."""
        return self.setting.startswith(AT_START)

    @property
    def key(self) -> Key:
        return self.kind, self.place, self.at_start

    def state(self, now: float, days: int) -> State:
        """``days``: alarms.certificate_days. What is made for less than thrice as long is told in its last third."""
        if self.ends is None:
            return "critical"
        if self.ends <= now:
            return "ended"
        if self.begins > now:
            return "critical"
        lifetime = self.ends - self.begins if self.begins else float("inf")
        left = self.ends - now
        if left >= min(days * DAY, lifetime / LIFETIME_SHARE):
            return "valid"
        return "critical" if left < min(CRITICAL_DAYS * DAY, lifetime / LIFETIME_SHARE / 2) else "soon"

    def days(self, now: float) -> int | None:
        """Whole days that are left; negative: it has ended."""
        return None if self.ends is None else int((self.ends - now) // DAY)

    def left(self, now: float) -> str:
        """As ``days``; hours of the last three days."""
        seconds = 0.0 if self.ends is None else self.ends - now
        return f"{seconds // 3600:.0f} hours" if 0 <= seconds < 3 * DAY else f"{self.days(now):,} days"

    def text(self, now: float) -> str:
        """One line."""
        what = f"{self.kind} {self.name!r}" if self.name else self.kind
        where = f"{self.file} ({self.setting})" if self.file else self.setting
        if self.ends is None:
            return f"{where}: {self.problem}"
        date = datetime.fromtimestamp(self.ends, UTC).isoformat(timespec="minutes").replace("+00:00", "Z")
        if self.ends <= now:
            return f"{what} in {where} ended on {date}: {OUTCOMES[self.kind]}"
        if self.begins > now:
            begins = datetime.fromtimestamp(self.begins, UTC).isoformat(timespec="minutes").replace("+00:00", "Z")
            return f"{what} in {where} is not valid before {begins}: {OUTCOMES[self.kind]}"
        return f"{what} in {where} ends on {date}, in {self.left(now)}"

    def advice(self) -> str:
        load = "restart the node" if self.at_start else "run starlingmq ctl reload"
        if self.problem:
            return f"correct the file or the setting that names it, then {load}"
        if self.renewed:
            return f"the file has been renewed, but this node uses the earlier content: {load}"
        return f"renew it, then {load}"


def expirations(config: Config) -> list[Expiration]:
    """Read the files now. A file that several listeners name is one thing with an end."""
    merged: dict[Key, Expiration] = {}
    for one in (*_of_listeners(config), *_of_cluster(config), *_of_bridges(config), *_of_tokens(config)):
        known = merged.get(one.key)
        merged[one.key] = one if known is None else known._replace(setting=f"{known.setting}, {one.setting}")
    return list(merged.values())


def expiry_lines(config: Config, now: float) -> tuple[list[str], list[str]]:
    """A line for each thing that ends within ``alarms.certificate_days`` or has ended; and for each other certificate
    that a reload reads."""
    warnings, others = [], []
    for one in expirations(config):
        if one.state(now, config.alarms.certificate_days) != "valid":
            warnings.append(f"{one.text(now)}; {one.advice()}")
        elif one.kind == "certificate" and not one.at_start:
            others.append(one.text(now))
    return warnings, others


class LoadedExpirations:
    """Compares the files with what the node has loaded. A file that was renewed helps only after a reload."""

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config
        self._used = _valid(config())

    def reloaded(self) -> None:
        kept = {key: valid for key, valid in self._used.items() if key[2]}
        self._used = _valid(self._config()) | kept

    def look(self) -> list[Expiration]:
        return [self._as_used(one) for one in expirations(self._config())]

    def _as_used(self, one: Expiration) -> Expiration:
        begins, ends = self._used.get(one.key, (0.0, None))
        if ends is None or one.ends is None or ends >= one.ends:
            return one
        return one._replace(begins=begins, ends=ends, renewed=True)


def _valid(config: Config) -> dict[Key, tuple[float, float]]:
    """From when and until when each of them is valid."""
    return {one.key: (one.begins, one.ends) for one in expirations(config) if one.ends is not None}


def _of_listeners(config: Config) -> Iterator[Expiration]:
    for number, listener in enumerate(config.listeners):
        if (tls := listener.tls) is not None:
            at = f"listeners[{number}].tls"
            yield from _first("certificate", f"{at}.cert", tls.cert, certificates)
            yield from _first("authority", f"{at}.ca", tls.ca, certificates)
            for place, path in enumerate(tls.crl):
                yield from _first("revocation list", f"{at}.crl[{place}]", path, revocation_lists)
            if tls.crl and tls.ca:
                yield from _missing_lists(f"{at}.crl", tls.ca, tls.crl)


def _missing_lists(setting: str, authorities: str, lists: tuple[str, ...]) -> Iterator[Expiration]:
    try:
        missing = without_list(Path(authorities).read_bytes(), [Path(path).read_bytes() for path in lists])
    except (OSError, DerError):
        return  # the file itself is reported
    if missing:
        names = ", ".join(repr(one.common_name) if one.common_name else "one without a common name" for one in missing)
        problem = (
            f"has no list of {names} of {authorities}: every client with a certificate of this authority is refused"
        )
        yield Expiration("revocation list", "", setting, "", 0.0, None, problem)


def _of_cluster(config: Config) -> Iterator[Expiration]:
    if config.cluster.enabled or config.streams.listen:
        yield from _first("certificate", "cluster.tls.cert", config.cluster.tls.cert, certificates)
    if config.cluster.enabled:
        yield from _first("authority", "cluster.tls.ca", config.cluster.tls.ca, certificates)
        if (etcd := config.cluster.etcd.tls) is not None:
            yield from _first("certificate", "cluster.etcd.tls.cert", etcd.cert, certificates)
            yield from _first("authority", "cluster.etcd.tls.ca", etcd.ca, certificates)


def _of_bridges(config: Config) -> Iterator[Expiration]:
    for section, bridges in (("bridges", config.bridges), ("links", config.links)):
        for number, bridge in enumerate(bridges):
            path = f"{section}[{number}].tls"
            yield from _first("certificate", f"{path}.cert", bridge.tls.cert, certificates)
            yield from _first("authority", f"{path}.ca", bridge.tls.ca, certificates)


def _of_tokens(config: Config) -> Iterator[Expiration]:
    yield from _read("key set", "auth.jwt.jwks_file", config.auth.jwt.jwks_file, _end_of_keys)
    yield from _first("authority", "auth.api.oidc.ca", config.auth.api.oidc.ca, certificates)
    for setting, path in (
        ("auth.api.token_file", config.auth.api.token_file),
        ("nats.token_file", config.nats.token_file),
        ("streams.token_file", config.streams.token_file),
        ("tracing.headers_file", config.tracing.headers_file),
    ):
        yield from _read("token", setting, path, _end_of_tokens)
    texts = {"streams.token": config.streams.token, "auth.http.headers": "\n".join(config.auth.http.headers)}
    for setting, text in texts.items():
        if found := _end_of_tokens(text.encode()):
            yield Expiration("token", found[0], setting, "", *found[1:])


def _first(kind: Kind, setting: str, path: str | None, read: Callable[[bytes], list[Validity]]) -> Iterator[Expiration]:
    def first_end(content: bytes) -> End | None:
        found = min(latest(read(content)), key=lambda one: one.ends, default=None)
        return None if found is None else (found.common_name, found.begins, found.ends)

    return _read(kind, setting, path, first_end)


def _read(kind: Kind, setting: str, path: str | None, end_of: Callable[[bytes], End | None]) -> Iterator[Expiration]:
    """``end_of`` the content: the first end in the file; None: there is none. It raises ValueError."""
    if path:
        try:
            if found := end_of(Path(path).read_bytes()):
                yield Expiration(kind, found[0], setting, path, *found[1:])
        except OSError as error:
            yield Expiration(kind, "", setting, path, 0.0, None, error.strerror or str(error))
        except ValueError as error:
            yield Expiration(kind, "", setting, path, 0.0, None, str(error))


def _end_of_keys(content: bytes) -> End | None:
    """Raises ValueError."""
    try:
        keys = [(_end_of_key(key), str(key.get("kid", ""))) for key in json.loads(content)["keys"]]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"is not a JSON Web Key Set: {error}") from None
    ends = [(end, name) for end, name in keys if end is not None]
    return (max(ends)[1], 0.0, max(ends)[0]) if ends and len(ends) == len(keys) else None


def _end_of_key(key: dict[str, Any]) -> float | None:
    found = [_time(key["exp"])] if "exp" in key else []
    found += [certificate(base64.b64decode(one)).ends for one in key.get("x5c", ())[:1]]
    return min(found, default=None)


def _time(value: Any) -> float:
    """Seconds since 1970. Raises ValueError for what is no time until the year 9999, such as milliseconds."""
    try:
        seconds = float(value)
    except OverflowError:
        seconds = -1.0
    if not 0.0 <= seconds < TIME_MAX:
        raise ValueError(f"{value!r:.40} is not a time in seconds")
    return seconds


def _end_of_tokens(content: bytes) -> End | None:
    """Of the token that ends first."""
    found = [one for match in _TOKEN.finditer(content) if (one := _end_of_token(match[1])) is not None]
    return min(found, key=lambda one: one[2], default=None)


def _end_of_token(claims: bytes) -> End | None:
    """Of a JSON Web Token (RFC 7519); None for other words with two dots."""
    try:
        read = json.loads(base64.urlsafe_b64decode(claims + b"=" * (-len(claims) % 4)))
        return "", _time(read.get("nbf", read.get("iat", 0.0))), _time(read["exp"])
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        return None
