"""One network connection as pure state: what was read and not yet handled, what is to be written, what was agreed.

The law of writing: frames leave in the order in which they were put into ``frames``. Once a frame waits for
storage, every later frame of the same connection waits behind it (``stored_from``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from starlingmq.core.limits.access import Rights
    from starlingmq.core.limits.quotas import Meter
    from starlingmq.core.protocol_handler import ProtocolHandler
    from starlingmq.core.session.producers import Production
    from starlingmq.core.session.session import Session

NEW: Final = 0  # nothing but CONNECT is welcome
AUTHENTICATING: Final = 1  # CONNECT seen; the answer of ``authenticate`` or an AUTH packet is awaited
OPEN: Final = 2
CLOSED: Final = 3

UNPROVED: Final = "unproved"  # ``Client.standing`` of a client of which only the name is kept, with its will

# Why a connection is not read, as bits of ``Client.halted``.
ASKING: Final = 1  # a question to a hook is open
HELD: Final = 2  # a receiver's queue is full
TURN_OVER: Final = 4  # its share of this turn is used up
WORKING: Final = 8  # one of its packets is being worked off over several turns
PACED: Final = 32  # it has published faster than it may
DEAF: Final = 16  # it sends but does not read: our answers would pile up without bound


class Client:
    transport: Any  # the shell's handle, never touched here
    listener: str
    peer: str
    certificate_name: str  # by a verified client certificate (net.listeners.client_certificate), "" without
    identity: bool  # that name is its user name, whatever CONNECT says
    state: int
    version: int  # 3, 4 or 5; 0: it speaks ...
    dialect: ProtocolHandler | None  # ... another protocol than MQTT
    client_id: str
    username: str
    rights: Rights | None  # what it may do; None: whatever hooks do not forbid
    rules: int  # the rules (``Context.rules``) by which it was let in
    standing: object  # what it has shown to be let in: a note of whoever decided; UNPROVED: it is not known
    assigned: bool  # its client id is the broker's choice
    counted_as: str  # the user whose connection this is, for core.limits.quotas
    production: Production | None  # it numbers what it publishes (see core.session.producers)
    meter: Meter | None  # how fast it may publish; None: as fast as it can
    valid_until: float  # when it has to be gone, or to have proved anew who it is; 0.0: never
    session: Session | None
    connected_at: float
    last_packet: float
    keep_alive: float  # seconds without a packet after which the connection is closed; 0.0: never
    check_at: float  # when the timer wheel looks at this connection next; 0.0: it does not
    # reading
    rest: bytes  # read, not yet handled
    chunks: list[bytes] | None  # more of the same while a large frame comes in
    missing: int  # bytes until that frame is complete
    halted: int
    # writing
    frames: list[bytes]
    size: int  # bytes in ``frames``, and ``unstored`` ones
    stored_from: int  # frames from this index on wait for this turn's writes; -1: none does
    unstored: int  # bytes of frames that wait for storage and are no longer in ``frames``
    waiting: int  # turns whose writes are not yet stored and that hold frames of this connection
    dirty: bool
    blocked: bool  # the transport holds more than it should
    heard: int  # bytes read from it while it was blocked
    published: int  # messages that came from it
    bytes_in: int
    bytes_out: int
    closing: bool  # to be closed after ``frames`` are written
    # agreed at CONNECT
    window_limit: int
    max_packet: int  # the client's Maximum Packet Size, 0: no limit
    aliases: dict[int, bytes] | None  # topic aliases the client set
    alias_limit: int  # highest alias the client may set
    aliases_out: dict[bytes, int] | None  # topic aliases we set
    alias_out_limit: int
    bridge: bool  # it may tell its state below $SYS/ (see core.mqtt.bridges)
    mirrors: bool  # 3.x, bit 7 of its level was set: its subscriptions are No Local and Retain As Published
    plain: bool  # neither of the last two: it takes the frames that are shared between receivers
    problem_information: bool
    auth_method: str
    challenged: bool  # its next AUTH is awaited
    full: int  # the reason with which its CONNECT is refused, for there were connections enough; 0: it is not
    mute: bool  # the shell's note that nothing more may be written: something before it could not be stored
    last_words: bool  # it is closed with something left for the client to read
    paused: bool  # the shell's note whether it reads the transport
    link: bool  # not a client but the way to another node of the cluster (see core.routing.peer_receivers)
    gone: bool  # the transport is closed; what it sent before is still being handled

    def __init__(self, listener: str, peer: str, now: float) -> None:
        self.transport = None
        self.listener = listener
        self.peer = peer
        self.certificate_name = ""
        self.identity = False
        self.state = NEW
        self.version = 4
        self.dialect = None
        self.client_id = ""
        self.username = ""
        self.rights = None
        self.rules = 0
        self.standing = None
        self.assigned = False
        self.counted_as = ""
        self.production = None
        self.meter = None
        self.valid_until = 0.0
        self.session = None
        self.connected_at = now
        self.last_packet = now
        self.keep_alive = 0.0
        self.check_at = 0.0
        self.rest = b""
        self.chunks = None
        self.missing = 0
        self.halted = 0
        self.frames = []
        self.size = 0
        self.stored_from = -1
        self.unstored = 0
        self.waiting = 0
        self.dirty = False
        self.blocked = False
        self.heard = 0
        self.published = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.closing = False
        self.window_limit = 65535
        self.max_packet = 0
        self.aliases = None
        self.alias_limit = 0
        self.aliases_out = None
        self.alias_out_limit = 0
        self.bridge = False
        self.mirrors = False
        self.plain = True
        self.problem_information = True
        self.auth_method = ""
        self.challenged = False
        self.full = 0
        self.link = False
        self.mute = False
        self.last_words = False
        self.paused = False
        self.gone = False
