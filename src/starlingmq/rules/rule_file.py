"""Rules in files, checked and tried without a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from starlingmq.config.rules_section import TOPIC_OPTIONS, RuleConfig, check_rule
from starlingmq.config.section_types import ConfigError
from starlingmq.config.settings import from_tree
from starlingmq.config.tree_builder import build, read_yaml
from starlingmq.rules.program import JsonRows, RuleError, RuleProgram, TopicRows
from starlingmq.rules.sql_compiler import SPARK
from starlingmq.rules.sql_values import RowFailed

OF_SPARK: Final = ("watermark", "streams")
"""Keys of a pipeline file that only Spark can follow; others say where and when it runs there."""
ANY_SINK: Final = {"format": "http", "url": "http://pipeline"}  # takes any columns; nothing is sent there
KEPT: Final = {
    "source": ("topics", "qos"),
    "decode": ("format", "schema"),
    "sink": ("format", "options"),
    "dead_letter": ("topic",),
}
"""Keys of the sections that a rule has in common with a pipeline."""


def read_rules(path: str | Path) -> list[RuleConfig]:
    """The rules of a settings file, the one rule that a file is, or a pipeline file as a rule.

    Raises ConfigError, which begins with the file.
    """
    tree = read_yaml(path)
    try:
        if "rules" in tree:
            return list(from_tree({"rules": tree["rules"]}).rules)
        rule = build(RuleConfig, _of_pipeline(tree) if "checkpoint" in tree else tree)
        check_rule(rule)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return [rule]


def _of_pipeline(tree: dict[str, Any]) -> dict[str, Any]:
    """The rule that does the same as a pipeline, if the broker can. Rows are shown, whatever the sink."""
    for key in OF_SPARK:
        if tree.get(key):
            raise ConfigError(f"{key}: {SPARK.format('none')}")
    rule: dict[str, Any] = {key: tree[key] for key in ("name", "tables", "steps") if key in tree}
    for key, names in KEPT.items():
        section = tree.get(key)
        if isinstance(section, dict):
            rule[key] = {name: section[name] for name in names if name in section}
    rule["source"] = {"topics": ["#"]} | rule.get("source", {})
    sink = rule.get("sink", {})
    if sink.get("format") == "topic":
        sink["options"] = {name: text for name, text in sink.get("options", {}).items() if name in TOPIC_OPTIONS}
    else:
        rule["sink"] = ANY_SINK
    if not rule.get("dead_letter"):
        rule.pop("dead_letter", None)
    return rule


class CheckedRule:
    """A rule as the broker would run it. Raises ConfigError."""

    def __init__(self, rule: RuleConfig) -> None:
        self.rule = rule
        try:
            self.program = RuleProgram(rule)
            self._topic_rows = TopicRows(rule, self.program) if rule.sink.format == "topic" else None
        except RuleError as error:
            raise ConfigError(f"rule {rule.name}: {error}") from None
        self._json_rows = JsonRows(self.program)

    def summary(self) -> str:
        told = ", ".join(f"{name} {type}" for name, type in self.program.columns)
        if self.rule.sink.url == ANY_SINK["url"]:
            return f"the broker's engine can run the steps of pipeline {self.rule.name}: {told}"
        return f"rule {self.rule.name} is valid; into {self.rule.sink.format}: {told}"

    def made_of(self, topic: str, payload: bytes, now: int) -> list[str]:
        """The rows of a message of QoS 1, as objects of JSON. Raises RowFailed."""
        try:
            rows = self.program.rows(topic.encode(), payload, 1, False, b"", now)
            if self._topic_rows is not None:
                for row in rows:
                    self._topic_rows.message(row)
        except ValueError as error:
            raise RowFailed(str(error)) from None
        return [self._json_rows.text(row) for row in rows]
