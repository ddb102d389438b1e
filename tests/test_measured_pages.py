"""Pages that figures are written into say what was measured; the model of costs holds where it was not fitted."""

from __future__ import annotations

import msgspec
import pytest
from bench import comparison
from bench.comparison import Comparison, Row
from bench.scale import __main__ as scaling
from bench.scale import page
from bench.scale.model import LAWS, fit
from bench.scale.results import Scale
from bench.scale.simulated import Counted, Counting

HARDWARE = "us of CPU"


def test_the_page_of_scale_has_the_figures_of_its_data() -> None:
    scale = msgspec.json.decode(scaling.DATA.read_bytes(), type=Scale)
    text = scaling.PAGE.read_text()
    assert page.written(text, scale) == text
    assert f"{scale.costs.message_us:.1f} us" in text


def test_the_page_of_the_comparison_has_the_figures_of_its_data() -> None:
    found = msgspec.json.decode(comparison.DATA.read_bytes(), type=Comparison)
    text = comparison.PAGE.read_text()
    assert comparison.written(text, found) == text
    assert all(row.what in text for row in found.rows)
    readme = comparison.README.read_text()
    assert comparison.written(readme, found) == readme
    worst = min(row.against("mosquitto") for row in comparison.rates(found))
    assert worst > 10 and "more than ten times the throughput of mosquitto" in readme


def test_a_model_of_small_clusters_tells_of_a_larger_one() -> None:
    small = [count(nodes) for nodes in (3, 4, 6)]
    larger = count(8)
    for law in LAWS:
        if law.unit != HARDWARE:
            assert fit(law, small).predict(8) == pytest.approx(law.figure(larger), rel=0.1, abs=1e-9), law.name
    work = larger.work
    assert work["publish here"].bytes < work["publish here"].times  # acknowledgements of claims that may be late
    assert work["publish there"].bytes > 60 * 64
    assert work["connect"].puts == 0 == work["move"].puts


def test_one_cluster_is_counted_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    scaling.count_one(3, 60)
    lines = {line.split(":")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert " 0.0 etcd writes" in lines["move"] and " 0.0 etcd writes" in lines["connect"]
    assert " 0 bytes" in lines["publish here"] and " 0 bytes" not in lines["move"]


def count(nodes: int) -> Counted:
    return Counting(nodes, 40 * nodes, lambda _: None).count()


def test_cells_where_others_are_better_are_listed_worst_first() -> None:
    rows = [
        Row("s", "rate", "messages/s", False, {"starlingmq": 100.0, "mosquitto": 104.0, "amqtt": 150.0}),
        Row("s", "memory", "bytes", True, {"starlingmq-process": 300.0, "mosquitto": 100.0}),
        Row("s", "latency", "us", True, {"starlingmq": 10.0, "mosquitto": 100.0}),
    ]
    lines = comparison.worse(Comparison({}, "", "", 0.0, rows, [])).splitlines()[2:]
    assert [line.split(" | ")[1:] for line in lines] == [
        ["mosquitto 100", "300", "3.00 |"],
        ["amqtt 150", "100", "1.50 |"],
    ]
