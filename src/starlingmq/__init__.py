"""StarlingMQ: an MQTT broker in plain typed Python.

    async with starlingmq.Broker() as broker:
        ...

Importing the package loads only this file; its names are loaded at first use.
"""

from __future__ import annotations

import importlib
import os
from importlib.machinery import EXTENSION_SUFFIXES
from typing import TYPE_CHECKING, Any, Final

from starlingmq._compiled import compiled
from starlingmq._version import __version__

# Decided once, before any other module of the package: a process never runs some modules compiled and others not. The
# library has the code of all compiled modules, and compiling puts it there last (compiling/checkout.py).
_LIBRARY: Final = os.path.join(os.path.dirname(__path__[0]), f"starlingmq__mypyc{EXTENSION_SUFFIXES[0]}")
if os.environ.get("STARLINGMQ_PURE", "") not in ("", "0") or not os.path.exists(_LIBRARY):
    from starlingmq import _pure

    _pure.install()

if TYPE_CHECKING:
    from starlingmq.config.settings import Config, ConfigError, load_config
    from starlingmq.hooks import Access, AuthRequest, AuthResult, Publication
    from starlingmq.node.assembly import Broker

__all__ = [
    "Access",
    "AuthRequest",
    "AuthResult",
    "Broker",
    "Config",
    "ConfigError",
    "Publication",
    "__version__",
    "compiled",
    "load_config",
]

_EXPORTS: Final = {
    "Access": "starlingmq.hooks",
    "AuthRequest": "starlingmq.hooks",
    "AuthResult": "starlingmq.hooks",
    "Broker": "starlingmq.node.assembly",
    "Config": "starlingmq.config.settings",
    "ConfigError": "starlingmq.config.settings",
    "Publication": "starlingmq.hooks",
    "load_config": "starlingmq.config.settings",
}


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
