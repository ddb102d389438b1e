"""The line that ``--version`` prints, with as few imports as possible."""

from __future__ import annotations

from starlingmq import __version__, compiled


def version_line() -> str:
    return f"starlingmq {__version__} ({'compiled' if compiled() else 'interpreted'})"
