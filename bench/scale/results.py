"""The results of a run of ``python -m bench.scale``, and derived figures."""

from __future__ import annotations

import msgspec

from bench.scale.costs import Costs
from bench.scale.model import LAWS, Fitted, fit
from bench.scale.simulated import Counted


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """``fitted``: the simulated clusters that the model is fitted to. ``held``: those that it is compared with."""

    version: str  # with whether it is compiled
    costs: Costs
    fitted: list[Counted]
    held: list[Counted]

    def laws(self) -> list[Fitted]:
        return [fit(law, self.fitted) for law in LAWS]
