"""``starlingmq rule`` shows the rows of messages, and the place of each error; the page lists all functions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlglot import exp

from starlingmq.config.section_types import ConfigError
from starlingmq.rules import sql_functions
from starlingmq.rules.program import RuleError
from starlingmq.rules.sql_compiler import HANDLERS
from tests.cli.commands import run
from tests.rules.twins import program_of

HOT = """
name: hot
source: {topics: ["plant/+/temp"]}
decode: {format: json, schema: "id string, v double"}
steps:
  - sql: |
      select concat('alarms/', id) as topic, string(v) as payload
      from rows
      where v > 50
"""
PAGE = Path("docs/RULES.md")


def written(tmp_path: Path, text: str) -> str:
    file = tmp_path / "rule.yaml"
    file.write_text(text)
    return str(file)


def test_a_rule_is_validated_and_tried(tmp_path: Path) -> None:
    file = written(tmp_path, HOT)
    told = f"{file}: rule hot is valid; into topic: topic string, payload string\n"
    assert run("rule", "validate", file) == (0, told.encode(), "")
    code, output, errors = run("rule", "test", file, "-m", '{"id": "a", "v": 70}', "-m", '{"id": "b", "v": 1}')
    assert (code, output, errors) == (0, b'{"topic":"alarms/a","payload":"70.0"}\n', "")
    code, output, errors = run("rule", "test", file, "-m", "{}", "-m", '{"v": 70}', "-m", '{"v": "x"}')
    assert code == 1 and output == b"" and len(errors.splitlines()) == 2
    assert errors.startswith("no result: the topic of a row is null or empty")
    assert "no result: the payload does not fit decode.schema: Expected `float | null`, got `str` - at `$.v`" in errors


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("where v > 50", "where w > 50", "steps[0].sql, line 3, column 7: there is no column w; there is id, v, topic"),
        ("where v > 50", "group by id", "steps[0].sql, line 3, column 10: the broker's engine has no GROUP BY; Spark"),
        ("string(v)", "sum(v)", "steps[0].sql, line 1, column 40: the broker's engine has no function sum; Spark"),
        ("string(v)", "v", "sink: column payload is double, but must be binary or string"),
        ("where v > 50", "where v > ", "steps[0].sql, line 3, column 9: an operand is missing: >"),
        ("v double", "v decimal(3,1)", "decode.schema: the broker's engine has no type decimal(3, 1); Spark has it"),
        ("v double", "topic string", "decode.schema: topic is a column of the message, or there twice; rename it"),
        ("plant/+/temp", "plant/#/temp", "source.topics[0]: 'plant/#/temp' is no topic filter that a rule may read"),
        ("name: hot\n", "", "name: required"),
        ("as payload", "as text", "sink: column text is unknown to the format topic"),
    ],
)
def test_an_error_is_one_line_that_says_where_and_what(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert old in HOT
    code, output, errors = run("rule", "validate", written(tmp_path, HOT.replace(old, new)))
    assert (code, output) == (2, b"") and told in errors and len(errors.splitlines()) == 1, errors


@pytest.mark.parametrize(
    "expression",
    ["n + 1.5", "1.5", "round(n)", "s rlike 'a'", "split(s, '[a-z]')", "xs in (select 1)", "explode(xs)", "count(*)"],
)
def test_what_only_spark_has_is_refused(expression: str) -> None:
    with pytest.raises(RuleError, match="Spark has it"):
        program_of(f"select {expression} as r from rows")


@pytest.mark.parametrize(
    "sql",
    [
        "select distinct i from rows",
        "select i from rows limit 1",
        "select i from rows order by i",
        "select i from rows a join rows b on a.i = b.i",
        "select i from rows right join d on d.k = s",
        "select i from rows join d on d.k = s or d.k = t",
        "select i from rows join d on d.k = n",
        "select i from rows join d on d.none = s",
        "select i from rows join d using (k)",
        "select i from rows cross join d",
        "select i from rows, d",
        "select i from (select i from rows)",
        "select i from rows union all select i from rows",
        "with a as (select i from rows) select i from a",
        "delete from rows",
        "select i, row_number() over (order by i) as r from rows",
        "select i from rows where i in (select 1)",
        "select i from rows having i > 1",
        "select i from rows; select i from rows",
        "select i from rows tablesample (10 percent)",
        "select i from rows for system_time as of 1",
        "select i from rows, rows b",
        "select * except (i) from rows",
        "(" * 5000,
    ],
)
def test_other_queries_are_refused(tmp_path: Path, sql: str) -> None:
    (tmp_path / "d.csv").write_text("k,v\na,1\n")
    with pytest.raises(RuleError, match=r"^steps\[0\]\.sql"):
        program_of(sql, tables=[{"name": "d", "path": str(tmp_path / "d.csv")}])


def test_a_lookup_table_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "d.csv"
    with pytest.raises(RuleError, match="cannot be read: No such file"):
        program_of("select i from rows", tables=[{"name": "d", "path": str(file)}])
    for text, told in (("", "is empty: its first line has the names"), ("a,b\n1,2\n3\n", "line 3 of .* has 1 values")):
        file.write_text(text)
        with pytest.raises(RuleError, match=told):
            program_of("select i from rows", tables=[{"name": "d", "path": str(file)}])


def test_the_page_lists_the_functions_of_the_engine() -> None:
    """By the name that sqlglot gives each, or by another one that it knows for the same."""
    table = PAGE.read_text().partition("## The SQL")[2].partition("## Where")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")]
    named = set(re.findall(r"[a-z_0-9]+", " ".join(re.findall(r"`([^`]+)`", "".join(rows)))))
    functions = {kind: kind.sql_names() for kind in HANDLERS if isinstance(kind, type) and issubclass(kind, exp.Func)}
    known = {"ToBase64": "base64", "JSONFormat": "to_json", "JSONExtractScalar": "get_json_object", "Upper": "upper"}
    known |= {"StrPosition": "instr", "RegexpSplit": "split", "ArraySize": "size", "Array": "array", "Struct": "struct"}
    known |= {"And": "and", "Or": "or", "Case": "case", "If": "if", "TryCast": "try_cast", "Lower": "lower"}
    known |= {"LowerHex": "hex", "StartsWith": "startswith", "EndsWith": "endswith", "Hex": "hex", "Replace": "replace"}
    missing = [
        kind.__name__
        for kind, names in functions.items()
        if not named & {known.get(kind.__name__, ""), *(name.lower() for name in names)}
    ]
    missing += [kind for kind in HANDLERS if isinstance(kind, str) and kind not in named]
    assert missing == [] and len(functions) > 30 and sql_functions.__doc__ and "docs/RULES.md" in sql_functions.__doc__


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    code, _, errors = run("rule", "validate", str(tmp_path / "none.yaml"))
    assert code == 2 and "none.yaml: cannot be read" in errors
    assert issubclass(ConfigError, Exception)


PIPELINE = """
name: hot
source: {servers: ["127.0.0.1:7884"], stream: telemetry, token_file: /etc/starlingmq/token}
decode: {format: json, schema: "id string, value double"}
tables: [{name: d, format: csv, path: TABLE, options: {header: "true"}}]
steps:
  - {name: warm, sql: "SELECT id, value, hall FROM rows JOIN d ON d.name = id WHERE value > 30"}
  - {name: result, sql: "SELECT hall, round(value, 1) AS v FROM warm"}
sink: {format: parquet, path: /data/hot}
dead_letter: {path: /data/hot.dead, format: json}
trigger: {every: 10s}
checkpoint: /data/hot.checkpoint
"""


def test_a_pipeline_file_is_tried_without_spark_if_the_engine_has_its_sql(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("name,hall\na,A\nb,B\n")
    file = written(tmp_path, PIPELINE.replace("TABLE", str(tmp_path / "d.csv")))
    told = f"{file}: the broker's engine can run the steps of pipeline hot: hall string, v double\n"
    assert run("rule", "validate", file) == (0, told.encode(), "")
    code, output, errors = run(
        "rule", "test", file, "-m", '{"id": "b", "value": 70.26}', "-m", '{"id": "c", "value": 70}'
    )
    assert (code, output, errors) == (0, b'{"hall":"B","v":70.3}\n', "")
    for old, new in (("trigger:", "watermark: {delay: 10m}\ntrigger:"), ("round(value, 1)", "max(value)")):
        code, _, errors = run("rule", "validate", written(tmp_path, Path(file).read_text().replace(old, new)))
        assert code == 2 and "Spark has it: starlingmq pipeline" in errors
