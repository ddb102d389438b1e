"""Decodes JSON and CSV payloads into columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from starlingmq.spark.column_names import OTHER_CASE, check_names, comparison, kept_columns
from starlingmq.spark.value_rules import OWN_FORM, ValueRules, as_texts, ddl, quoted, told

MALFORMED: Final = "_malformed"
REASON: Final = "reason"  # column of a dead letter
WHOLE: Final = "_whole"  # column with the source row, next to the decoded columns
CHECKED: Final = "_checked"  # column with the second look at a payload
TEXTS: Final = "_texts"  # column with the texts of values that ``value_rules`` asks for
MARK: Final = 7_046_029_288_634_856_825  # no payload ends in it
BYTE_ORDER_MARK: Final = "\ufeff"
NON_NUMERIC: Final = "allowNonNumericNumbers"
SINGLE_QUOTES: Final = "allowSingleQuotes"
LENIENT: Final = {  # options, and the part of a payload that they allow
    NON_NUMERIC: "NaN or infinity",
    SINGLE_QUOTES: "single quotes around names or text",
    "allowUnquotedFieldNames": "names without quotes",
    "allowComments": "comments",
    "allowNumericLeadingZeros": "numbers that begin with 0",
}
SYNTAX: Final = (  # options that change which texts are JSON
    *LENIENT,
    *(
        "allowBackslashEscapingAnyCharacter",
        "allowUnquotedControlChars",
        "maxNestingDepth",
        "maxNumLen",
        "maxStringLen",
    ),
)
UTF_16: Final = "^(FFFE|FEFF|(?!00)..00(?!00)..00|00(?!00)..00(?!00)..)"  # hexadecimal
LONE_SURROGATE: Final = (  # half of a pair, as an escape; \\\\u is none
    r"(?<!\\)(?:\\\\)*\\u[dD](?:[89aAbB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|[c-fC-F][0-9a-fA-F]{2}(?<!\\u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)
NOT_FINITE: Final = ("nanValue", "positiveInf", "negativeInf")  # options of CSV
OF_VALUES: Final = {*(name.lower() for name in NOT_FINITE), *OWN_FORM.values(), "timezone"}  # that divide no line
Options = Mapping[str, str]
NOTHING: Final[Options] = {}


def decode_json(
    rows: DataFrame,
    schema: StructType | str,
    into: str = "",
    options: Options = NOTHING,
    timestamp_unit: Mapping[str, str] = NOTHING,
) -> DataFrame:
    """Return rows with a column for each field of the JSON in ``payload``, by schema (a StructType, or DDL such as
    ``"id string, value double"``), in place of ``payload``; with ``into`` one column of that name with all of them.
    ``options``: those of Spark's JSON. ``timestamp_unit``: by column, what its numbers count: s, ms, us or ns.

    A payload that is not such JSON, or has a value that ``value_rules`` refuses, is kept as text in the column
    ``_malformed``, which is null for all others. Raises OptionError.
    """
    return _as_columns(rows, JsonPayloads(rows, schema, options, timestamp_unit), into)


def decode_csv(
    rows: DataFrame,
    schema: StructType | str,
    options: Options = NOTHING,
    timestamp_unit: Mapping[str, str] = NOTHING,
) -> DataFrame:
    """The same for payloads that are one line of CSV. Raises OptionError."""
    return _as_columns(rows, CsvPayloads(rows, schema, options, timestamp_unit), "")


class TextPayloads:
    """``decoded``: the columns as they are read, and ``_malformed``. ``checked``: a second look at the payload.
    ``strange``: whether a payload is malformed beyond that, by both.
    """

    decoded: Column
    checked: Column
    strange: Column

    def __init__(
        self, rows: DataFrame, schema: StructType | str, given: Options, units: Mapping[str, str], finite: bool
    ) -> None:
        """``given``: options by name in small letters. Raises OptionError."""
        self.fields = cast(StructType, StructType.fromDDL(schema)) if isinstance(schema, str) else schema
        self.compared = comparison(rows.sparkSession)
        check_names(self.fields, self.compared, (MALFORMED, WHOLE))
        self.names = self.fields.fieldNames()
        self.rules = ValueRules(self.fields, units, given, finite)
        self.whole = StructType([*self.rules.read.fields, StructField(MALFORMED, StringType())])
        self.payload = F.col("payload").cast("string")
        marked = self.payload.startswith(BYTE_ORDER_MARK)
        self.text = F.when(marked, F.substring(self.payload, 2, 2**31 - 1)).otherwise(self.payload)

    def texts(self, type: DataType | None) -> Column:
        """Return the texts of values, of this type, by ``CHECKED``."""
        raise NotImplementedError

    def shallow(self) -> Column:
        """Return the text of each column."""
        raise NotImplementedError

    def read(self, rows: DataFrame) -> DataFrame:
        found = rows.withColumn("_decoded", self.decoded).withColumn(CHECKED, self.checked)
        return found.withColumn(TEXTS, self.texts(self.rules.texts))

    def why(self) -> Column:
        """Return why the payload as a whole is malformed; null if it is not."""
        raise NotImplementedError


class JsonPayloads(TextPayloads):
    def __init__(self, rows: DataFrame, schema: StructType | str, options: Options, units: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        super().__init__(rows, schema, given, units, given.get(NON_NUMERIC.lower(), "").lower() != "true")
        self.options = {NON_NUMERIC.lower(): "false", SINGLE_QUOTES.lower(): "false"} | given
        plain = given.keys().isdisjoint(name.lower() for name in SYNTAX)
        self.decoded = self._read(self.text, self.whole)
        # In an array with a mark behind it, the payload is one value if the mark is the second. ``from_json`` ignores
        # the rest. A variant has no key twice. The mark is on a line of its own: the payload may end in a comment
        array = F.concat(F.lit("["), self.text, F.lit(f"\n,{MARK}]"))
        self.checked = F.try_parse_json(array) if plain else self._variant(array)
        self.more = F.coalesce(F.try_variant_get(F.col(CHECKED), "$[1]", "bigint") != MARK, F.lit(True))
        escapes = self.text.contains(r"\ud") | self.text.contains(r"\uD")
        self.halves = escapes & self.text.rlike(LONE_SURROGATE)
        self.other_case = self._other_case()
        # Spark replaces invalid bytes and halves, and takes null for an object without fields
        self.strange = F.col("_decoded").isNull() | ~F.is_valid_utf8(self.payload) | self.more
        self.strange = self.strange | ~self.text.contains("{") | self.halves | self.other_case.isNotNull()

    def texts(self, type: DataType | None) -> Column:
        return F.lit(None) if type is None else F.try_variant_get(F.col(CHECKED), "$[0]", ddl(type))

    def shallow(self) -> Column:
        return self.texts(StructType([StructField(name, StringType()) for name in self.names]))

    def _read(self, text: Column, type: StructType, **more: str) -> Column:
        options = {**self.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED} | more
        return F.from_json(text, type, options)

    def _variant(self, text: Column) -> Column:
        return F.from_json(text, "variant", dict(self.options))

    def _other_case(self) -> Column:
        """Return, for a column that is null, the key that only differs from it by case: Spark reads keys by case. Asked
        only if its name with other capitals is in the payload; then that is read once more, in small letters.
        """
        if self.compared is str:
            return F.lit(None).cast("string")
        small = F.from_json(F.lower(self.text), ddl(cast(DataType, as_texts(self.fields))).lower(), dict(self.options))

        def words(type: DataType, path: str, text: Column) -> Column:
            return F.lit(f"{path} {OTHER_CASE}")

        each = F.transform(F.array(small), lambda texts: self.rules.unread(F.col("_decoded"), texts, words))
        return F.when(self._looks_so(F.col("_decoded"), self.fields), F.get(each, F.lit(0)))

    def _looks_so(self, value: Column, type: DataType) -> Column:
        """Return whether a null field, or one that is in a list or map, has its name so in the payload."""
        found = F.lit(False)
        if not isinstance(type, StructType):
            for name in sorted(_names(type)):
                found = found | self._is_so(name)
            return found
        for field in type.fields:
            inner = value.getField(field.name)
            found = found | inner.isNull() & self._is_so(field.name) | self._looks_so(inner, field.dataType)
        return found

    def _is_so(self, name: str) -> Column:
        rest = F.replace(self.text, F.lit(f'"{name}"'), F.lit(""))
        return F.lower(rest).contains(F.lower(F.lit(f'"{name}"')))

    def why(self) -> Column:
        nothing = StructType([StructField(MALFORMED, StringType())])

        def is_object(**more: str) -> Column:
            value = self._read(self.text, nothing, **more)
            return self.text.contains("{") & value.isNotNull() & value.getField(MALFORMED).isNull()

        found = F.when(F.lit(False), F.lit(""))
        for option, part in LENIENT.items():
            words = f"the payload has {part}, which JSON does not have; decode.options.{option} allows them"
            found = found.when(~is_object() & is_object(**{option.lower(): "true"}), words)
        found = found.when(~is_object() & F.try_parse_json(self.text).isNull(), "the payload is not JSON")
        found = found.when(self.halves, "the payload has half of a surrogate pair, which is no character")
        found = found.when(is_object() & self._variant(self.text).isNull(), self._twice())
        found = found.when(self.more, "the payload goes on after its JSON value")
        return found.when(~is_object(), "the payload is JSON, but not an object")

    def _twice(self) -> Column:
        keys = F.sort_array(F.json_object_keys(self.text))
        same = F.get(F.filter(keys, lambda key, index: key == F.get(keys, index + 1)), F.lit(0))
        return F.coalesce(told("the payload has this key twice: ", same), F.lit("an object has a key twice"))


def _names(type: DataType) -> set[str]:
    """Return the names of all fields at any depth."""
    match type:
        case StructType():
            return set(type.fieldNames()).union(*(_names(field.dataType) for field in type.fields))
        case ArrayType():
            return _names(type.elementType)
    return _names(type.valueType) if isinstance(type, MapType) else set()


class CsvPayloads(TextPayloads):
    def __init__(self, rows: DataFrame, schema: StructType | str, options: Options, units: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        super().__init__(rows, schema, given, units, given.keys().isdisjoint(name.lower() for name in NOT_FINITE))
        self.settings = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED, **options}
        ended = self.text.contains("\n")
        self.line = F.when(ended, F.regexp_replace(self.text, "\r?\n$", "")).otherwise(self.text)
        self.decoded = self._read(self.whole)
        self.all = StructType([*(StructField(name, StringType()) for name in self.names), self.whole[MALFORMED]])
        # Without quotes, the texts are between the commas: to read the line twice costs more
        simple = ~self.line.contains('"') if given.keys() <= OF_VALUES else F.lit(False)
        self.checked = F.when(simple, F.split(self.line, ",", -1))
        quote = re.escape(given.get("quote", '"'))
        unquoted = F.regexp_replace(self.line, f"{quote}[^{quote}]*{quote}", "") if quote else self.line
        several = self.line.contains("\n") | self.line.contains("\r")
        self.lines = several & unquoted.rlike("[\r\n]")  # Spark reads the first one
        # an empty line: a row of nulls
        self.strange = (F.trim(self.text) == "") | ~F.is_valid_utf8(self.payload) | self.lines

    def texts(self, type: DataType | None) -> Column:
        if type is None:
            return F.lit(None)
        parts = [F.get(CHECKED, F.lit(index)).alias(name) for index, name in enumerate(self.names)]
        found = F.struct(*parts, F.lit(None).cast("string").alias(MALFORMED))
        return F.when(F.col(CHECKED).isNotNull(), found).otherwise(self.shallow())

    def shallow(self) -> Column:
        return self._read(self.all)

    def _read(self, type: StructType) -> Column:
        # from_csv takes its schema as text only
        schema = ", ".join(f"{quoted(field.name)} {ddl(field.dataType)}" for field in type.fields)
        return F.from_csv(self.line, schema, self.settings)

    def why(self) -> Column:
        found = F.when(self.lines, "the payload has more than one line")
        other = self.shallow().getField(MALFORMED).isNotNull()
        return found.when(other, f"the payload has another number of columns than {len(self.names)}")


def _as_columns(rows: DataFrame, payloads: TextPayloads, into: str) -> DataFrame:
    value, texts = F.col("_decoded"), F.col(TEXTS)
    strange = payloads.strange
    refused = payloads.rules.refused(value, texts)
    if refused is not None:
        strange = strange | refused.isNotNull()
    malformed = F.when(strange, payloads.payload).otherwise(value.getField(MALFORMED))
    decoded = payloads.read(rows).withColumn(MALFORMED, malformed)
    columns = payloads.rules.columns(value, texts, F.col(MALFORMED).isNotNull())
    if into:
        columns = [F.when(value.isNotNull(), F.struct(*columns)).alias(into)]
    kept = kept_columns(rows.columns, [into] if into else payloads.names, payloads.compared)
    if into:
        return decoded.select(*kept, MALFORMED, *columns)
    return decoded.select(*columns, *kept, MALFORMED)


def with_reasons(
    rows: DataFrame, format: str, schema: str, options: Options = NOTHING, units: Mapping[str, str] = NOTHING
) -> DataFrame:
    """Return malformed rows with the column ``REASON``: why ``payload`` is not JSON or CSV of this schema."""
    make = JsonPayloads if format == "json" else CsvPayloads
    payloads = make(rows, schema, options, units)
    value, rules = F.col("_decoded"), payloads.rules
    found = F.when(F.hex("payload").rlike(UTF_16), "the payload is UTF-16, not UTF-8")
    found = found.when(~F.is_valid_utf8(payloads.payload), "the payload is not UTF-8")
    found = found.when(F.trim(payloads.text) == "", "the payload is empty")
    reasons = [found, payloads.why(), rules.problem(value, F.col(TEXTS))]
    if isinstance(payloads, JsonPayloads):
        every = payloads.texts(as_texts(payloads.fields))
        reasons += [rules.unread(value, every, rules.misfit), payloads.other_case]
    shallow = payloads.shallow()
    for field in payloads.fields.fields:
        text = shallow.getField(field.name)
        unread = value.getField(field.name).isNull() & text.isNotNull()
        reasons.append(F.when(unread, rules.misfit(field.dataType, field.name, text)))
    reasons.append(F.lit("the payload does not fit the schema"))
    first = F.coalesce(*[reason for reason in reasons if reason is not None])
    return payloads.read(rows).withColumn(REASON, first).drop("_decoded", CHECKED, TEXTS)
