"""The one table of MQTT wire cases: frames, and the expected packet or reason code.

Frames are written as pieces: a ``str`` is hexadecimal, ``bytes`` stand for themselves, ``s(...)`` is a field with its
two length bytes. ``frame`` puts first byte and remaining length before them; cases about these write them out.
Expected values come from the specifications, never from the codec.
"""

from __future__ import annotations

from collections.abc import Iterator

from starlingmq.wire.mqtt import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
    Will,
)

from .case_builders import (
    BAD_TEXT,
    ODD_TEXT,
    PROTOCOL,
    TOPIC,
    VERSION,
    Case,
    bad,
    frame,
    good,
    joined,
    other,
    props,
    s,
)
from .property_cases import all_properties_cases, bad_property_cases, encoded, property_cases, publish_property_cases

# --- CONNECT and CONNACK ------------------------------------------------------------------------------------------

HEADS = {3: joined("0006", b"MQIsdp", "03"), 4: joined("0004", b"MQTT", "04"), 5: joined("0004", b"MQTT", "05")}


UNKNOWN_PROTOCOLS = (
    *(("MQTT", level) for level in (0, 3, 6, 0x44, 0x80, 0x83, 0x86)),
    *(("MQIsdp", level) for level in (2, 4, 5, 0x84)),
    ("mqtt", 4),
    ("MQTTX", 5),
    ("", 4),
    ("HTTP", 1),
)


def connect(version: int, flags: int, *rest: str | bytes) -> bytes:
    """A CONNECT with keep alive 60 and, in MQTT 5, no properties; ``rest`` is its payload."""
    return frame(0x10, HEADS[version], bytes((flags,)), "003c", "00" if version == 5 else "", *rest)


def connect_cases() -> Iterator[Case]:
    # The shortest possible CONNECT, as bytes.
    yield good("CONNECT bare", 4, joined("10 0c 0004 4d515454 04 02 0000 0000"), Connect(4))
    yield good("CONNECT bare", 3, joined("10 0f 0006 4d5149736470 03 02 0000 0001 61"), Connect(3, "a"))
    yield good("CONNECT bare", 5, joined("10 0d 0004 4d515454 05 00 ffff 00 0000"), Connect(5, "", False, 65535))
    for v in (3, 4, 5):
        none = b"\0" if v == 5 else b""
        yield good("CONNECT", v, connect(v, 0x02, s("client-1")), Connect(v, "client-1", True, 60))
        marked = HEADS[v][:-1] + bytes((0x80 | v,))  # how mosquitto marks its bridges; it is in no specification
        raw = frame(0x10, marked, "02 003c", none, s("c"))
        yield good("CONNECT of a bridge", v, raw, Connect(v, "c", True, 60, bridge=True))
        yield good("CONNECT keeps session", v, connect(v, 0x00, s("c")), Connect(v, "c", False, 60))
        yield good("CONNECT user", v, connect(v, 0x82, s("c"), s("u")), Connect(v, "c", True, 60, "u"))
        full = connect(v, 0xF6, s("c"), none, s("w/t"), s(b"\0\1"), s("üser"), s(b"\0\xff"))
        will = Will(b"w/t", b"\0\1", 2, True)
        yield good("CONNECT full", v, full, Connect(v, "c", True, 60, "üser", b"\0\xff", will))
        for qos in (0, 1, 2):
            for retain in (False, True):
                flags = 0x06 | qos << 3 | (0x20 if retain else 0)
                raw = connect(v, flags, s("c"), none, s("w"), s(""))
                yield good(
                    f"CONNECT will {qos} {retain}", v, raw, Connect(v, "c", True, 60, will=Will(b"w", b"", qos, retain))
                )
        yield good(
            "CONNECT empty user and password",
            v,
            connect(v, 0xC2, s("c"), s(""), s("")),
            Connect(v, "c", True, 60, "", b""),
        )
        for text in ODD_TEXT:
            yield good(f"CONNECT id {text!r}", v, connect(v, 0x02, s(text)), Connect(v, text, True, 60))
        long = "x" * 65535
        yield good("CONNECT longest id", v, connect(v, 0x02, s(long)), Connect(v, long, True, 60))
    yield good("CONNECT password alone", 5, connect(5, 0x42, s("c"), s("p")), Connect(5, "c", True, 60, None, b"p"))
    # MQTT 3.1: "the Remaining Length field takes precedence over the User Name flag", and the same for the password.
    yield other("CONNECT user announced only", 3, connect(3, 0x82, s("c")), Connect(3, "c", True, 60))
    yield other("CONNECT password announced only", 3, connect(3, 0xC2, s("c"), s("u")), Connect(3, "c", True, 60, "u"))


def bad_connect_cases() -> Iterator[Case]:
    for v in (3, 4, 5):
        none = b"\0" if v == 5 else b""
        yield bad("CONNECT will QoS 3", v, connect(v, 0x1E, s("c"), none, s("w"), s("")))
        for flags in (0x03, 0x0A, 0x12, 0x1A, 0x22, 0x3A):
            raw = connect(v, flags, s("c"))
            if v == 3:  # bit 0 is not used, QoS and RETAIN without a will are ignored
                yield other(f"CONNECT flags {flags:#x}", v, raw, Connect(3, "c", True, 60, protocol_name="MQIsdp"))
            else:
                yield bad(f"CONNECT flags {flags:#x}", v, raw)
        yield bad("CONNECT empty", v, frame(0x10))
        yield bad("CONNECT without id", v, connect(v, 0x02))
        yield bad("CONNECT will missing", v, connect(v, 0x06, s("c"), none))
        yield bad("CONNECT will payload missing", v, connect(v, 0x06, s("c"), none, s("w")))
        yield bad("CONNECT with more", v, connect(v, 0x02, s("c"), b"x"))
        yield bad("CONNECT user not announced", v, connect(v, 0x02, s("c"), s("u")))
        yield bad("CONNECT id too long", v, connect(v, 0x02, "0002", b"c"))
        yield bad("CONNECT password cut", v, connect(v, 0xC2, s("c"), s("u"), "0003", b"pw"))
        for topic in ("", "#", "+", "a/+/b", "a/#"):
            raw = connect(v, 0x06, s("c"), none, s(topic), s(""))
            yield bad(f"CONNECT will topic {topic!r}", v, raw, TOPIC)
        for text in BAD_TEXT:
            yield bad(f"CONNECT id {text!r}", v, connect(v, 0x02, s(text)))
            yield bad(f"CONNECT user {text!r}", v, connect(v, 0x82, s("c"), s(text)))
            yield bad(f"CONNECT will topic {text!r}", v, connect(v, 0x06, s("c"), none, s(text), s("")))
        for flags in (1, 2, 4, 8):
            yield bad(f"CONNECT first byte {flags}", v, frame(0x10 | flags, HEADS[v], "02 0000", none, s("c")))
    for v in (3, 4):
        yield bad("CONNECT password without user", v, connect(v, 0x42, s("c"), s("p")))
    for v in (4, 5):
        yield bad("CONNECT user missing", v, connect(v, 0x82, s("c")))
        yield bad("CONNECT password missing", v, connect(v, 0xC2, s("c"), s("u")))
    for name, level in UNKNOWN_PROTOCOLS:
        raw = frame(0x10, s(name), bytes((level,)), "02 0000 00", s("c"))
        yield bad(f"CONNECT {name!r} level {level}", 5, raw, VERSION)
    yield bad("CONNECT protocol name broken", 4, frame(0x10, s(b"MQ\xffT"), "04 02 0000", s("c")))


def connack_cases() -> Iterator[Case]:
    for v in (3, 4):
        yield good("CONNACK session present", v, joined("20 02 01 00"), Connack(True))
        for code in range(6):
            yield good(f"CONNACK {code}", v, joined("20 02 00", bytes((code,))), Connack(False, code))
        yield bad("CONNACK 6", v, joined("20 02 00 06"), PROTOCOL)
        yield bad("CONNACK with more", v, joined("20 03 00 00 00"))
    yield good("CONNACK", 5, joined("20 03 01 00 00"), Connack(True))
    refusals = (*range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F)
    for code in range(256):
        raw = joined("20 03 00", bytes((code,)), "00")
        legal = code == 0 or code in refusals
        yield (
            good(f"CONNACK {code}", 5, raw, Connack(False, code)) if legal else bad(f"CONNACK {code}", 5, raw, PROTOCOL)
        )
    yield bad("CONNACK without properties", 5, joined("20 02 00 00"))
    for v in (3, 4, 5):
        none = "00" if v == 5 else ""
        yield bad("CONNACK reserved flags", v, frame(0x20, "02 00", none))
        yield bad("CONNACK empty", v, frame(0x20))
        yield bad("CONNACK without code", v, frame(0x20, "00"))
        yield bad("CONNACK session present and refused", v, frame(0x20, "01", "80" if v == 5 else "05", none), PROTOCOL)
        yield bad("CONNACK first byte", v, frame(0x22, "00 00", none))


# --- PUBLISH and its acknowledgements -----------------------------------------------------------------------------


def publish_cases() -> Iterator[Case]:
    yield good("PUBLISH written out", 4, joined("30 07 0003 612f62 6869"), Publish(b"a/b", b"hi"))
    yield good(
        "PUBLISH written out",
        5,
        joined("33 0a 0003 612f62 000a 00 6869"),
        Publish(b"a/b", b"hi", 1, True, packet_id=10),
    )
    for v in (3, 4, 5):
        none = b"\0" if v == 5 else b""
        for first in (0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x3A, 0x3B, 0x3C, 0x3D):
            qos, dup, retain = first >> 1 & 3, bool(first & 8), bool(first & 1)
            pid = b"\xff\xfe" if qos else b""
            packet = Publish(b"a/b", b"payload", qos, retain, dup, 0xFFFE if qos else 0)
            yield good(f"PUBLISH {first:#x}", v, frame(first, s("a/b"), pid, none, b"payload"), packet)
        yield good("PUBLISH without payload", v, frame(0x31, s("a"), none), Publish(b"a", retain=True))
        yield good(
            "PUBLISH QoS 1 without payload", v, frame(0x32, s("a"), "0001", none), Publish(b"a", b"", 1, packet_id=1)
        )
        for size in (0, 100, 127, 128, 255, 256, 16_383, 16_384, 65_535):
            topic, payload = b"t" * max(size, 1), b"p" * size
            yield good(f"PUBLISH topic of {size}", v, frame(0x30, s(topic), none, b"p"), Publish(topic, b"p"))
            yield good(
                f"PUBLISH payload of {size}",
                v,
                frame(0x34, s("t"), "0100", none, payload),
                Publish(b"t", payload, 2, packet_id=256),
            )
        # The codec does not check topics; the core does so once per topic.
        for raw in (b"a/#", b"+", b"\xff", b"a\0b"):
            yield good(f"PUBLISH topic {raw!r}", v, frame(0x30, s(raw), none), Publish(raw))


def bad_publish_cases() -> Iterator[Case]:
    for v in (3, 4, 5):
        none = b"\0" if v == 5 else b""
        for first in (0x36, 0x37, 0x3E, 0x3F):
            yield bad(f"PUBLISH QoS 3 {first:#x}", v, frame(first, s("a"), "0001", none))
        for first in (0x38, 0x39):
            yield bad(f"PUBLISH QoS 0 with DUP {first:#x}", v, frame(first, s("a"), none))
        for first in (0x32, 0x34, 0x3A, 0x3C):
            yield bad(f"PUBLISH packet id 0 {first:#x}", v, frame(first, s("a"), "0000", none, b"x"), PROTOCOL)
            yield bad(f"PUBLISH packet id cut {first:#x}", v, frame(first, s("a"), "00"))
            yield bad(f"PUBLISH packet id missing {first:#x}", v, frame(first, s("a")))
        yield bad("PUBLISH empty", v, frame(0x30))
        yield bad("PUBLISH of one byte", v, frame(0x30, "00"))
        yield bad("PUBLISH topic cut", v, frame(0x30, "0005", b"abc"))
        yield bad("PUBLISH topic far too long", v, frame(0x30, "ffff", b"abc"))
        yield bad("PUBLISH topic empty", v, frame(0x30, "0000", none, b"x"), PROTOCOL)
        yield bad("PUBLISH topic empty and nothing else", v, frame(0x30, "0000", none), PROTOCOL)
        yield bad("PUBLISH QoS 1 topic empty", v, frame(0x32, "0000 0001", none), PROTOCOL)
    only_format = frame(0x30, "0000", props("01 00"), b"x")
    yield bad("PUBLISH topic empty, properties without alias", 5, only_format, PROTOCOL)


PUB_CODES = (0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)
ACK_CODES = {PUBACK: PUB_CODES, PUBREC: PUB_CODES, PUBREL: (0x00, 0x92), PUBCOMP: (0x00, 0x92)}


def ack_cases() -> Iterator[Case]:
    for kind, first in ((PUBACK, 0x40), (PUBREC, 0x50), (PUBREL, 0x62), (PUBCOMP, 0x70)):
        for v in (3, 4, 5):
            for pid in (1, 255, 256, 65535):
                yield good(f"ack {first:#x} {pid}", v, frame(first, pid.to_bytes(2, "big")), Ack(kind, pid))
            yield bad(f"ack {first:#x} packet id 0", v, frame(first, "0000"), PROTOCOL)
            yield bad(f"ack {first:#x} empty", v, frame(first))
            yield bad(f"ack {first:#x} packet id cut", v, frame(first, "01"))
            for flags in range(16):
                if flags != first & 15 and not (v == 3 and first == 0x62 and flags == 10):
                    yield bad(f"ack {first:#x} flags {flags}", v, frame(first & 0xF0 | flags, "0001"))
            if v != 5:
                yield bad(f"ack {first:#x} with reason", v, frame(first, "0001 00"))
        for code in range(256):
            raw = frame(first, "0001", bytes((code,)))
            if code not in ACK_CODES[kind]:
                yield bad(f"ack {first:#x} reason {code}", 5, raw, PROTOCOL)
            elif code:
                yield good(f"ack {first:#x} reason {code}", 5, raw, Ack(kind, 1, code))
        yield other(f"ack {first:#x} success spelled out", 5, frame(first, "0001 00"), Ack(kind, 1))
        yield other(f"ack {first:#x} no properties spelled out", 5, frame(first, "0001 00 00"), Ack(kind, 1))
        yield bad(f"ack {first:#x} with more", 5, frame(first, "0001 00 00 00"))
        yield bad(f"ack {first:#x} property length unfinished", 5, frame(first, "0001 00 80"))
    yield other("PUBREL with DUP", 3, frame(0x6A, "0001"), Ack(PUBREL, 1))


# --- SUBSCRIBE, UNSUBSCRIBE and their answers ---------------------------------------------------------------------


def subscribe_cases() -> Iterator[Case]:
    for v in (3, 4, 5):
        none = b"\0" if v == 5 else b""
        for qos in (0, 1, 2):
            raw = frame(0x82, "000a", none, s("a/+/#"), bytes((qos,)))
            yield good(f"SUBSCRIBE QoS {qos}", v, raw, Subscribe(10, [SubscribeRequest(b"a/+/#", qos)]))
        three = frame(0x82, "ffff", none, s("a"), "00", s("$share/g/b"), "01", s("ü"), "02")
        lines = [SubscribeRequest(b"a"), SubscribeRequest(b"$share/g/b", 1), SubscribeRequest("ü".encode(), 2)]
        yield good("SUBSCRIBE three", v, three, Subscribe(65535, lines))
        yield good(
            "SUBSCRIBE empty filter", v, frame(0x82, "0001", none, s(""), "00"), Subscribe(1, [SubscribeRequest(b"")])
        )
        yield good("UNSUBSCRIBE", v, frame(0xA2, "0001", none, s("a/#")), Unsubscribe(1, [b"a/#"]))
        yield good(
            "UNSUBSCRIBE three",
            v,
            frame(0xA2, "0100", none, s("a"), s("b"), s("a")),
            Unsubscribe(256, [b"a", b"b", b"a"]),
        )
    yield other("SUBSCRIBE with DUP", 3, frame(0x8A, "0001", s("a"), "00"), Subscribe(1, [SubscribeRequest(b"a")]))
    yield other("UNSUBSCRIBE with DUP", 3, frame(0xAA, "0001", s("a")), Unsubscribe(1, [b"a"]))
    for options in range(0x30):
        if options & 3 != 3:
            line = SubscribeRequest(b"f", options & 3, bool(options & 4), bool(options & 8), options >> 4)
            yield good(
                f"SUBSCRIBE options {options:#x}",
                5,
                frame(0x82, "0001 00", s("f"), bytes((options,))),
                Subscribe(1, [line]),
            )


def bad_subscribe_cases() -> Iterator[Case]:
    for v in (3, 4, 5):
        none = b"\0" if v == 5 else b""
        for name, first, option in (("SUBSCRIBE", 0x82, b"\0"), ("UNSUBSCRIBE", 0xA2, b"")):
            yield bad(f"{name} empty", v, frame(first))
            yield bad(f"{name} packet id cut", v, frame(first, "01"))
            yield bad(f"{name} without filter", v, frame(first, "0001", none), PROTOCOL)
            yield bad(f"{name} packet id 0", v, frame(first, "0000", none, s("a"), option), PROTOCOL)
            yield bad(f"{name} filter cut", v, frame(first, "0001", none, "0002", b"a"))
            yield bad(f"{name} filter length cut", v, frame(first, "0001", none, "00"))
            yield bad(f"{name} second filter cut", v, frame(first, "0001", none, s("a"), option, "0001"))
            for text in BAD_TEXT:
                yield bad(f"{name} filter {text!r}", v, frame(first, "0001", none, s(text), option))
            for flags in range(16):
                if flags != 2 and not (v == 3 and flags == 10):
                    raw = frame(first & 0xF0 | flags, "0001", none, s("a"), option)
                    yield bad(f"{name} flags {flags}", v, raw)
        yield bad("SUBSCRIBE without options", v, frame(0x82, "0001", none, s("a")))
        yield bad("SUBSCRIBE second without options", v, frame(0x82, "0001", none, s("a"), "00", s("b")))
        yield bad("SUBSCRIBE QoS 3", v, frame(0x82, "0001", none, s("a"), "03"), PROTOCOL)
        for options in (0x40, 0x80, 0xC1):
            yield bad(f"SUBSCRIBE options {options:#x}", v, frame(0x82, "0001", none, s("a"), bytes((options,))))
    for v in (3, 4):
        for options in (0x04, 0x08, 0x10, 0x20):
            yield bad(f"SUBSCRIBE options {options:#x}", v, frame(0x82, "0001", s("a"), bytes((options,))))
    yield bad("SUBSCRIBE retain handling 3", 5, frame(0x82, "0001 00", s("a"), "30"), PROTOCOL)


def suback_cases() -> Iterator[Case]:
    sub_codes = (0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)
    unsub_codes = (0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)
    yield good("SUBACK", 5, frame(0x90, "0001 00", bytes(sub_codes)), Suback(1, list(sub_codes)))
    yield good("UNSUBACK", 5, frame(0xB0, "0001 00", bytes(unsub_codes)), Unsuback(1, list(unsub_codes)))
    for code in range(256):
        one = bytes((code,))
        if code not in sub_codes:
            yield bad(f"SUBACK {code}", 5, frame(0x90, "0001 00", one), PROTOCOL)
        if code not in unsub_codes:
            yield bad(f"UNSUBACK {code}", 5, frame(0xB0, "0001 00", one), PROTOCOL)
        if code not in (0, 1, 2, 0x80):
            yield bad(f"SUBACK {code}", 4, frame(0x90, "0001", one), PROTOCOL)
    yield bad("UNSUBACK without reasons", 5, frame(0xB0, "0001 00"), PROTOCOL)
    for v in (3, 4):
        yield good("SUBACK", v, joined("90 06 0001 00 01 02 80"), Suback(1, [0, 1, 2, 0x80]))
        yield good("UNSUBACK", v, joined("b0 02 0001"), Unsuback(1))
        yield bad("UNSUBACK with reasons", v, joined("b0 03 0001 00"))
    for v in (3, 4, 5):
        none = b"\0" if v == 5 else b""
        yield bad("SUBACK without codes", v, frame(0x90, "0001", none), PROTOCOL)
        for first in (0x90, 0xB0):
            success = b"\0" if v == 5 or first == 0x90 else b""
            yield bad(f"answer {first:#x} packet id 0", v, frame(first, "0000", none, success), PROTOCOL)
            yield bad(f"answer {first:#x} empty", v, frame(first))
            yield bad(f"answer {first:#x} first byte", v, frame(first | 2, "0001", none, success))


# --- the rest -----------------------------------------------------------------------------------------------------


NOT_FOR_DISCONNECT = (0x84, 0x85, 0x86, 0x88, 0x8A, 0x8C, 0x91, 0x92)
DISCONNECT_CODES = {0x00, 0x04, *range(0x80, 0xA3)} - set(NOT_FOR_DISCONNECT)


def session_cases() -> Iterator[Case]:
    """PINGREQ, PINGRESP, DISCONNECT, AUTH and reserved packet types."""
    for v in (3, 4, 5):
        yield good("PINGREQ", v, joined("c0 00"), Pingreq())
        yield good("PINGRESP", v, joined("d0 00"), Pingresp())
        yield good("DISCONNECT", v, joined("e0 00"), Disconnect())
        yield bad("PINGREQ with more", v, joined("c0 01 00"))
        yield bad("PINGRESP with more", v, joined("d0 02 0000"))
        for flags in range(1, 16):
            for kind in (0xC0, 0xD0, 0xE0, 0xF0):
                yield bad(f"first byte {kind | flags:#x}", v, bytes((kind | flags, 0)))
        for flags in range(16):
            yield bad(f"packet type 0 flags {flags}", v, bytes((flags, 0)))
    for v in (3, 4):
        yield bad("DISCONNECT with reason", v, joined("e0 01 00"))
        yield bad("AUTH", v, joined("f0 00"))
    for code in range(256):
        raw = frame(0xE0, bytes((code,)))
        if code not in DISCONNECT_CODES:
            yield bad(f"DISCONNECT {code}", 5, raw, PROTOCOL)
        elif code:
            yield good(f"DISCONNECT {code}", 5, raw, Disconnect(code))
        named = frame(0xF0, bytes((code,)), props(encoded(0x15)))
        if code in (0, 0x18, 0x19):
            yield good(f"AUTH {code}", 5, named, Auth(code, {0x15: "SCRAM"}))
        else:
            yield bad(f"AUTH {code}", 5, named, PROTOCOL)
    yield good("AUTH", 5, joined("f0 00"), Auth())
    yield other("DISCONNECT success spelled out", 5, joined("e0 01 00"), Disconnect())
    yield other("DISCONNECT no properties spelled out", 5, joined("e0 02 00 00"), Disconnect())
    yield bad("DISCONNECT with more", 5, joined("e0 03 00 00 00"))
    yield bad("DISCONNECT property length unfinished", 5, joined("e0 02 00 80"))
    yield bad("AUTH without property length", 5, joined("f0 01 18"))
    yield bad("AUTH without method", 5, joined("f0 02 18 00"), PROTOCOL)
    yield bad("AUTH with data, without method", 5, frame(0xF0, "18", props(encoded(0x16))), PROTOCOL)
    yield bad("AUTH with more", 5, frame(0xF0, "18", props(encoded(0x15)), "00"))


def all_cases() -> Iterator[Case]:
    yield from connect_cases()
    yield from bad_connect_cases()
    yield from connack_cases()
    yield from publish_cases()
    yield from bad_publish_cases()
    yield from ack_cases()
    yield from subscribe_cases()
    yield from bad_subscribe_cases()
    yield from suback_cases()
    yield from session_cases()
    yield from property_cases()
    yield from all_properties_cases()
    yield from publish_property_cases()
    yield from bad_property_cases()


CASES = list(all_cases())
GOOD = [case for case in CASES if case.packet is not None]
BAD = [case for case in CASES if case.packet is None]
