"""Rules in files, and their sinks' demands: what ``starlingmq rule`` checks without a broker."""

from __future__ import annotations

from pathlib import Path

from starlingmq.config.rules_section import RuleConfig, check_rule
from starlingmq.config.section_types import ConfigError
from starlingmq.config.settings import from_tree
from starlingmq.config.tree_builder import build, read_yaml
from starlingmq.rules.program import JsonRows, RuleError, RuleProgram, TopicRows
from starlingmq.rules.sql_values import RowFailed


def read_rules(path: str | Path) -> list[RuleConfig]:
    """The rules of a settings file, or the one rule that a file is. Raises ConfigError, which begins with the file."""
    tree = read_yaml(path)
    try:
        if "rules" in tree:
            return list(from_tree({"rules": tree["rules"]}).rules)
        rule = build(RuleConfig, tree)
        check_rule(rule)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return [rule]


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
