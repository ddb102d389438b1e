"""Whether a broker would start with its settings: the files that they name are read as the broker reads them."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from starlingmq.auth.access_control import AccessControl
from starlingmq.config.api_section import NO_LOGIN_YET, guarded
from starlingmq.config.auth_section import methods_of
from starlingmq.config.section_types import ConfigError
from starlingmq.config.settings import Config, has_logins, refuse_open_listeners, serves_http
from starlingmq.config.tracing_section import tracing_headers
from starlingmq.hooks import Hooks
from starlingmq.log import SparingLog
from starlingmq.net.listeners.listeners import load_tls, parse_listener
from starlingmq.storage.data_dir import refuse_unusable


def check_start(config: Config) -> list[str]:
    """Warnings about settings with which the broker would start. Raises the error with which it would end: ConfigError,
    ListenerError, TlsError, DataDirError. Nothing is written.
    """
    if config.node.data_dir is not None and config.auth.password.first_user and os.geteuid() != 0:
        refuse_unusable(Path(config.node.data_dir))
    refuse_open_listeners(config, authenticated=False)
    for listener in config.listeners:
        load_tls(parse_listener(listener))
    tracing_headers(config.tracing)
    if config.streams.listen:
        from starlingmq.net.bulk_process import check_bulk

        check_bulk(config)
    if config.contracts:
        from starlingmq.rules.contracts import contracts_of

        contracts_of(config.contracts)
    return [*_check_rules(config), *_check_auth(_without_new_file(config))]


def _check_rules(config: Config) -> list[str]:
    """Messages wait for a rule that cannot run."""
    if not config.rules:
        return []
    from starlingmq.rules.rule_file import CheckedRule

    warnings = []
    for rule in config.rules:
        try:
            CheckedRule(rule)
        except ConfigError as error:
            warnings.append(str(error))
    return warnings


def _check_auth(config: Config) -> list[str]:
    """The files of passwords, rules, keys and tokens."""
    access = AccessControl(config, Hooks(), SparingLog(logging.getLogger("starlingmq"), 1))
    hashing = access.hashing_for(config)
    chain = access.make_chain(config, hashing)
    access.verifier(config)
    if guarded(config.auth.api):
        from starlingmq.api.authorization import HttpAuthorization

        HttpAuthorization(config, hashing)
    warnings = []
    if serves_http(config) and has_logins(config) and not guarded(config.auth.api):
        warnings.append(f"the dashboard and the HTTP API refuse all requests of operators: {NO_LOGIN_YET}")
    if chain is not None and config.auth.acl.file:
        from starlingmq.auth.ambiguous_patterns import warnings_of

        warnings += [f"{config.auth.acl.file}: {line}" for line in warnings_of(chain.acl)]
    jwt = config.auth.jwt
    if "jwt" in methods_of(config.auth) and (jwt.public_key_file or jwt.jwks_file) and not jwt.audience:
        warnings.append(
            "auth.jwt.audience is empty, so tokens that the issuer made for other services are accepted; set it to the "
            "value of their claim aud"
        )
    return warnings


def _without_new_file(config: Config) -> Config:
    """Without the password file that the first start creates."""
    password = config.auth.password
    if not password.first_user or not password.file or Path(password.file).exists():
        return config
    without = msgspec.structs.replace(password, file="", first_user="")
    auth = msgspec.structs.replace(config.auth, password=without)
    return msgspec.structs.replace(config, auth=auth)
