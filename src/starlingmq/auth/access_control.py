"""Access control of a broker: the settings, the hook of the embedding program, and bans."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from starlingmq.auth.automatic_bans import AutomaticBans, Ban, Kind
from starlingmq.auth.stored_access import NOTHING_STORED, StoredAccess
from starlingmq.config.auth_section import AuthConfig, admits_anonymous, methods_of
from starlingmq.config.cluster_section import cluster_secret
from starlingmq.config.section_types import ConfigError
from starlingmq.config.settings import Config
from starlingmq.core.broker import BrokerState
from starlingmq.core.context.context import everything
from starlingmq.core.context.ready import PUBLISH_REFUSED, Refusal
from starlingmq.core.nats.nkey_auth import NKEY, Verify
from starlingmq.core.session.connection import UNPROVED
from starlingmq.core.session.session import Client
from starlingmq.core.session.session_user import RULES
from starlingmq.hooks import Hooks
from starlingmq.log import SparingLog
from starlingmq.net.connector_counts import ConnectorCounts
from starlingmq.net.listeners.nkey_signatures import verifier
from starlingmq.wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlingmq.auth.acl import Rule
    from starlingmq.auth.chain import Chain
    from starlingmq.auth.passwords import Hashing
    from starlingmq.auth.rule_check import CheckedAction, RuleAnswer, RuleQuestion

SEARCHED_MAX: Final = 1000  # rules that are looked through for a line of the log ...
OWN_MAX: Final = 20  # ... if at most so many of them are for the client: a few milliseconds
SHARE: Final = 0.01  # of the time of the event loop, for these searches ...
AHEAD: Final = 5.0  # ... as much as is due for so many seconds may be taken at once
DENIED: Final = "the rules deny it; starlingmq ctl may names the rule"


class AccessControl:
    """``hooks.authenticate`` is at first that of the program; with a chain it is that of the chain. ``chain`` is None
    if the settings do not restrict clients, ``hashing`` if no passwords are checked. ``stored``: the users and rules
    that operators made."""

    def __init__(self, config: Config, hooks: Hooks, lines: SparingLog) -> None:
        self.config = config
        self.hooks = hooks
        self.own_hook = hooks.authenticate
        self.bans = AutomaticBans(config.auth.failures, config.auth.flapping)
        self.hashing: Hashing | None = None
        self.chain: Chain | None = None
        self.stored = NOTHING_STORED
        self.callout_counts = ConnectorCounts()
        self._lines = lines
        self._state: BrokerState | None = None
        self._paid_until = 0.0  # until then the searches of rules for the log have taken their share

    # Serving

    def start(self) -> asyncio.Future[None] | None:
        """Begin to decide. Returns an awaitable to wait for before clients are accepted, since otherwise the first
        logins would wait for it. Raises ConfigError."""
        self.hashing = self._make_hashing(self.config.auth, self.stored)
        self._use(self.make_chain(self.config, self.hashing))
        return None if self.hashing is None else asyncio.ensure_future(self.hashing.verifier.warm())

    def attach(self, state: BrokerState) -> None:
        """Set the broker whose clients it decides about."""
        self._state = state
        self._decide(state)

    def admit(self, state: BrokerState, config: Config) -> None:
        """Give the core the function that decides about a CONNECT."""
        auth = config.auth
        state.ctx.admit_by(
            self.hooks.authenticate is not None, auth.allow_anonymous is not False, RULES[auth.session_owner]
        )

    def anonymous(self, config: Config) -> bool:
        """Whether these settings let clients in without a login."""
        return self.own_hook is None and admits_anonymous(self.stored.effective(config.auth))

    def is_banned(self, address: str) -> bool:
        return self.bans.of(monotonic(), address, "", "") is not None

    def ban(self, kind: Kind, name: str, seconds: float, reason: str) -> Ban:
        """Ban an address, a user or a client for a while. Connections that exist are kept."""
        ban = self.bans.ban(kind, name, monotonic() + seconds, reason)
        if self.chain is None:  # until now no CONNECT was checked
            self._use(self.make_chain(self.config, self.hashing))
            if self._state is not None:
                self.admit(self._state, self.config)
        return ban

    def ask_rules(self, question: RuleQuestion) -> RuleAnswer:
        """Whether the present rules allow something, and which one decides."""
        from starlingmq.auth.rule_check import check_rules

        rules = self.config.auth.acl
        acl = self.chain.acl if self.chain is not None and (rules.file or self.stored.rules) else None
        return check_rules(acl, rules.file, question, rules.filter == "deliver")

    def why_refused(self, refusal: Refusal) -> str:
        """The rule that decides about a publish or a subscription, in one line. Clients cause these searches in the
        event loop, so they take a hundredth of its time at most; otherwise ``DENIED``."""
        from starlingmq.auth import rule_check  # noqa: F401  to load it is no part of the first search

        began = monotonic()
        source = None if refusal.rights is None else refusal.rights.source
        granted = source if isinstance(source, tuple) else None
        if self._paid_until > began + AHEAD or not self._is_searched(refusal, granted or ()):
            return DENIED
        reason = self._search(refusal, granted)
        self._paid_until = max(self._paid_until, began) + (monotonic() - began) / SHARE
        return reason

    def _is_searched(self, refusal: Refusal, granted: Sequence[Rule]) -> bool:
        acl = None if self.chain is None else self.chain.acl
        rules = granted if acl is None else (*granted, *acl.rules)
        if len(rules) > SEARCHED_MAX:
            return False
        who = refusal.client_id, refusal.username, refusal.peer, refusal.listener
        return sum(rule.is_for(*who) for rule in rules) <= OWN_MAX

    def _search(self, refusal: Refusal, granted: Sequence[Rule] | None) -> str:
        from starlingmq.auth.rule_check import RuleQuestion

        publishes = refusal.reason == PUBLISH_REFUSED
        action: CheckedAction = "publish" if publishes else "group" if refusal.group else "subscribe"
        asked = RuleQuestion(
            refusal.client_id,
            refusal.username,
            refusal.peer,
            action,
            refusal.topic,
            refusal.qos,
            refusal.retain,
            refusal.group,
            granted,
            connected=True,
            listener=refusal.listener,
        )
        found = self.ask_rules(asked)
        return "the rules have changed since" if found.allowed else found.reason

    # Settings

    def hashing_for(self, config: Config) -> Hashing | None:
        """The existing one, or one for these settings. Raises ConfigError."""
        return self.hashing or self._make_hashing(config.auth, self.stored)

    def _make_hashing(self, config: AuthConfig, stored: StoredAccess) -> Hashing | None:
        """The password checker of a broker; None if no passwords are checked. Raises ConfigError."""
        if not ("password" in methods_of(config) or config.api.users or config.api.viewers or stored.users):
            return None
        try:
            from starlingmq.auth.passwords import Hashing
        except ImportError as error:
            raise ConfigError(f"auth.password: {error}; run pip install '.[auth]' in the sources") from None
        return Hashing(self.bans, config.password.waiting_per_address)

    def make_chain(self, config: Config, hashing: Hashing | None) -> Chain | None:
        """None if the settings do not restrict clients. Raises ConfigError."""
        auth, stored = config.auth, self.stored
        banned = next(self.bans.all(monotonic()), None) is not None
        of_nats = config.nats.token_file or config.nats.no_auth_user
        restricts = methods_of(auth) or of_nats or auth.acl.file or auth.flapping.limit
        if not restricts and not banned and not stored.users and not stored.rules:
            return None
        from starlingmq.auth.chain import Chain

        salts = b"" if self.chain is None else self.chain.salts
        salts = cluster_secret(config.cluster) or salts  # the same at all nodes, whatever passwords they have read
        return Chain(
            auth, self.bans, self.own_hook, config.nats, hashing, self._lines, self.callout_counts, stored, salts
        )

    def use_stored(self, stored: StoredAccess) -> None:
        """Decide with these users and rules from now on, also about connected clients. Raises ConfigError, and then
        nothing has changed."""
        assert self._state is not None
        if stored == self.stored:
            return
        hashing = self.hashing or self._make_hashing(self.config.auth, stored)
        if self.chain is not None:
            self.chain.use(stored, hashing)
        earlier, self.stored = self.stored, stored
        if self.chain is None:
            try:
                self._use(self.make_chain(self.config, hashing))
            except ConfigError:
                self.stored = earlier
                raise
        self._warm(hashing)
        self.admit(self._state, self.config)
        self._state.entitle()

    def _warm(self, hashing: Hashing | None) -> None:
        if hashing is not None and self.hashing is None:
            self._warming = asyncio.ensure_future(hashing.verifier.warm())
        self.hashing = hashing

    def verifier(self, config: Config) -> Verify | None:
        """None if no NATS client has to sign. Raises ConfigError."""
        if not config.nats.nkeys and self.hooks.authenticate is None:
            return None
        return verifier(bool(config.nats.nkeys))

    def reload(self, config: Config, chain: Chain | None, hashing: Hashing | None) -> None:
        """Use new settings, from which ``chain`` and ``hashing`` were made."""
        assert self._state is not None
        self.config = config
        self.bans.configure(config.auth.failures, config.auth.flapping)
        self._warm(hashing)
        if hashing is not None:
            hashing.checks.key_max = config.auth.password.waiting_per_address
        self._use(chain)
        self.admit(self._state, config)
        self._state.entitle()

    def _use(self, chain: Chain | None) -> None:
        earlier, self.chain = self.chain, chain
        self.hooks.authenticate = self.own_hook if chain is None else chain.authenticate
        if self._state is not None:
            self._decide(self._state)
        if earlier is not None:
            self._closing = asyncio.ensure_future(earlier.close())

    def _decide(self, state: BrokerState) -> None:
        """Give the core the functions that decide about connected clients."""
        if self.chain is None:
            state.ctx.decide(everything, self._standing_of)
        else:
            state.ctx.decide(self.chain.rights_of, self.chain.standing_of)

    def _standing_of(self, client: Client) -> int:
        """Whether a client would be admitted, where the settings do not restrict clients."""
        state = self._state
        assert state is not None
        keys = state.nats.keys.known
        standing = client.standing
        if self.own_hook is not None or standing is UNPROVED:
            return Reason.SUCCESS
        if isinstance(standing, tuple) and standing[0] == NKEY and standing[1] in keys:
            return Reason.SUCCESS
        asked = client.version == 0 and bool(keys)
        return Reason.SUCCESS if state.ctx.allow_anonymous and not asked else Reason.NOT_AUTHORIZED

    async def close(self) -> None:
        if self.chain is not None:
            await self.chain.close()
        if self.hashing is not None:
            await self.hashing.close()
