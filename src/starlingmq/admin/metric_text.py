"""Metrics as JSON and as text, and those of the workers of one machine in one text: they share a port, so one scrape
has to return them all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct


class Sample(Struct, frozen=True):
    name: str
    labels: dict[str, str]
    value: float


class MetricsReply(Struct, frozen=True):
    node: str
    samples: list[Sample]


METRIC_TEXT: Final = "metrics.text"  # the action; workers of one machine ask each other for it
LABEL: Final = "worker"

_SAMPLE: Final = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?( .*)")


class MetricText(Struct, frozen=True):
    """Metrics in the text format of Prometheus."""

    text: str


def merge(texts: Mapping[str, str]) -> str:
    """The samples of all workers, each with the label ``worker``. ``texts``: by the name of the worker.

    A metric has its HELP and TYPE lines once, and all its samples follow: Prometheus requires that.
    """
    heads: dict[str, list[str]] = {}  # by metric
    samples: dict[str, list[str]] = {}
    for worker, text in texts.items():
        label = f'{LABEL}="{_escape(worker)}"'
        name = ""
        for line in text.split("\n"):  # values may have other line breaks
            if line.startswith("# "):
                name = line.split(" ", 3)[2]
                head = heads.setdefault(name, [])
                if line not in head and len(head) < 2:
                    head.append(line)
            elif found := _SAMPLE.fullmatch(line):
                labels = ",".join([label, found[2]] if found[2] else [label])
                samples.setdefault(name, []).append(f"{found[1]}{{{labels}}}{found[3]}")
    return "".join(f"{line}\n" for name, head in heads.items() for line in (*head, *samples.get(name, [])))


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
