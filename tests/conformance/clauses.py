"""How a test says which normative statements it holds.

The two specifications use the same numbers for different statements, so the version is always said:
``@clause(v3="3.1.2-4 3.1.2-5", v5="3.1.2-5")``. The ledger takes its tests from these marks alone; nothing is
written down twice. A mark on one case of a parametrized test counts for that case only.
"""

from __future__ import annotations

import pytest

V3 = "3.1.1"
V5 = "5.0"


def clause(*, v3: str = "", v5: str = "") -> pytest.MarkDecorator:
    """Mark a test as holding statements, named without ``MQTT-``, of 3.1.1 (``v3``) and of 5.0 (``v5``)."""
    ids = [(V3, f"MQTT-{number}") for number in v3.split()] + [(V5, f"MQTT-{number}") for number in v5.split()]
    return pytest.mark.clause(*ids)
