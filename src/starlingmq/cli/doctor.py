"""``starlingmq doctor``: problems that a broker would meet on this machine, each with what to do."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import asdict
from typing import Final

from starlingmq.cli.config_cmd import FileOption, SetOption
from starlingmq.cli.control import JsonOption
from starlingmq.cli.doctor_bridges import bridges
from starlingmq.cli.doctor_checks import CheckResult, Level, fault, risk
from starlingmq.cli.doctor_ports import etcd, ports
from starlingmq.cli.doctor_settings import settings
from starlingmq.cli.doctor_system import certificates, clock, data_disk, file_limit, memory
from starlingmq.config.settings import ConfigError, exposed_secrets, load_config

FAULTY: Final = 1  # exit code


def command(config: FileOption = None, set_: SetOption = None, json_: JsonOption = False) -> int:
    """Check this machine and the settings before a broker runs with them, and say what to do about each problem.

    Run it as the user of the broker: rights and limits are those of the user. The exit code is 1 if there is a problem,
    and 0 if there are only warnings.
    """
    found = findings(config, set_ or [])
    if json_:
        print(json.dumps({"findings": [asdict(each) for each in found]}))
    else:
        print("\n".join(_lines(found)))
    return FAULTY if any(each.level is Level.problem for each in found) else 0


def findings(file: str | None, overrides: list[str]) -> list[CheckResult]:
    try:
        config = load_config(file, overrides, os.environ)
    except ConfigError as error:
        return [fault("settings", str(error), "correct this setting; the other checks need it")]
    exposed = [warning.partition("; ") for warning in exposed_secrets(overrides)]
    return [
        *settings(config),
        *(risk("settings", text, advice) for text, _, advice in exposed),
        *certificates(config, time.time()),
        *ports(config),
        *data_disk(config),
        *file_limit(config),
        *memory(config),
        *clock(config),
        *etcd(config),
        *bridges(config),
    ]


def _lines(found: list[CheckResult]) -> list[str]:
    width = max(len(each.subject) for each in found)
    lines = []
    for each in found:
        lines.append(f"{each.level.value:<8} {each.subject:<{width}}  {each.text}")
        if each.advice:
            lines.append(f"{'':<8} {'':<{width}}  -> {each.advice}")
    counts = Counter(each.level for each in found)
    lines.append(f"{_count(counts[Level.problem], 'problem')}, {_count(counts[Level.warning], 'warning')}")
    return lines


def _count(number: int, of: str) -> str:
    return f"{number} {of}{'' if number == 1 else 's'}"
