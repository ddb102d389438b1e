"""The pods that the chart renders, on this machine: three nodes and three members of etcd (`make test-pods`)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trustme

import starlingmq
from tests.cli.commands import run
from tests.packaging.manifests import ROOT, by_name, rendered
from tests.packaging.pods import USER, Pod, bridge
from tests.packaging.runtime import Image

pytestmark = [
    pytest.mark.long(alone="needs the image of make image, and root"),
    pytest.mark.shipped,
    pytest.mark.timeout(900),
]

NAMESPACE: Final = "starlingmq"
TOKEN: Final = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    missing = [name for name in ("runc", "ip", "helm") if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"needs root and {', '.join(missing)}")
    file = ROOT / "dist" / f"starlingmq-{starlingmq.__version__}.oci.tar"
    assert file.exists(), "make image first"
    return Image(file, tmp_path_factory.mktemp("image"))


def volumes(directory: Path, documents: list[dict[str, Any]]) -> dict[str, Path]:
    """The content of the secrets and the configuration that the manifests name."""
    certificates = rendered("tls.certManager.enabled=true", namespace=NAMESPACE)
    names = by_name(certificates, "Certificate", "starlingmq-tls")["spec"]["dnsNames"]
    authority = trustme.CA()
    node = authority.issue_cert(*names)
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
    for name, text in by_name(documents, "ConfigMap", "starlingmq")["data"].items():
        (found["config"] / name).write_text(text)
    for path in found.values():
        for file in path.iterdir():
            os.chown(file, 0, USER)
            file.chmod(0o440)
    return {**found, "config:starlingmq": found["config"]}


@pytest.fixture
def pods(image: Image, tmp_path: Path) -> Iterator[dict[str, list[Pod]]]:
    """Both sets, ready."""
    documents = rendered(namespace=NAMESPACE)
    contents = volumes(tmp_path, documents)
    sets: dict[str, list[Pod]] = {}
    hosts = ["127.0.0.1 localhost"]
    number = 10
    for name in ("starlingmq-etcd", "starlingmq"):
        spec = by_name(documents, "StatefulSet", name)["spec"]
        sets[name] = []
        for index in range(spec["replicas"]):
            number += 1
            pod = Pod(image, tmp_path, spec, f"{name}-{index}", number, contents)
            sets[name].append(pod)
            short = f"{pod.name}.{spec['serviceName']}"
            hosts.append(f"{pod.address} {pod.name} {short} {short}.{NAMESPACE}.svc")
    (tmp_path / "hosts").write_text("\n".join(hosts) + "\n")
    everyone = [pod for each in sets.values() for pod in each]
    with bridge():
        try:
            for pod in everyone:
                pod.start(NAMESPACE)
            for pod in everyone:
                pod.wait_until_ready()
            yield sets
        finally:
            for pod in everyone:
                pod.close()


def client(pod: Pod, *words: str, expect: int = 0) -> str:
    """A command of a client inside a pod, to its own node."""
    assert pod.container is not None
    login = ("-h", f"{pod.name}.starlingmq-nodes.{NAMESPACE}.svc", "-p", "8883", "-u", "sensor", "-P", "secret")
    tls = ("--cafile", "/etc/starlingmq/tls/ca.crt", "-q", "1")
    return pod.container.execute("starlingmq", words[0], *login, *tls, *words[1:], expect=expect)


def test_the_rendered_pods_are_a_cluster_and_a_rolling_update_loses_nothing(pods: dict[str, list[Pod]]) -> None:
    nodes = pods["starlingmq"]
    for pod in nodes:
        assert pod.probe("livenessProbe") and pod.probe("startupProbe")
    assert nodes[0].container is not None
    status = nodes[0].container.execute("starlingmq", "ctl", "cluster", "status", "--data-dir", "/var/lib/starlingmq")
    assert "3 of 3" in status, status
    client(nodes[2], "sub", "-i", "cellar", "-c", "-t", "alarm/#", "-E")
    sent: list[str] = []

    def publish(pod: Pod) -> None:
        sent.append(f"message {len(sent)}")
        client(pod, "pub", "-t", "alarm/door", "-m", sent[-1])

    publish(nodes[0])
    # The rules of a StatefulSet: from the highest number down, the next one when the last one is ready.
    for pod in reversed(nodes):
        others = [each for each in nodes if each is not pod]
        pod.stop()
        assert not pod.probe("readinessProbe")
        publish(others[0])
        publish(others[1])
        pod.start(NAMESPACE)
        pod.wait_until_ready()
        publish(pod)
    received = client(nodes[1], "sub", "-i", "cellar", "-c", "-t", "alarm/#", "-C", str(len(sent)), "-W", "60")
    assert sorted(received.splitlines()) == sorted(sent)
    for pod in reversed(pods["starlingmq-etcd"]):
        pod.stop()
        publish(nodes[0])
        pod.start(NAMESPACE)
        pod.wait_until_ready()
