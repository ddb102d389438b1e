"""The clients' observations in each scene: collected from the fleet's ticks, and formatted as text."""

from __future__ import annotations

from typing import Final

from starlingmq.demo import tally
from starlingmq.demo.tally import share
from starlingmq.demo.told import DemoOutcome, Tick, WorkersTick

CAME_BACK: Final = "came back"
HALF: Final = 0.5
MOST: Final = 0.99


class Figures:
    """Call ``begin`` for a scene, pass all messages to it, then call ``noticed``."""

    def __init__(self) -> None:
        self.tick: Tick | None = None
        self.workers: WorkersTick | None = None
        self.outcome: DemoOutcome | None = None
        self._before: dict[str, int] = {}  # counts at the start of the scene
        self._delays: list[int] = []
        self._absences: list[int] = []
        self._answers: list[int] = []
        self._rate = 0

    def update(self, told: Tick | DemoOutcome | WorkersTick) -> None:
        if isinstance(told, WorkersTick):
            self.workers = told
        elif isinstance(told, DemoOutcome):
            self.outcome = told
        else:
            self._rate = len(told.delays)
            self.tick = told
            self._delays += told.delays
            self._absences += told.absences
            self._answers += told.answers

    def begin(self) -> None:
        self._before = dict(self.tick.counts) if self.tick is not None else {}
        self._delays, self._absences, self._answers = [], [], []

    def since(self, what: str) -> int:
        """Return the increase of a count in this scene."""
        now = self.tick.counts.get(what, 0) if self.tick is not None else 0
        return now - self._before.get(what, 0)

    def connected(self) -> int:
        return self.tick.connected if self.tick is not None else 0

    def status(self) -> str:
        """Return the overall status in one line."""
        if self.tick is None:
            return "the fleet comes"
        parts = [
            f"{self.tick.connected:,} of {self.tick.devices:,} devices connected",
            f"{self._rate:,} readings/s",
            f"{self.tick.missing:,} in flight",
            f"{self.tick.counts.get(CAME_BACK, 0):,} reconnects",
        ]
        if self.workers is not None:
            parts.append(f"{sum(self.workers.answered):,} answers by NATS")
        if self.tick.alerts:
            parts.append(f"{self.tick.alerts:,} alerts")
        return ", ".join(parts)

    def noticed(self) -> list[str]:
        """Return lines about what clients have noticed in this scene."""
        lines = []
        back = self.since(CAME_BACK)
        if back:
            line = f"{back:,} clients lost their connection"
            if self._absences:
                line += f"; half of them reconnected within {_time(share(self._absences, HALF))}"
                line += f", the last one after {_time(max(self._absences))}"
            lines.append(line)
        else:
            lines.append("no client lost its connection")
        if self._delays:
            lines.append(
                f"{len(self._delays):,} readings arrived: half within {_time(share(self._delays, HALF))}, 99 % within "
                f"{_time(share(self._delays, MOST))}, the slowest after {_time(max(self._delays))}"
            )
        if self._answers:
            lines.append(
                f"{len(self._answers):,} requests answered by NATS workers: half within "
                f"{_time(share(self._answers, HALF))}, the slowest after {_time(max(self._answers))}"
            )
        refused = self.since(tally.REFUSED)
        if refused:
            lines.append(f"{refused:,} readings were refused, and their devices notified")
        return lines


def verdict(outcome: DemoOutcome, answers: bool, alerts: bool) -> list[tuple[str, bool]]:
    """Return the result by the clients' own count; each line with whether the guarantee holds."""
    counts = outcome.counts
    acknowledged, doubled = counts.get(tally.ACKNOWLEDGED, 0), counts.get(tally.DOUBLED, 0)
    lines = [
        (f"{acknowledged:,} readings acknowledged at QoS 1 and 2, {outcome.lost:,} of them lost", outcome.lost == 0),
        (f"{doubled:,} duplicates at QoS 2, {counts.get(tally.AGAIN, 0):,} at QoS 1, which allows them", doubled == 0),
        (
            (
                f"{counts.get(tally.SENT_0, 0):,} sent at QoS 0, which guarantees nothing: "
                f"{counts.get(tally.ARRIVED_0, 0):,} arrived"
            ),
            True,
        ),
    ]
    unheard = counts.get(tally.UNHEARD, 0)
    if unheard:
        lines.append(
            (
                (
                    f"{unheard:,} published while a control room that had lost its session with its node had "
                    "not subscribed again; MQTT does not keep them (the stream does)"
                ),
                True,
            )
        )
    if outcome.lost:
        lines.append((f"lost: {', '.join(outcome.lost_names)}", False))
    if outcome.open:
        lines.append((f"{outcome.open:,} were never acknowledged", False))
    wrong = outcome.states_wrong
    lines.append((f"{outcome.states_online:,} devices are retained as online, {wrong:,} in a wrong state", wrong == 0))
    if alerts:
        good = outcome.alerts_lost == outcome.alerts_doubled == 0
        lines.append(
            (
                (
                    f"{outcome.alerts_due:,} alerts were due from Spark: {outcome.alerts_lost:,} lost, "
                    f"{outcome.alerts_doubled:,} duplicates"
                ),
                good,
            )
        )
    if answers:
        got = counts.get("answered", 0)
        again = counts.get("asked", 0) - got - outcome.unanswered
        line = f"{got:,} requests answered by NATS workers, {again:,} of them sent again, {outcome.unanswered:,} open"
        lines.append((line, True))
    return lines


def _time(milliseconds: float) -> str:
    return f"{milliseconds:,.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:,.1f} s"
