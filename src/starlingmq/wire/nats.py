"""Parser for the commands of a NATS client; it does not interpret them.

``NatsReader.read`` parses the command that begins where the previous one ended, and stores its parts in the reader's
fields: compiled, this allocates no object per command. An incomplete command changes nothing and is parsed again from
its beginning when more bytes have arrived; ``missing`` is the number of bytes that a payload still needs, so that the
caller does not try earlier.

Bounds: a control line has at most ``line_max`` bytes, a payload with its headers ``payload_max``.

A protocol error raises NatsError with the text of the ``-ERR`` to send.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

MORE: Final = 0  # the command is not complete
PUB: Final = 1
HPUB: Final = 2
SUB: Final = 3
UNSUB: Final = 4
PING: Final = 5
PONG: Final = 6
CONNECT: Final = 7

LINE_MAX: Final = 4096
PAYLOAD_MAX: Final = 1024 * 1024

# Texts that client libraries compare an -ERR with.
UNKNOWN_OPERATION: Final = "Unknown Protocol Operation"
PARSER_ERROR: Final = "Parser Error"
LINE_TOO_LONG: Final = "Maximum Control Line Exceeded"
PAYLOAD_TOO_LARGE: Final = "Maximum Payload Violation"

_DIGITS_MAX: Final = 10  # digits of a number: more than any bound has, few enough for an integer
_BLANKS: Final = b" \t"


class NatsError(Exception):
    """``text`` is sent to the client before its connection is closed."""

    text: str

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class NatsReader:
    """The parts of the last command. PUB and HPUB: ``subject``, ``reply`` (b"" without), ``headers`` (b"" without) and
    ``payload``. SUB: ``subject``, ``queue`` (b"" without), ``sid``. UNSUB: ``sid``, ``number`` (0 without). CONNECT:
    ``options``, the JSON as it came. ``end`` is where the next command begins."""

    line_max: int
    payload_max: int
    end: int
    missing: int  # with MORE: bytes still needed; 0: unknown
    subject: bytes
    reply: bytes
    queue: bytes
    sid: bytes
    number: int
    headers: bytes
    payload: bytes
    options: bytes
    lead: int  # of a PUB without reply in the shortest form: where its size begins; 0: it has another form

    def __init__(self, line_max: int = LINE_MAX, payload_max: int = PAYLOAD_MAX) -> None:
        self.line_max = line_max
        self.payload_max = payload_max
        self.end = 0
        self.missing = 0
        self.subject = b""
        self.reply = b""
        self.queue = b""
        self.sid = b""
        self.number = 0
        self.headers = b""
        self.payload = b""
        self.options = b""
        self.lead = 0

    def read(self, data: bytes, pos: int) -> int:
        """Parse the command that begins at ``pos`` and return its constant from above. Raises NatsError."""
        size = len(data)
        self.missing = 0
        if size - pos < 4:
            if _may_begin_a_command(data, pos):
                return MORE
            raise NatsError(UNKNOWN_OPERATION)
        first = data[pos] | 0x20
        second = data[pos + 1] | 0x20
        third = data[pos + 2] | 0x20
        fourth = data[pos + 3]
        if first == 0x70:  # p
            if second == 0x75 and third == 0x62 and (fourth == 0x20 or fourth == 0x09):
                return self._published(data, pos, pos + 4, PUB)
            if second == 0x69 and third == 0x6E and fourth | 0x20 == 0x67:
                return self._bare(data, pos, PING)
            if second == 0x6F and third == 0x6E and fourth | 0x20 == 0x67:
                return self._bare(data, pos, PONG)
        elif first == 0x68:  # h
            if second == 0x70 and third == 0x75 and fourth | 0x20 == 0x62:
                if size - pos < 5:
                    return MORE
                if data[pos + 4] == 0x20 or data[pos + 4] == 0x09:
                    return self._published(data, pos, pos + 5, HPUB)
        elif first == 0x73:  # s
            if second == 0x75 and third == 0x62 and (fourth == 0x20 or fourth == 0x09):
                return self._subscribed(data, pos)
        elif first == 0x75 or first == 0x63:  # u, c
            return self._word(data, pos, b"unsub" if first == 0x75 else b"connect")
        raise NatsError(UNKNOWN_OPERATION)

    def _word(self, data: bytes, pos: int, word: bytes) -> int:
        at = pos + len(word)
        given = data[pos:at].lower()
        if given != word:
            if word.startswith(given):
                return MORE
            raise NatsError(UNKNOWN_OPERATION)
        if at >= len(data):
            return MORE
        if data[at] != 0x20 and data[at] != 0x09:
            raise NatsError(UNKNOWN_OPERATION)
        line = self._line(data, pos, at)
        if line is None:
            return MORE
        if word == b"connect":
            self.options = line.strip(_BLANKS)
            return CONNECT
        parts = line.split()
        if len(parts) == 0 or len(parts) > 2:
            raise NatsError(PARSER_ERROR)
        self.sid = parts[0]
        self.number = _limit(parts[1]) if len(parts) == 2 else 0
        return UNSUB

    def _line(self, data: bytes, pos: int, at: int) -> bytes | None:
        """Return the rest of the control line from ``at`` on, without its line end; None if the line is incomplete."""
        end = data.find(b"\n", at, pos + self.line_max + 2)
        if end < 0:
            if len(data) - pos > self.line_max + 1:
                raise NatsError(LINE_TOO_LONG)
            return None
        self.end = end + 1
        if data[end - 1] == 0x0D:
            end -= 1
        if end - pos > self.line_max:
            raise NatsError(LINE_TOO_LONG)
        return data[at:end]

    def _bare(self, data: bytes, pos: int, kind: int) -> int:
        if len(data) - pos >= 6 and data[pos + 4] == 0x0D and data[pos + 5] == 0x0A:
            self.end = pos + 6
            return kind
        line = self._line(data, pos, pos + 4)
        if line is None:
            return MORE
        if line.strip(_BLANKS):
            raise NatsError(UNKNOWN_OPERATION)
        return kind

    def _subscribed(self, data: bytes, pos: int) -> int:
        line = self._line(data, pos, pos + 4)
        if line is None:
            return MORE
        parts = line.split()
        if len(parts) == 2:
            self.queue = b""
        elif len(parts) == 3:
            self.queue = parts[1]
        else:
            raise NatsError(PARSER_ERROR)
        self.subject = parts[0]
        self.sid = parts[-1]
        return SUB

    def _published(self, data: bytes, pos: int, start: int, kind: int) -> int:
        """PUB subject [reply] size, HPUB subject [reply] header-size size; then ``size`` bytes, then CR LF.

        The line is scanned byte by byte: every message takes this path, and compiled it is faster than splitting into a
        list of words.

        Long because each call would cost time per message.
        """
        size: i64 = len(data)
        at: i64 = start
        first: i64 = at  # start of each word ...
        second: i64 = at
        third: i64 = at
        fourth: i64 = at
        first_end: i64 = at  # ... and its end
        second_end: i64 = at
        third_end: i64 = at
        fourth_end: i64 = at
        count = 0
        while True:
            while at < size and (data[at] == 0x20 or data[at] == 0x09):
                at += 1
            begin: i64 = at
            while at < size:
                byte = data[at]
                if byte <= 0x20 and (byte == 0x20 or byte == 0x0D or byte == 0x0A or byte == 0x09):
                    break
                at += 1
            if at >= size:
                return self._no_line_end(size - pos)
            if at != begin:
                count += 1
                if count == 1:
                    first, first_end = begin, at
                elif count == 2:
                    second, second_end = begin, at
                elif count == 3:
                    third, third_end = begin, at
                elif count == 4:
                    fourth, fourth_end = begin, at
                else:
                    raise NatsError(PARSER_ERROR)
            byte = data[at]
            if byte == 0x0A:
                break
            if byte == 0x0D:
                if at + 1 >= size:
                    return self._no_line_end(size - pos)
                if data[at + 1] != 0x0A:
                    raise NatsError(PARSER_ERROR)
                at += 1
                break
        at += 1
        if at - pos > self.line_max + 2:
            raise NatsError(LINE_TOO_LONG)
        needed = kind + 1  # without a reply
        if count != needed and count != needed + 1:
            raise NatsError(PARSER_ERROR)
        if count == 2:
            length = _number(data, second, second_end)
        elif count == 3:
            length = _number(data, third, third_end)
        else:
            length = _number(data, fourth, fourth_end)
        if length > self.payload_max:
            raise NatsError(PAYLOAD_TOO_LARGE)
        head: i64 = 0
        if kind == HPUB:
            head = _number(data, second, second_end) if count == 3 else _number(data, third, third_end)
            if head > length:
                raise NatsError(PARSER_ERROR)
        end: i64 = at + length
        if end + 2 > size:
            if end < size and data[end] != 0x0D:
                raise NatsError(PARSER_ERROR)
            self.missing = end + 2 - size
            return MORE
        if data[end] != 0x0D or data[end + 1] != 0x0A:
            raise NatsError(PARSER_ERROR)
        self.subject = data[first:first_end]
        self.reply = data[second:second_end] if count != needed else b""
        self.headers = data[at : at + head] if head != 0 else b""
        self.payload = data[at + head : end]
        self.end = end + 2
        self.lead = 0
        if (
            count == 2
            and data[second - 1] == 0x20
            and second_end + 2 == at
            and (data[second] != 0x30 or second_end == second + 1)
        ):
            self.lead = second
        return kind

    def read_on(self, data: bytes, pos: int, tails: list[bytes], count: int, room: int) -> None:
        """Read the PUBs with the same subject that follow the PUB at ``pos``, which was read last and has a ``lead``.

        ``tails`` gets what follows the subject of each one, the PUB at ``pos`` included: a blank, the size, CR LF, the
        payload, CR LF. At most ``count`` are read, and no more of them after ``room`` bytes. Everything that is
        incomplete, malformed or written in another way is left to ``read``.
        """
        size: i64 = len(data)
        begin: i64 = pos
        at: i64 = self.lead
        end: i64 = self.end
        width: i64 = at - begin
        line_end: i64 = 0
        length: i64 = 0
        length_max: i64 = self.payload_max
        left: i64 = room
        wanted: i64 = count
        lead = data[begin:at]
        tails.append(data[at - 1 : end])
        left -= end - begin
        wanted -= 1
        while wanted > 0 and left >= 0:
            begin = end
            at = begin + width
            if at >= size or data[begin:at] != lead:
                break
            line_end = at
            length = 0
            while line_end < size and line_end - at < _DIGITS_MAX:
                digit = data[line_end] - 0x30
                if digit < 0 or digit > 9:
                    break
                length = length * 10 + digit
                line_end += 1
            if line_end == at or (data[at] == 0x30 and line_end != at + 1) or length > length_max:
                break
            end = line_end + length + 4
            if (
                end > size
                or line_end - begin > self.line_max
                or data[line_end] != 0x0D
                or data[line_end + 1] != 0x0A
                or data[end - 2] != 0x0D
                or data[end - 1] != 0x0A
            ):
                end = begin
                break
            tails.append(data[at - 1 : end])
            left -= end - begin
            wanted -= 1
        self.end = end

    def _no_line_end(self, have: int) -> int:
        if have > self.line_max + 1:
            raise NatsError(LINE_TOO_LONG)
        return MORE


def _may_begin_a_command(data: bytes, pos: int) -> bool:
    given = data[pos:].lower()
    return (
        b"pub".startswith(given)
        or b"ping".startswith(given)
        or b"pong".startswith(given)
        or b"sub".startswith(given)
        or b"hpub".startswith(given)
        or b"unsub".startswith(given)
        or b"connect".startswith(given)
    )


def _limit(word: bytes) -> int:
    """Parse the limit of an UNSUB. Anything but a positive number, such as -1, means immediately, as in nats-server."""
    return int(word) if word.isdigit() and len(word) <= _DIGITS_MAX else 0


def _number(data: bytes, start: i64, end: i64) -> i64:
    if not 0 < end - start <= _DIGITS_MAX:
        raise NatsError(PARSER_ERROR)
    value: i64 = 0
    at: i64 = start
    while at < end:
        digit = data[at] - 0x30
        if digit < 0 or digit > 9:
            raise NatsError(PARSER_ERROR)
        value = value * 10 + digit
        at += 1
    return value
