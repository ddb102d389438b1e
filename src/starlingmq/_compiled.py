"""Whether this process runs compiled modules."""

from __future__ import annotations

import importlib


def compiled() -> bool:
    """Whether the hot modules (wire/, core/) run as machine code in this process."""
    module = importlib.import_module("starlingmq.core.messages.message")
    return not str(module.__file__).endswith(".py")
