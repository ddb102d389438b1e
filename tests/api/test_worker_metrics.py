"""Workers of one machine share a port: a scrape returns the metrics of all of them, whichever answers."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from starlingmq.admin.metric_text import merge

ONE = """# HELP a_total Messages, by kind.
# TYPE a_total counter
a_total{kind="x} y"} 1.0
a_total{kind="z\u2028"} 2.0
# HELP b Clients.
# TYPE b gauge
b 3.0
# HELP c_seconds Turns.
# TYPE c_seconds histogram
c_seconds_bucket{le="+Inf"} 4.0
c_seconds_count 4.0
c_seconds_sum 0.5
"""
TWO = ONE.replace("3.0", "7e-05") + "# HELP d Only here.\n# TYPE d gauge\nd 8.0\n"


def test_each_worker_has_its_samples_under_one_head() -> None:
    merged = merge({"one": ONE, 'w"\\': TWO})
    families = {family.name: family for family in text_string_to_metric_families(merged)}
    assert list(families) == ["a", "b", "c_seconds", "d"]
    for text, worker in ((ONE, "one"), (TWO, 'w"\\')):
        for family in text_string_to_metric_families(text):
            found = families[family.name]
            assert (found.type, found.documentation) == (family.type, family.documentation)
            samples = [(each.name, each.labels, each.value) for each in found.samples]
            for each in family.samples:
                assert (each.name, each.labels | {"worker": worker}, each.value) in samples
    assert sum(line.startswith("# HELP a_total") for line in merged.splitlines()) == 1
    assert sum(len(family.samples) for family in families.values()) == 13
