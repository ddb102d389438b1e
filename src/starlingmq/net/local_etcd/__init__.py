"""The part of etcd that workers of one machine need, in their parent process."""

from __future__ import annotations

from typing import Final

DIRECTORY: Final = "local-etcd"  # in the data directory
FILE: Final = "keys.sqlite"
