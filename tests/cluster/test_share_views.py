"""Views and metrics of the shares of client ids, for operators."""

from __future__ import annotations

from tests.cluster.fleet import Fleet
from tests.cluster.test_shares import ShareFleet, share_fleet
from tests.cluster.test_takeover import lasting

from starlingmq.admin.member_actions import SharesView, view_shares
from starlingmq.admin.metric_values import family_of, share_values
from starlingmq.cluster.cluster_state import ClusterState
from starlingmq.cluster.shares.share_channel import ACKNOWLEDGE_SECONDS
from starlingmq.cluster.shares.share_messages import Claim
from starlingmq.cluster.shares.share_table import SHARES, share_of

CLIENTS = 30


def busy_fleet() -> ShareFleet:
    fleet = share_fleet(3)
    for number in range(CLIENTS):
        lasting(fleet, number % 3, f"c{number}")
    fleet.advance(2 * ACKNOWLEDGE_SECONDS, ACKNOWLEDGE_SECONDS)
    return fleet


def view(fleet: Fleet, place: int, client: str = "") -> SharesView:
    return view_shares(fleet[place].cluster, client)


def values(cluster: ClusterState) -> dict[str, float]:
    metrics = [family_of(*one) for one in share_values(cluster)]
    return {sample.name: sample.value for metric in metrics for sample in metric.samples if not sample.labels}


def test_every_share_has_a_leader_and_a_deputy_and_every_client_id_is_counted_once() -> None:
    fleet = busy_fleet()
    views = [view(fleet, place) for place in range(3)]
    assert all(each.nodes == views[0].nodes for each in views), "all have the same table, and nothing is behind"
    assert [each.node for each in views[0].nodes] == ["n1", "n2", "n3"]
    assert sum(each.leads for each in views[0].nodes) == sum(each.deputizes for each in views[0].nodes) == SHARES
    assert sum(each.client_ids for each in views) == sum(each.granted for each in views) == CLIENTS
    assert all(each.listed and not (each.asking or each.copying or each.waiting) for each in views)


def test_the_share_of_a_client_id_is_looked_up() -> None:
    fleet = busy_fleet()
    client = fleet.led_by(1)
    found = view(fleet, 0, client).lookup
    assert found is not None and (found.client, found.share, found.leader) == (client, share_of(client), "n2")
    assert found.deputy in ("n1", "n3")


def test_a_deputy_is_behind_until_it_has_acknowledged_a_claim() -> None:
    fleet = busy_fleet()
    first, second = fleet[0].cluster.number, fleet[1].cluster.number
    shares = fleet[0].cluster.shares
    assert shares is not None
    client = next(f"x{n}" for n in range(10000) if shares.table.of(f"x{n}")[:2] == (first, second))
    shares.leader.take(first, Claim(1, client, 1, 0, 0))
    behind = {each.node: each.behind for each in view(fleet, 0).nodes}
    assert behind == {"n1": 0, "n2": 1, "n3": 0}
    fleet.advance(1.0, 0.05)
    assert not any(each.behind for each in view(fleet, 0).nodes)


def test_metrics_say_what_this_node_leads() -> None:
    fleet = busy_fleet()
    found = [values(fleet[place].cluster) for place in range(3)]
    assert sum(each["starlingmq_shares_led"] for each in found) == SHARES
    assert sum(each["starlingmq_share_client_ids"] for each in found) == CLIENTS
    assert sum(each["starlingmq_share_claims_total"] for each in found) == CLIENTS
    assert all(each["starlingmq_shares_not_serving"] == each["starlingmq_share_unknown_nodes"] == 0 for each in found)


def test_a_node_that_is_no_member_yet_leads_nothing() -> None:
    fleet = Fleet(1)
    node = fleet.begin()
    assert node.cluster.number == 0
    assert values(node.cluster)["starlingmq_shares_led"] == 0
    assert view_shares(node.cluster, "c").nodes == []
