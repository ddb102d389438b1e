"""The manifests and the chart in a real Kubernetes: three nodes with kubelet and containerd (`make test-image`)."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.packaging.conftest import IMAGE, NEXT, NEXT_VERSION
from tests.packaging.kubernetes import Kubernetes, kubernetes, pause_image, saved
from tests.packaging.manifests import ROOT, rendered
from tests.packaging.podman import Engine
from tests.packaging.test_pods import NAMESPACE, Manifests, chart, plain, volumes
from tests.test_deploy_containers import KUBERNETES

pytestmark = [pytest.mark.long(alone="needs images, and root"), pytest.mark.shipped, pytest.mark.timeout(2400)]

PROGRAMS: Final = ROOT / "build" / "kubernetes"  # by scripts/kubernetes
PATIENCE: Final = 300.0
TAG: Final = "current"  # without a tag, an image is asked for at a registry
SIZES: Final = ("8Gi", "10Gi")  # of the claims of etcd, and of the nodes
DATA: Final = "/var/lib/starlingmq"


@pytest.fixture(scope="module")
def machines(podman: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    """Three nodes, without images."""
    directory = tmp_path_factory.mktemp("kubernetes")
    with kubernetes(PROGRAMS, directory) as made:
        made.start(3)
        pause = pause_image(podman, directory)
        for node in made.nodes:
            node.load(pause)
        made.join()
        yield made


@pytest.fixture(scope="module")
def images(machines: Kubernetes, podman: Engine, built: str, built_next: str) -> None:
    podman("tag", built, f"{IMAGE}:{TAG}")
    for image in (f"{IMAGE}:{TAG}", built_next):
        archive = saved(podman, image, machines.directory / "image.tar")
        for node in machines.nodes:
            node.load(archive)
        archive.unlink()


class Deployed:
    """In one namespace, with the secrets that docs/DEPLOY.md asks for."""

    def __init__(self, machines: Kubernetes, manifests: Manifests) -> None:
        self.machines = machines
        self.nodes = manifests.nodes
        self.etcd = manifests.etcd
        self.sent: list[str] = []  # acknowledged
        self.unsure: list[str] = []

    def kubectl(self, *words: str | Path, seconds: float = PATIENCE) -> str:
        return self.machines.kubectl("--namespace", NAMESPACE, *words, seconds=seconds)

    def get(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *words, "--output", "json"))
        return found

    def until(self, holds: Callable[[], bool]) -> None:
        try:
            self.machines.until(holds, PATIENCE)
        except AssertionError as error:
            pytest.fail(f"{error}\n{self.kubectl('get', 'pods,pvc', '-o', 'wide')}\n{self._last_words()}")

    def _last_words(self) -> str:
        events = self.kubectl("get", "events", "--sort-by=.lastTimestamp").splitlines()
        return "\n".join(events[-25:])

    def is_ready(self, pod: str) -> bool:
        found = [one for one in self.get("pods")["items"] if one["metadata"]["name"] == pod]
        conditions = {each["type"]: each["status"] for one in found for each in one["status"].get("conditions", [])}
        return conditions.get("Ready") == "True"

    def all_are_ready(self, *sets: str) -> bool:
        return all(self.is_ready(f"{name}-{index}") for name in sets for index in range(3))

    def execute(self, pod: str, *words: str) -> str:
        return self.kubectl("exec", pod, "--", *words)

    def client(self, pod: str, command: str, *words: str) -> str:
        """A client inside a pod, to whichever node the service selects."""
        login = ("-h", f"starlingmq.{NAMESPACE}.svc", "-p", "8883", "-u", "sensor", "-P", "secret")
        tls = ("--cafile", "/etc/starlingmq/tls/ca.crt", "-q", "1")
        return self.execute(pod, "starlingmq", command, *login, *tls, *words)

    def publish(self, pod: str) -> None:
        text = f"message {len(self.sent) + len(self.unsure)}"
        try:
            self.client(pod, "pub", "-t", "alarm/door", "-m", text)
        except AssertionError:
            self.unsure.append(text)  # the node was going, or the pod
        else:
            self.sent.append(text)

    def members(self, pod: str) -> str:
        return self.execute(pod, "starlingmq", "ctl", "cluster", "status", "--data-dir", DATA)

    def kill(self, pod: str) -> None:
        """SIGKILL to its process, as the kernel does when memory is short."""
        found = self.get("pod", pod)
        container = found["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        (node,) = [each for each in self.machines.nodes if each.name == found["spec"]["nodeName"]]
        task = ("ctr", "--address", node.socket, "-n", "k8s.io", "task", "kill", "--signal", "SIGKILL")
        self.machines.run(*task, container)

    def lose_volume(self, pod: str) -> None:
        """Delete the pod at once, with its claim, and give its node an empty volume."""
        name = self.get("pvc", f"data-{pod}")["spec"]["volumeName"]
        before = self.get("pod", pod)["metadata"]["uid"]
        (node,) = [each for each in self.machines.nodes if name.startswith(each.name)]
        self.kubectl("delete", "pvc", f"data-{pod}", "--wait=false")
        self.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
        self.machines.kubectl("delete", "pv", name)
        node.volume("10gi", "10Gi")
        self.until(lambda: self._identity(pod) != before and self.is_ready(pod))

    def _identity(self, pod: str) -> str:
        found = [one for one in self.get("pods")["items"] if one["metadata"]["name"] == pod]
        return found[0]["metadata"]["uid"] if found else ""

    def restarts(self, pod: str) -> int:
        return sum(each["restartCount"] for each in self.get("pod", pod)["status"].get("containerStatuses", []))

    def image(self, pod: str) -> str:
        """Of the pod; "" while there is none."""
        found = [one for one in self.get("pods")["items"] if one["metadata"]["name"] == pod]
        return found[0]["spec"]["containers"][0]["image"] if found else ""


@pytest.fixture(params=[plain, chart])
def deployed(machines: Kubernetes, images: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Deployed]:
    manifests: Manifests = request.param()
    made = Deployed(machines, manifests)
    try:
        for node in machines.nodes:
            for size in SIZES:
                node.volume(size.lower(), size)
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        machines.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
        files = volumes(tmp_path, manifests)
        for secret in ("starlingmq", "starlingmq-tls"):
            made.kubectl("create", "secret", "generic", secret, f"--from-file={files[secret]}")
        if request.param is plain:
            made.kubectl("apply", "-k", with_image(tmp_path / "manifests"))
        else:
            file = tmp_path / "chart.yaml"
            documents = rendered(f"image.repository={IMAGE}", f"image.tag={TAG}", namespace=NAMESPACE)
            file.write_text(yaml.safe_dump_all(documents))
            made.kubectl("apply", "-f", file)
        made.until(lambda: made.all_are_ready(made.etcd, made.nodes))
        yield made
    finally:
        machines.kubectl("delete", "namespace", NAMESPACE, seconds=PATIENCE)
        machines.kubectl("delete", "pv", "--all")


def with_image(directory: Path) -> Path:
    """The manifests, with the name of the image in ``kustomization.yaml``."""
    shutil.copytree(KUBERNETES, directory)
    with (directory / "kustomization.yaml").open("a") as file:
        file.write(yaml.safe_dump({"images": [{"name": "starlingmq", "newName": IMAGE, "newTag": TAG}]}))
    return directory


def test_nodes_are_killed_lose_a_volume_are_updated_and_drained(deployed: Deployed) -> None:
    first, second, third = (f"{deployed.nodes}-{index}" for index in range(3))
    places = {one["metadata"]["name"]: one["spec"]["nodeName"] for one in deployed.get("pods")["items"]}
    for name in (deployed.etcd, deployed.nodes):
        assert len({places[f"{name}-{index}"] for index in range(3)}) == 3, "one on each machine"
    deployed.until(lambda: "3 of 3" in deployed.members(first))
    deployed.client(third, "sub", "-i", "cellar", "-c", "-t", "alarm/#", "-E")
    deployed.publish(first)
    assert deployed.sent

    before = deployed.restarts(third)
    deployed.kill(third)
    deployed.until(lambda: deployed.restarts(third) > before and deployed.is_ready(third))
    deployed.publish(second)

    deployed.lose_volume(third)
    deployed.until(lambda: "3 of 3" in deployed.members(first))
    deployed.publish(third)

    deployed.kubectl("set", "image", f"statefulset/{deployed.nodes}", f"starlingmq={NEXT}")
    end = time.monotonic() + PATIENCE
    while deployed.image(first) != NEXT or not deployed.all_are_ready(deployed.nodes):
        deployed.publish(third if deployed.image(second) == NEXT else first)
        assert time.monotonic() < end, deployed.kubectl("get", "pods", "-o", "wide")
    assert NEXT_VERSION in deployed.execute(first, "starlingmq", "--version")
    assert len(deployed.unsure) <= len(deployed.sent)

    drain(deployed)
    count = str(len(deployed.sent))
    got = deployed.client(second, "sub", "-i", "cellar", "-c", "-t", "alarm/#", "-C", count, "-W", "60").splitlines()
    assert set(deployed.sent) <= {*got} <= {*deployed.sent, *deployed.unsure}


def drain(deployed: Deployed) -> None:
    """A machine is emptied: its node of the cluster ends, and the disruption budgets let no other one go."""
    pods = deployed.get("pods")["items"]
    place = pods[0]["spec"]["nodeName"]
    others = [one["metadata"]["name"] for one in pods if one["spec"]["nodeName"] != place]
    assert len(others) == 4
    deployed.machines.kubectl("drain", place, "--delete-emptydir-data", seconds=PATIENCE)
    for name in others:
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
        file = deployed.machines.directory / "eviction.json"
        file.write_text(json.dumps(eviction))
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
        with pytest.raises(AssertionError, match="would violate the pod's disruption budget"):
            deployed.kubectl("create", "--raw", path, "-f", file)
    before = len(deployed.sent)
    for name in others:
        if not name.startswith(f"{deployed.etcd}-"):
            deployed.publish(name)
    assert len(deployed.sent) == before + 2, "two of three serve"
    deployed.machines.kubectl("uncordon", place)
    deployed.until(lambda: deployed.all_are_ready(deployed.etcd, deployed.nodes))
