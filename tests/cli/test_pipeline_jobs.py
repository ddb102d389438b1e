"""The jobs of pipelines where no Spark is needed: what is wrong in one line, and what an audit says."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from starlingmq.cli.main import main
from starlingmq.cli.pipeline_jobs import show
from starlingmq.pipeline.archive import small
from starlingmq.pipeline.delivery_audit import DeliveryAudit, Finding, Total
from starlingmq.pipeline.svg import bars, lines, ticks
from starlingmq.pipeline.traffic_page import lasting, short, size

READ = ("--server", "127.0.0.1:1", "--stream", "all", "--node-timeout", "1")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("archive", "s3://bucket/a", *READ),
            "s3://bucket/a: an archive must be a directory that the driver and the workers",
        ),
        (("archive", "a", "--stream", "all"), "--server: name at least one node as host:port of its streams.listen"),
        (("archive", "a", *READ, "--every", "soon"), "archive_a: trigger.every: expected a duration such as"),
        (
            ("replay", "none", "--to", "mqtt://x"),
            "none: is not an archive; create one with starlingmq pipeline archive",
        ),
        (("replay", "made", "--to", "http://x"), "--to: http://x: the scheme must be mqtt, mqtts, ws, wss or unix"),
        (
            ("replay", "made", "--to", "mqtt://x", "--speed", "fast"),
            "--speed: 'fast' is not a number above 0, or max",
        ),
        (("report", "r.html"), "nothing selected; give either --stream with --server, or --archive"),
        (("report", "no/r.html", "--archive", "made"), "no/r.html: directory no does not exist"),
        (("audit", "--stream", "events", "--server", "nowhere"), "'nowhere' is not host:port"),
    ],
)
def test_errors_are_reported_in_one_line(
    words: tuple[str, ...],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made" / "_starlingmq").mkdir(parents=True)
    code = main(["pipeline", *words])
    errors = capsys.readouterr().err
    assert code == 2 and told in errors and len(errors.splitlines()) == 1, errors


def test_files_that_are_merged(tmp_path: Path) -> None:
    files = []
    for place, length in enumerate((10, 60, 20, 30, 45, 90, 5)):
        files.append(tmp_path / str(place))
        files[-1].write_bytes(b"x" * length)
    names = [[file.name for file in group] for group in small(files, 100)]
    assert names == [["0", "2", "3"], ["4", "6"]]
    assert small(files[:2], 100) == []


@pytest.mark.parametrize("most", [0.0, 0.004, 0.3, 1.0, 7.0, 99.0, 100.0, 12_345.0, 9e9])
def test_an_axis_has_a_few_round_figures(most: float) -> None:
    found = ticks(most)
    assert found[0] == 0.0 and found[-1] >= most and 2 <= len(found) <= 8


def test_plots_and_figures() -> None:
    plot = lines("Rates", 0.0, 60, {"<a>": [1.0, 2.0, 0.0], "b": [0.0, 0.0, 5.0]}, short)
    assert plot.count("<polyline") == 2 and "&lt;a&gt;" in plot and "<a>" not in plot
    assert plot.startswith('<div class="wide"><svg') and 'class="legend"' in plot
    assert bars("Sizes", [("0", 1.0), ("< 2 B", 3.0)], short).count("<rect") == 2
    assert [short(value) for value in (0, 7, 1234, 5_600_000)] == ["0", "7", "1.23 k", "5.6 M"]
    assert [size(value) for value in (12, 2048)] == ["12 B", "2.05 kB"]
    assert [lasting(value) for value in (1.5, 180, 90_000, 200_000)] == ["1.5 s", "3.0 min", "25.0 h", "2.3 d"]


def test_an_audit_reports_missing_and_doubled_messages() -> None:
    counts = {"accepted": 0, "refused": 0, "due": 3, "delivered": 2, "redelivered": 1, "acknowledged": 2}
    total = Total(client="c", topic="t", **counts, dropped={"queue_full": 1}, lost=1, doubled=0, again=0)
    finding = Finding("lost", "c", "t", "n1:7", 2, 1_770_000_000.0)
    found = DeliveryAudit(["n1"], 9, 1_770_000_000.0, 1_770_000_060.0, 0, 4, 1, 0, [total], [finding])

    def said(audit: DeliveryAudit) -> str:
        out = io.StringIO()
        show(audit, Console(width=160, file=out))
        return out.getvalue()

    text = said(found)
    assert "lost: message n1:7 on t (QoS 2, 2026-02-02 02:40:00) for c" in text
    assert "1 lost, 0 doubled, 4 wait" in text and "1 queue_full" in text and not found.clean
    assert "no result" in said(msgspec.structs.replace(found, until=0.0))
    assert "2 batches of events are missing, so nothing can be proven" in said(
        msgspec.structs.replace(found, missing=2)
    )
