"""A traffic report as one HTML page: it loads nothing and has no scripts; light or dark by the reader's preference."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from starlingmq.pipeline.svg import bars, lines
from starlingmq.pipeline.traffic import Share, Traffic

UNITS: Final = ("", "k", "M", "G", "T")
LIGHT: Final = ("#2a78d6", "#1baf7a", "#eda100", "#008300", "#4a3aa7", "#e34948", "#e87ba4", "#eb6834")
DARK: Final = ("#3987e5", "#199e70", "#c98500", "#008300", "#9085e9", "#e66767", "#d55181", "#d95926")


def short(value: float) -> str:
    """Format a figure with about three digits."""
    for unit in UNITS:
        if abs(value) < 1000 or unit == UNITS[-1]:
            text = f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
            return f"{text}{' ' if unit else ''}{unit}"
        value /= 1000
    raise AssertionError(value)


def size(value: float) -> str:
    return f"{short(value)}B" if value >= 1000 else f"{value:.3g} B"


def moment(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M:%S")


def lasting(seconds: float) -> str:
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.3g} s"


def page(traffic: Traffic) -> str:
    seconds = max(traffic.end - traffic.begin, float(traffic.step))
    tiles = (
        ("messages", short(traffic.count)),
        ("a second", short(traffic.count / seconds)),
        ("payloads", size(traffic.size)),
        ("topics", short(traffic.topics)),
        ("clients", short(traffic.clients)),
        ("retained", short(traffic.retained)),
    )
    shown = "".join(f"<li><b>{escape(value)}</b>{escape(name)}</li>" for name, value in tiles)
    rates = lines("Messages a second", traffic.begin, traffic.step, traffic.messages, short)
    volumes = lines("Bytes a second", traffic.begin, traffic.step, traffic.bytes, size)
    powers = range(min(traffic.sizes), max(traffic.sizes) + 1)
    buckets = [("0" if power == 0 else f"< {size(2**power)}", float(traffic.sizes.get(power, 0))) for power in powers]
    qos = [(f"QoS {qos}", short(count)) for qos, count in traffic.qos.items()]
    silences = [
        (one.root, lasting(one.until - one.since), moment(one.since), moment(one.until)) for one in traffic.silences
    ]
    missing = [(one.node, str(one.until - one.since + 1), str(one.since), str(one.until)) for one in traffic.missing]
    none = "<p>None: the offsets of all nodes are contiguous.</p>"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>Traffic of {escape(traffic.source)}</title>
<style>{style()}</style></head><body>
<h1>Traffic of {escape(traffic.source)}</h1>
<p>{moment(traffic.begin)} to {moment(traffic.end)} UTC, in steps of {lasting(traffic.step)}</p>
<ul class="tiles">{shown}</ul>
<h2>Messages a second, by topic root</h2>{rates}
<h2>Bytes of payload a second, by topic root</h2>{volumes}
<h2>Messages by size of payload</h2>{bars("Messages by size of payload", buckets, short)}
<h2>Topic roots</h2>{shares("root", traffic.by_root)}
<h2>Topics</h2>{shares("topic", traffic.by_topic)}
<h2>Clients</h2>{shares("client", traffic.by_client)}
<h2>QoS</h2>{table(("QoS", "messages"), qos)}
<h2>Longest silence of each topic root</h2>{table(("root", "for", "since", "until"), silences)}
<h2>Rows that are missing</h2>{table(("node", "rows", "from offset", "to offset"), missing) if missing else none}
</body></html>
"""


def shares(what: str, found: Sequence[Share]) -> str:
    rows = [(one.name, short(one.messages), size(one.bytes), short(one.topics), short(one.clients)) for one in found]
    return table((what, "messages", "payloads", "topics", "clients"), rows)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


STYLE: Final = """
body{background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.4rem;margin-bottom:0;overflow-wrap:anywhere}
h2{font-size:1rem;margin:2rem 0 .5rem}
p{color:var(--soft);margin:.2rem 0}
.tiles{display:flex;flex-wrap:wrap;gap:.5rem 2rem;list-style:none;padding:0}
.tiles li{color:var(--soft)}
.tiles b{display:block;color:var(--ink);font-size:1.5rem;font-weight:600}
svg{width:100%;min-width:36rem;height:auto;display:block}
svg text{fill:var(--faint);font-size:12px}
.grid{stroke:var(--grid)}
.base{stroke:var(--base)}
.line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}
.mark{fill:var(--c);opacity:0}
.mark:hover,.alone{opacity:1}
.bar{fill:var(--c)}
.bar:hover{opacity:.8}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;list-style:none;padding:0;margin:.3rem 0;color:var(--soft)}
.legend i{display:inline-block;width:.7rem;height:.7rem;border-radius:2px;background:var(--c);margin-right:.4rem}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th{text-align:right;font-weight:400;color:var(--faint)}
td{text-align:right;border-top:1px solid var(--grid)}
th,td{padding:.25rem .5rem}
th:first-child,td:first-child{text-align:left;min-width:8rem;overflow-wrap:anywhere}
"""


def style() -> str:
    light = "".join(f"--c{index}:{colour};" for index, colour in enumerate(LIGHT))
    dark = "".join(f"--c{index}:{colour};" for index, colour in enumerate(DARK))
    classes = "".join(f".c{index}{{--c:var(--c{index})}}" for index in range(len(LIGHT)))
    day = f"{light}--paper:#fcfcfb;--ink:#0b0b0b;--soft:#52514e;--faint:#898781;--grid:#e1e0d9;--base:#c3c2b7"
    night = f"{dark}--paper:#1a1a19;--ink:#fff;--soft:#c3c2b7;--faint:#898781;--grid:#2c2c2a;--base:#383835"
    return f":root{{{day}}}@media(prefers-color-scheme:dark){{:root{{{night}}}}}{classes}{STYLE}"
