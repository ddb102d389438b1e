"""The result of one check of ``starlingmq doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    ok = "ok"
    warning = "warning"  # the broker serves, with a risk or below its speed
    problem = "problem"  # the broker does not start, or soon stops serving


@dataclass(frozen=True)
class CheckResult:
    level: Level
    subject: str
    text: str
    advice: str = ""
    """The next step of the operator. Empty: none is needed."""


def good(subject: str, text: str) -> CheckResult:
    return CheckResult(Level.ok, subject, text)


def risk(subject: str, text: str, advice: str) -> CheckResult:
    return CheckResult(Level.warning, subject, text, advice)


def fault(subject: str, text: str, advice: str) -> CheckResult:
    return CheckResult(Level.problem, subject, text, advice)
