"""The pods of the Kubernetes manifests and those of the chart, on this machine: three nodes and three members of etcd
(`make test-image`)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
import yaml

from tests.cli.commands import run
from tests.packaging.conftest import NEXT_VERSION
from tests.packaging.manifests import by_name, rendered
from tests.packaging.podman import Engine
from tests.packaging.pods import PATIENCE, USER, Pod, network
from tests.test_deploy_containers import KUBERNETES

pytestmark = [pytest.mark.long(alone="needs images, and root"), pytest.mark.shipped, pytest.mark.timeout(2400)]

NAMESPACE: Final = "starlingmq"
TOKEN: Final = "0123456789abcdef0123456789abcdef"


class Manifests:
    """``nodes`` and ``etcd``: the names of the StatefulSets."""

    def __init__(self, documents: list[dict[str, Any]], certified: list[str], nodes: str, etcd: str) -> None:
        self.documents = documents
        self.certified = certified
        self.nodes = nodes
        self.etcd = etcd


def plain() -> Manifests:
    """As ``kubectl apply -k deploy/kubernetes`` reads them."""
    documents = [
        one
        for file in ("etcd.yaml", "starlingmq.yaml", "certificates.yaml")
        for one in yaml.safe_load_all((KUBERNETES / file).read_text())
    ]
    settings = {"starlingmq.yaml": (KUBERNETES / "settings.yaml").read_text()}
    documents.append({"kind": "ConfigMap", "metadata": {"name": "starlingmq"}, "data": settings})
    return Manifests(
        documents, by_name(documents, "Certificate", "starlingmq-tls")["spec"]["dnsNames"], "starlingmq", "etcd"
    )


def chart() -> Manifests:
    documents = rendered("tls.certManager.enabled=true", namespace=NAMESPACE)
    names = by_name(documents, "Certificate", "starlingmq-tls")["spec"]["dnsNames"]
    return Manifests(documents, names, "starlingmq", "starlingmq-etcd")


@pytest.fixture(params=[plain, chart])
def manifests(request: pytest.FixtureRequest) -> Manifests:
    found: Manifests = request.param()
    return found


def volumes(directory: Path, manifests: Manifests) -> dict[str, Path]:
    """The content of the secrets and the configuration that the manifests name."""
    authority = trustme.CA()
    node = authority.issue_cert(*manifests.certified)
    found = {name: directory / name for name in ("starlingmq", "starlingmq-tls", "config")}
    for path in found.values():
        path.mkdir()
    node.private_key_pem.write_to_path(found["starlingmq-tls"] / "tls.key")
    (found["starlingmq-tls"] / "tls.crt").write_bytes(b"".join(each.bytes() for each in node.cert_chain_pems))
    authority.cert_pem.write_to_path(found["starlingmq-tls"] / "ca.crt")
    (found["starlingmq"] / "cluster-secret").write_text("0123456789abcdef01234567")
    (found["starlingmq"] / "api-tokens").write_text(TOKEN)
    (found["starlingmq"] / "acl.yaml").write_text("rules: [{allow: all}]")
    run("passwd", str(found["starlingmq"] / "passwords"), "sensor", "--stdin", stdin=b"secret\n")
    for name, text in by_name(manifests.documents, "ConfigMap", "starlingmq")["data"].items():
        (found["config"] / name).write_text(text)
    for path in found.values():
        for file in path.iterdir():
            os.chown(file, 0, USER)
            file.chmod(0o440)
    return {**found, "config:starlingmq": found["config"]}


@pytest.fixture
def pods(podman: Engine, built: str, manifests: Manifests, tmp_path: Path) -> Iterator[dict[str, list[Pod]]]:
    """Both sets, ready."""
    contents = volumes(tmp_path, manifests)
    sets: dict[str, list[Pod]] = {"etcd": [], "nodes": []}
    for which, name in (("etcd", manifests.etcd), ("nodes", manifests.nodes)):
        spec = by_name(manifests.documents, "StatefulSet", name)["spec"]
        for index in range(spec["replicas"]):
            number = 11 + len(sets["etcd"]) + len(sets["nodes"])
            pod = Pod(podman, built, tmp_path, spec, f"{name}-{index}", number, contents, NAMESPACE)
            sets[which].append(pod)
    everyone = [*sets["etcd"], *sets["nodes"]]
    for pod in everyone:
        pod.hosts = [{"ip": each.address, "hostnames": [each.host]} for each in everyone]
    with network(podman):
        try:
            for pod in everyone:
                pod.start()
            for pod in everyone:
                pod.wait_until_ready()
            yield sets
        finally:
            podman("pod", "rm", "--all", "--force", "--time", "0")


def client(pod: Pod, *words: str, expect: int = 0) -> str:
    """A command of a client inside a pod, to its own node."""
    login = ("-h", pod.host, "-p", "8883", "-u", "sensor", "-P", "secret")
    tls = ("--cafile", "/etc/starlingmq/tls/ca.crt", "-q", "1")
    return pod.container.execute("starlingmq", words[0], *login, *tls, *words[1:], expect=expect)


def all_are_there(pod: Pod) -> None:
    """Waits until all three are members, as this one sees it."""
    end = time.monotonic() + PATIENCE
    asked = ("starlingmq", "ctl", "cluster", "status", "--data-dir", "/var/lib/starlingmq")
    while "3 of 3" not in (status := pod.container.execute(*asked, expect=None)):
        assert time.monotonic() < end, status
        time.sleep(0.5)


def test_a_node_is_lost_with_its_volume_and_a_rolling_update_loses_nothing(
    pods: dict[str, list[Pod]], built_next: str
) -> None:
    nodes = pods["nodes"]
    for pod in nodes:
        assert pod.probe("livenessProbe") and pod.probe("startupProbe")
    all_are_there(nodes[0])
    client(nodes[2], "sub", "-i", "cellar", "-c", "-t", "alarm/#", "-E")
    sent: list[str] = []

    def publish(pod: Pod) -> None:
        sent.append(f"message {len(sent)}")
        client(pod, "pub", "-t", "alarm/door", "-m", sent[-1])

    publish(nodes[0])
    nodes[2].remove()
    nodes[2].lose_its_volume()
    publish(nodes[0])
    publish(nodes[1])
    nodes[2].start()
    nodes[2].wait_until_ready()
    all_are_there(nodes[0])
    publish(nodes[2])
    # The rules of a StatefulSet: from the highest number down, the next one when the last one is ready.
    for pod in reversed(nodes):
        others = [each for each in nodes if each is not pod]
        pod.stop()
        assert not pod.probe("readinessProbe")
        publish(others[0])
        publish(others[1])
        pod.image = built_next
        pod.start()
        pod.wait_until_ready()
        assert NEXT_VERSION in pod.container.execute("starlingmq", "--version")
        publish(pod)
    received = client(nodes[1], "sub", "-i", "cellar", "-c", "-t", "alarm/#", "-C", str(len(sent)), "-W", "60")
    assert sorted(received.splitlines()) == sorted(sent)
    for pod in reversed(pods["etcd"]):
        pod.stop()
        publish(nodes[0])
        pod.start()
        pod.wait_until_ready()
