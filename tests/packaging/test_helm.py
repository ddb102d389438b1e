"""The Helm chart: its values are checked, it renders what Kubernetes takes, and what it renders runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import starlingmq
from starlingmq.config.settings import Config
from tests.packaging.manifests import CHART, by_name, check_schema, helm, rendered
from tests.test_deploy_containers import check_settings


def chart() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text())
    return found


def test_the_version_of_the_chart_is_that_of_the_program() -> None:
    assert chart()["appVersion"] == starlingmq.__version__
    assert chart()["version"] == re.sub(r"\.(dev|a|b|rc)(\d+)$", r"-\1.\2", starlingmq.__version__)


def test_the_schema_has_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def check(given: dict[str, Any], part: dict[str, Any], path: str) -> None:
        known = set(part["properties"]) - {"global"}
        assert known == set(given), path
        for name, value in given.items():
            below = part["properties"][name]
            if isinstance(value, dict) and value and "properties" in below:
                check(value, below, f"{path}.{name}")

    check(values, schema, "values")


def test_values_that_do_not_hold_are_refused() -> None:
    for wrong in (
        "settings.nonsense=1",
        "replicas=0",
        "replica=3",
        "service.type=Ingress",
        "etcd.replicas=2",
        "terminationGracePeriodSeconds=5",
    ):
        words = ("template", "a", str(CHART), "--kube-version", "1.31.0", "--set", wrong)
        assert wrong.partition("=")[0].split(".")[-1] in helm(*words, expect=1)
    assert "etcd.endpoints" in helm(*words[:5], "--set", "etcd.enabled=false", expect=1)


@pytest.mark.parametrize("values", [(), ("replicas=1",), ("etcd.enabled=false", "etcd.endpoints={https://e:2379}")])
def test_what_the_chart_renders_fits_the_schemas_of_kubernetes(values: tuple[str, ...]) -> None:
    checked = [one["kind"] for one in rendered(*values) if check_schema(one)]
    assert {"StatefulSet", "Service"} <= set(checked)


def test_the_schema_has_every_section_of_the_settings() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["settings"]["properties"]
    assert list(schema) == [field.encode_name for field in msgspec.structs.fields(Config)]


@pytest.mark.parametrize(("limit", "memory"), [("8Gi", "6144MiB"), ("1000Mi", "750MiB"), ("null", None)])
def test_the_broker_refuses_clients_before_the_kernel_ends_its_container(limit: str, memory: str | None) -> None:
    documents = rendered(f"resources.limits.memory={limit}")
    settings = yaml.safe_load(by_name(documents, "ConfigMap", "starlingmq")["data"]["starlingmq.yaml"])
    assert settings["limits"].get("memory") == memory
    words = ("template", "a", str(CHART), "--kube-version", "1.31.0", "--set")
    assert "give it in Mi or Gi" in helm(*words, "resources.limits.memory=700M", expect=1)


def test_listeners_without_the_one_of_the_probes_are_refused() -> None:
    words = ("template", "a", str(CHART), "--kube-version", "1.31.0", "--set-json")
    assert "probes" in helm(*words, 'settings.listeners=["mqtts://0.0.0.0:8883"]', expect=1)
    assert "probes" in helm(*words, 'settings.listeners=[{"url": "http://0.0.0.0:8080"}]', expect=1)
    for right in ('["https://0.0.0.0:8080"]', '["mqtt://[::]:1883", {"url": "https://[::]:8080", "tls": {}}]'):
        helm(*words, f"settings.listeners={right}")


def test_lint_finds_nothing() -> None:
    assert "0 chart(s) failed" in helm("lint", str(CHART))


def test_a_lost_machine_takes_one_node_and_one_member_of_etcd() -> None:
    documents = rendered()
    for name in ("starlingmq", "starlingmq-etcd"):
        spec = by_name(documents, "StatefulSet", name)["spec"]
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"] == labels
        assert by_name(documents, "PodDisruptionBudget", name)["spec"] == {
            "maxUnavailable": 1,
            "selector": {"matchLabels": labels},
        }
        pod = spec["template"]["spec"]
        (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert apart == {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
        (zones,) = pod["topologySpreadConstraints"]
        assert zones["topologyKey"] == "topology.kubernetes.io/zone" and zones["labelSelector"]["matchLabels"] == labels
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"]


def test_the_broker_takes_the_settings_with_those_of_the_values_over_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = rendered("nats.enabled=true", "settings.limits.memory=3GiB", "settings.log.level=debug")
    settings = by_name(documents, "ConfigMap", "starlingmq")["data"]["starlingmq.yaml"]
    assert yaml.safe_load(settings)["limits"] == {"memory": "3GiB"}
    env = {"STARLINGMQ_NODE__NAME": "n1", "STARLINGMQ_CLUSTER__ADVERTISE": "n1.nodes.a.svc:7883"}
    check_settings(tmp_path, settings, env, monkeypatch)


def test_certificates_have_the_names_under_which_nodes_and_etcd_are_called() -> None:
    values = ("tls.certManager.enabled=true", "tls.certManager.dnsNames={mqtt.example.org}", "clusterDomain=my.domain")
    documents = rendered(*values, namespace="iot")
    names = by_name(documents, "Certificate", "starlingmq-tls")["spec"]["dnsNames"]
    (node,) = by_name(documents, "StatefulSet", "starlingmq")["spec"]["template"]["spec"]["containers"]
    advertised = next(each["value"] for each in node["env"] if each["name"] == "STARLINGMQ_CLUSTER__ADVERTISE")
    host = advertised.rpartition(":")[0].replace("$(NAMESPACE)", "iot")
    assert f"*.{host.partition('.')[2]}" in names and "mqtt.example.org" in names
    settings = yaml.safe_load(by_name(documents, "ConfigMap", "starlingmq")["data"]["starlingmq.yaml"])
    for endpoint in settings["cluster"]["etcd"]["endpoints"]:
        name = f"*.{endpoint.partition('.')[2].partition(':')[0]}"
        assert {name, f"{name}.my.domain"} <= set(names), "etcd looks up whole names"
    assert "*.starlingmq-nodes.iot.svc.my.domain" in names


def test_an_etcd_that_is_there_takes_the_place_of_the_charts() -> None:
    documents = rendered("etcd.enabled=false", "etcd.endpoints={a.example:2379,b.example:2379}")
    assert [one["metadata"]["name"] for one in documents if one["kind"] == "StatefulSet"] == ["starlingmq"]
    settings = yaml.safe_load(by_name(documents, "ConfigMap", "starlingmq")["data"]["starlingmq.yaml"])
    assert settings["cluster"]["etcd"]["endpoints"] == ["a.example:2379", "b.example:2379"]
