"""The options of Spark that have an effect on a payload, by format."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

from starlingmq.config.section_types import ConfigError

FLAGS: Final = (  # true or false
    *("allowComments", "allowUnquotedFieldNames", "allowSingleQuotes", "allowNumericLeadingZeros"),
    *("allowNonNumericNumbers", "allowBackslashEscapingAnyCharacter", "allowUnquotedControlChars"),
    *("enableDateTimeParsingFallback", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace"),
)
NUMBERS: Final = ("maxNestingDepth", "maxNumLen", "maxStringLen", "maxColumns", "maxCharsPerColumn")
TEXTS: Final = ("dateFormat", "timestampFormat", "timestampNTZFormat", "timeFormat", "timeZone", "locale")
OF_JSON: Final = (*FLAGS[:8], *NUMBERS[:3], *TEXTS)
OF_CSV: Final = (
    *("sep", "delimiter", "quote", "escape", "charToEscapeQuoteEscaping", "unescapedQuoteHandling"),
    *("nullValue", "emptyValue", "nanValue", "positiveInf", "negativeInf"),
    *(*FLAGS[7:], *NUMBERS[3:], *TEXTS),
)
HIDING: Final = ("mode", "columnnameofcorruptrecord", "comment")  # payloads that cannot be decoded


def check_options(format: str, options: Mapping[str, str]) -> None:
    """Raises ConfigError: an option has no effect, is unknown, or has another kind of value."""
    known = {name.lower(): name for name in {"json": OF_JSON, "csv": OF_CSV}.get(format, ())}
    for name, value in options.items():
        if name.lower() in HIDING:
            raise ConfigError(f"decode.options.{name}: not allowed, because it hides payloads that cannot be decoded")
        if not known:
            raise ConfigError(f"decode.options: have no effect on {format}; remove them")
        if name.lower() not in known:
            (nearest,) = difflib.get_close_matches(name.lower(), known, 1, 0.0)
            raise ConfigError(
                f"decode.options.{name}: has no effect on payloads in {format}; the nearest is {known[nearest]}"
            )
        if known[name.lower()] in FLAGS and value.lower() not in ("true", "false"):
            raise ConfigError(f"decode.options.{name}: {value!r} is neither true nor false")
        if known[name.lower()] in NUMBERS and not value.isdecimal():
            raise ConfigError(f"decode.options.{name}: {value!r} is not a whole number")
