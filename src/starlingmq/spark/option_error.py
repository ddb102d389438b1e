"""What is wrong with an option of the source or the sink."""

from __future__ import annotations


class OptionError(ValueError):
    """An option that can not be used; one line that begins with its name."""
