"""Decodes JSON and CSV payloads into columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from starlingmq.spark.column_names import check_names, comparison, kept_columns
from starlingmq.spark.value_rules import ValueRules

MALFORMED: Final = "_malformed"
REASON: Final = "reason"  # column of a dead letter
WHOLE: Final = "_whole"  # column with the source row, next to the decoded columns
BYTE_ORDER_MARK: Final = "\ufeff"
NON_NUMERIC: Final = "allowNonNumericNumbers"
SYNTAX: Final = (  # options that change which texts are JSON
    *("allowComments", "allowUnquotedFieldNames", "allowSingleQuotes", "allowNumericLeadingZeros", NON_NUMERIC),
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
    json = JsonPayloads(rows, schema, options, timestamp_unit)
    decoded = rows.withColumn("_decoded", json.decoded)
    strange = F.col("_decoded").isNull() | json.strange
    return _as_columns(decoded, rows.columns, json, strange, into)


def decode_csv(
    rows: DataFrame,
    schema: StructType | str,
    options: Options = NOTHING,
    timestamp_unit: Mapping[str, str] = NOTHING,
) -> DataFrame:
    """The same for payloads that are one line of CSV. Raises OptionError."""
    line = CsvPayloads(rows, schema, options, timestamp_unit)
    return _as_columns(rows.withColumn("_decoded", line.decoded), rows.columns, line, line.strange, "")


class TextPayloads:
    """``decoded``: the columns as they are read, and ``_malformed``. ``strange``: whether a payload is malformed beyond
    that.
    """

    decoded: Column
    strange: Column

    def __init__(self, rows: DataFrame, schema: StructType | str, units: Mapping[str, str], finite: bool) -> None:
        """Raises OptionError."""
        fields = cast(StructType, StructType.fromDDL(schema)) if isinstance(schema, str) else schema
        self.compared = comparison(rows.sparkSession)
        check_names(fields, self.compared, (MALFORMED, WHOLE))
        self.names = fields.fieldNames()
        self.rules = ValueRules(fields, units, finite)
        self.whole = StructType([*self.rules.read.fields, StructField(MALFORMED, StringType())])
        self.payload = F.col("payload").cast("string")
        marked = self.payload.startswith(BYTE_ORDER_MARK)
        self.text = F.when(marked, F.substring(self.payload, 2, 2**31 - 1)).otherwise(self.payload)


class JsonPayloads(TextPayloads):
    def __init__(self, rows: DataFrame, schema: StructType | str, options: Options, units: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        super().__init__(rows, schema, units, given.get(NON_NUMERIC.lower(), "").lower() != "true")
        self.options = {NON_NUMERIC.lower(): "false"} | given
        self._plain = given.keys().isdisjoint(name.lower() for name in SYNTAX)
        self.decoded = self._read(self.text, self.whole)
        self.more = F.coalesce(self._values(), F.lit(0)) != 2
        escapes = self.text.contains(r"\ud") | self.text.contains(r"\uD")
        self.halves = escapes & self.text.rlike(LONE_SURROGATE)
        # Spark replaces invalid bytes and halves, and takes null for an object without fields
        self.strange = ~F.is_valid_utf8(self.payload) | self.more | ~self.text.contains("{") | self.halves

    def _read(self, text: Column, type: StructType, **more: str) -> Column:
        options = {**self.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED} | more
        return F.from_json(text, type, options)

    def _values(self) -> Column:
        """The number of values in an array of the payload and one more, by which ``from_json``'s silence about whatever
        follows the first value is broken: one value makes two; whatever follows it more, fewer, or no array.
        """
        array = F.concat(F.lit("["), self.text, F.lit("\n,0]"))  # a line of its own: the payload may end in a comment
        if self._plain:
            return F.json_array_length(array)
        return F.size(F.from_json(array, "array<string>", dict(self.options)))

    def why(self) -> Column:
        """Return why a malformed payload is not one object of JSON; null if it is."""
        nothing = StructType([StructField(MALFORMED, StringType())])

        def is_object(**more: str) -> Column:
            return self.text.contains("{") & self._read(self.text, nothing, **more).getField(MALFORMED).isNull()

        found = F.when(
            ~is_object() & is_object(**{NON_NUMERIC.lower(): "true"}),
            f"the payload has NaN or infinity, which JSON does not have; decode.options.{NON_NUMERIC} allows them",
        )
        found = found.when(~is_object() & F.try_parse_json(self.text).isNull(), "the payload is not JSON")
        found = found.when(self.more, "the payload goes on after its JSON value")
        found = found.when(~is_object(), "the payload is JSON, but not an object")
        return found.when(self.halves, "the payload has half of a surrogate pair, which is no character")


class CsvPayloads(TextPayloads):
    def __init__(self, rows: DataFrame, schema: StructType | str, options: Options, units: Mapping[str, str]) -> None:
        given = {name.lower() for name in options}
        super().__init__(rows, schema, units, given.isdisjoint(name.lower() for name in NOT_FINITE))
        # from_csv takes its schema as text only
        ddl = ", ".join(f"{_quoted(field.name)} {field.dataType.simpleString()}" for field in self.whole.fields)
        line = F.regexp_replace(self.text, "\r?\n$", "")
        settings = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED, **options}
        self.decoded = F.from_csv(line, ddl, settings)
        self.strange = (F.trim(self.text) == "") | ~F.is_valid_utf8(self.payload)  # an empty line: a row of nulls


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _as_columns(decoded: DataFrame, source: list[str], payloads: TextPayloads, strange: Column, into: str) -> DataFrame:
    value = F.col("_decoded")
    broken = payloads.rules.broken(value)
    if broken is not None:
        strange = strange | broken
    malformed = F.when(strange, payloads.payload).otherwise(value.getField(MALFORMED)).alias(MALFORMED)
    columns = payloads.rules.columns(value)
    if into:
        columns = [F.when(value.isNotNull(), F.struct(*columns)).alias(into)]
    kept = kept_columns(source, [into] if into else payloads.names, payloads.compared)
    if into:
        return decoded.select(*kept, malformed, *columns)
    return decoded.select(*columns, *kept, malformed)


def with_reasons(
    rows: DataFrame, format: str, schema: str, options: Options = NOTHING, units: Mapping[str, str] = NOTHING
) -> DataFrame:
    """Return malformed rows with the column ``REASON``: why ``payload`` is not JSON or CSV of this schema."""
    make = JsonPayloads if format == "json" else CsvPayloads
    payloads = make(rows, schema, options, units)
    found = F.when(F.hex("payload").rlike(UTF_16), "the payload is UTF-16, not UTF-8")
    found = found.when(~F.is_valid_utf8(payloads.payload), "the payload is not UTF-8")
    found = found.when(F.trim(payloads.text) == "", "the payload is empty")
    if isinstance(payloads, JsonPayloads):
        found = found.otherwise(payloads.why())
    reasons = [found, payloads.rules.problem(F.col("_decoded"))]
    reasons.append(F.lit(f"the payload does not fit the schema {schema}"))
    told = F.coalesce(*[reason for reason in reasons if reason is not None])
    return rows.withColumn("_decoded", payloads.decoded).withColumn(REASON, told).drop("_decoded")
