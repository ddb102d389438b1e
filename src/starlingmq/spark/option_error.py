"""The error for an invalid option of the source or the sink."""

from __future__ import annotations


class OptionError(ValueError):
    """An option cannot be used; one line that begins with its name."""
