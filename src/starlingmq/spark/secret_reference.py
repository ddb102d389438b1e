"""Secrets by reference: Spark sends its executors the name of a file or an environment variable, and each process that
connects to a node reads it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from starlingmq.spark.option_error import OptionError


class SecretReference(msgspec.Struct, frozen=True):
    """The reference of ``option``: the path of its ``file``, or "" and the name of an environment ``variable``."""

    option: str
    file: str = ""
    variable: str = ""

    def read(self) -> str:
        """Read the secret. Raises OptionError, which names the file or variable."""
        if self.file:
            try:
                return Path(self.file).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise OptionError(f"{self.option}File: {self.file} cannot be read: {error.strerror}") from None
        found = os.environ.get(self.variable)
        if found is None:
            raise OptionError(
                f"{self.option}Env: the variable {self.variable} is not set; executors get it with "
                f"spark.executorEnv.{self.variable}"
            )
        return found


def secret_text(secret: str | SecretReference) -> str:
    """Raises OptionError."""
    return secret.read() if isinstance(secret, SecretReference) else secret


def read_secret(options: Mapping[str, str], option: str) -> str | SecretReference:
    """Return the secret of the option itself, or of the same option with File or Env. Raises OptionError for two of
    them.
    """
    given = [name for name in (option, f"{option}File", f"{option}Env") if options.get(name)]
    if len(given) > 1:
        raise OptionError(f"{given[1]}: {given[0]} is set as well; set only one of them")
    if not given or given[0] == option:
        return options.get(option, "")
    return SecretReference(option, options.get(f"{option}File", ""), options.get(f"{option}Env", ""))
