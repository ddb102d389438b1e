"""The tables of docs/SCALE.md, between the marks in the page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.scale.model import Fitted
from bench.scale.reach import Fleet, Room, loads, nodes_for
from bench.scale.results import Scale

FLEETS = (100_000, 1_000_000, 10_000_000, 100_000_000)
MARKED = re.compile(r"(<!-- (\w+): written by make scale -->\n).*?(<!-- end -->)", re.DOTALL)


def written(page: str, scale: Scale) -> str:
    """Return the page with the current figures. Raises KeyError for an unknown mark."""
    made = {"costs": costs(scale), "model": model(scale), "reach": reach(scale), "first": first(scale)}
    return MARKED.sub(lambda found: f"{found[1]}\n{made[found[2]]}\n\n{found[3]}", page)


def write(path: Path, scale: Scale) -> None:
    path.write_text(written(path.read_text(), scale))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def costs(scale: Scale) -> str:
    found = scale.costs
    rows = [
        ("a QoS 1 message, read and written alone", f"{found.message_us:.1f} us"),
        ("a hop to another node, at both nodes", f"{found.hop_us:.2f} us"),
        ("a connection with its first filter", f"{found.connection_us:.0f} us"),
        ("an idle connection with its session and filter", f"{found.connection_bytes:,.0f} bytes"),
        ("a PINGREQ", f"{found.ping_us:.1f} us"),
        ("a filter of another node", f"{found.filter_us:.1f} us, {found.filter_bytes:,.0f} bytes"),
        ("a filter of another node, in a summary", f"{found.summary_bytes:.0f} bytes"),
        ("a client id, at the leader of its share and at the deputy", f"{found.owner_bytes:.0f} bytes each"),
        ("a node of three without clients", f"{found.idle_share:.1%} of a core"),
    ]
    return f"{scale.version}, {found.machine}, {found.started}\n\n" + table(("item", "cost to a node's process"), rows)


def model(scale: Scale) -> str:
    rows = []
    for fitted in scale.laws():
        law = fitted.law
        terms = ", ".join(number(one) for one in fitted.coefficients)
        cells = [f"{law.name}, {law.unit}", law.words, terms]
        for counted in scale.held:
            cells.append(f"{number(fitted.predict(counted.nodes))} / {number(law.figure(counted))}")
        rows.append([*cells, f"{max(error(fitted, scale), key=abs):+.1%}"])
    held = [f"{counted.nodes} nodes, {counted.clients:,} clients" for counted in scale.held]
    return table(("item, sum over all nodes", "terms", "coefficients", *held, "worst"), rows)


def error(fitted: Fitted, scale: Scale) -> list[float]:
    """Return the relative error of the model for each cluster that it was not fitted to."""
    law = fitted.law
    found = [(fitted.predict(counted.nodes), law.figure(counted)) for counted in scale.held]
    return [predicted - counted if counted == 0 else predicted / counted - 1 for predicted, counted in found]


def reach(scale: Scale) -> str:
    fitted, fleet, room = scale.laws(), Fleet(), Room()
    sizes = [nodes_for(clients, fitted, scale.costs, fleet, room) for clients in FLEETS]
    found = [
        {load.name: load.share for load in loads(clients, nodes, fitted, scale.costs, fleet, room)}
        for clients, nodes in zip(FLEETS, sizes, strict=True)
    ]
    names = sorted(found[-1], key=lambda name: -found[-1][name])
    head = ["share of capacity", *(f"{c:,} on {n}" for c, n in zip(FLEETS, sizes, strict=True))]
    return table(head, ([name, *(share(each[name]) for each in found)] for name in names))


def first(scale: Scale) -> str:
    """Return the number of clients above which a resource is exhausted, with as many nodes as are needed."""
    fitted, fleet, room = scale.laws(), Fleet(), Room()
    ends: dict[str, str] = {}
    clients = 10_000.0
    while clients < 1e9:
        nodes = nodes_for(int(clients), fitted, scale.costs, fleet, room)
        for load in loads(int(clients), nodes, fitted, scale.costs, fleet, room):
            if load.share > 1 and load.name not in ends:
                ends[load.name] = f"{number(clients)} on {nodes} nodes"
        clients *= 1.05
    return table(("exhausted resource", "from this number of clients on"), ends.items())


def share(value: float) -> str:
    return f"**{value:.2f}**" if value > 1 else f"{value:.2f}" if value >= 0.005 else "0.00"


def number(value: float) -> str:
    """Format with three significant digits."""
    return f"{float(f'{value:.3g}'):,.10g}"
