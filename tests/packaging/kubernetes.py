"""A Kubernetes of its own: API server with etcd, controllers, scheduler, DNS, and nodes with kubelet and containerd.

All run in namespaces of the kernel that end with the test: of processes, mounts and the network. Nodes share one
network, ``SUBNET``: each kubelet has an address on its bridge, and the pods of all nodes are on it. Volumes are
directories of nodes (``local``), made here, as no provisioner runs. Nothing enforces network policies.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from starlingmq.net.process import ending_with_us
from tests.packaging import kubernetes_dns
from tests.packaging.podman import Engine

SUBNET: Final = "172.31.85"
ADDRESS: Final = f"{SUBNET}.1"  # of the API server and of DNS; nodes have those after it
SERVER: Final = f"https://{ADDRESS}:6443"
BRIDGE: Final = "pods0"
TOKEN: Final = "kubernetes-test"
NEEDED: Final = ("containerd", "ctr", "runc", "etcd", "iptables", "nsenter", "unshare", "openssl", "gcc", "ip")
PROGRAMS: Final = (
    "kubectl",
    "kubelet",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
)
PLUGINS: Final = Path("/usr/lib/cni")
PATIENCE: Final = 120.0
PAUSE: Final = "localhost/pause:1"  # the container that holds the namespaces of a pod

CONTAINERD: Final = """
version = 2
root = "{directory}/root"
state = "{state}"
[grpc]
address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{cni}"
[plugins."io.containerd.internal.v1.opt"]
path = "{directory}/opt"
"""


class Node:
    """A kubelet and its containerd. ``volumes``: by size, the directories that claims are bound to."""

    def __init__(self, kubernetes: Kubernetes, number: int) -> None:
        self.name = f"node-{number}"
        self.address = f"{SUBNET}.{number + 2}"
        self.directory = kubernetes.directory / self.name
        self.directory.mkdir()
        self.state = Path(f"/run/kubernetes-test/{self.name}")  # a mount of the namespace: a short path for sockets
        self.socket = self.state / "containerd.sock"
        self._kubernetes = kubernetes

    def start(self) -> None:
        kubernetes = self._kubernetes
        kubernetes.run("mkdir", "-p", self.state)
        configuration = self.directory / "containerd.toml"
        configuration.write_text(
            CONTAINERD.format(
                directory=self.directory,
                state=self.state / "state",
                socket=self.socket,
                pause=PAUSE,
                plugins=PLUGINS,
                cni=kubernetes.directory / "cni",
            )
        )
        kubernetes.begin(f"{self.name}-containerd", "containerd", "--config", configuration)
        kubernetes.until(lambda: kubernetes.try_run("ctr", "--address", self.socket, "version") == 0)

    def load(self, archive: Path) -> None:
        self._kubernetes.run("ctr", "--address", self.socket, "-n", "k8s.io", "images", "import", archive)

    def join(self) -> None:
        kubernetes = self._kubernetes
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "healthzBindAddress": self.address,
            "readOnlyPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "oomScoreAdj": 0,  # a lower one needs a right that root may lack, as in a container
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "failCgroupV1": False,
            "clusterDNS": [ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(kubernetes.directory / "resolv.conf"),
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "podLogsDir": str(self.directory / "logs"),
            "volumePluginDir": str(self.directory / "plugins"),
            "nodeStatusUpdateFrequency": "2s",
        }
        file = self.directory / "kubelet.yaml"
        file.write_text(yaml.safe_dump(settings))
        kubernetes.begin(
            f"{self.name}-kubelet",
            kubernetes.programs / "kubelet",
            f"--config={file}",
            f"--kubeconfig={kubernetes.kubeconfig}",
            f"--root-dir={self.directory / 'kubelet'}",
            f"--cert-dir={self.directory / 'certificates'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
        )

    def volume(self, name: str, size: str) -> None:
        """A volume of this node for one claim; an earlier one of this name is lost with what is in it."""
        path = self.directory / "volumes" / name
        if path.exists():
            path.rename(path.with_suffix(f".lost{time.monotonic_ns()}"))
        path.mkdir(parents=True)
        terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [self.name]}]}]
        self._kubernetes.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"{self.name}-{name}"},
                "spec": {
                    "capacity": {"storage": size},
                    "accessModes": ["ReadWriteOnce"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "local": {"path": str(path)},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
                },
            }
        )


class Kubernetes:
    def __init__(self, programs: Path, directory: Path) -> None:
        self.programs = programs
        self.directory = directory
        self.kubeconfig = directory / "kubeconfig"
        self.nodes: list[Node] = []
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        sleep = shutil.which("sleep") or ""
        spaces = [
            shutil.which("unshare") or "",
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child=KILL",
            "--mount-proc",
        ]
        self._init = subprocess.Popen(ending_with_us([*spaces, sleep, "infinity"], signal.SIGKILL))
        self._processes["unshare"] = self._init
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children")
        self.until(lambda: children.read_text().strip() != "")
        self._inside = ["nsenter", "--target", children.read_text().strip(), "--net", "--mount", "--pid", "--"]

    # Processes

    def run(self, *words: str | Path, seconds: float = 120, stdin: bytes = b"") -> str:
        """The output of a command in the namespaces."""
        done = subprocess.run(
            [*self._inside, *words],
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
        said = done.stdout.decode()
        assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.returncode}\n{said[-3000:]}"
        return said

    def try_run(self, *words: str | Path, seconds: float = 60) -> int:
        return subprocess.run([*self._inside, *words], capture_output=True, timeout=seconds, check=False).returncode

    def begin(self, name: str, *words: str | Path) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*self._inside, *map(str, words)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def until(self, holds: Any, seconds: float = PATIENCE) -> None:
        end = time.monotonic() + seconds
        while not holds():
            for name, process in self._processes.items():
                assert process.poll() is None, f"{name} has ended:\n{self.log(name)[-3000:]}"
            assert time.monotonic() < end, "not in time"
            time.sleep(0.5)

    def close(self) -> None:
        self._init.kill()
        self._init.wait()
        for process in self._processes.values():
            process.wait(30)
        for left in sorted(Path("/sys/fs/cgroup").glob("**/k8s.io/**/"), key=lambda path: -len(path.parts)):
            with suppress(OSError):  # it is not empty, so it is of another containerd
                left.rmdir()

    # Starting

    def start(self, nodes: int) -> None:
        self._connect(nodes)
        self._control()
        self.begin("kube-proxy", self.programs / "kube-proxy", *self._proxy())
        self.begin("dns", sys.executable, Path(kubernetes_dns.__file__), ADDRESS, SERVER, TOKEN)
        self.nodes = [Node(self, number) for number in range(nodes)]
        for node in self.nodes:
            node.start()

    def join(self) -> None:
        for node in self.nodes:
            node.join()
        self.until(lambda: self.kubectl("get", "nodes").count(" Ready ") == len(self.nodes))

    def _connect(self, nodes: int) -> None:
        """The network of all pods, and places of this machine that nodes must not share with it."""
        for words in (
            "link set lo up",
            f"link add {BRIDGE} type bridge",
            *(f"address add {SUBNET}.{number + 1}/24 dev {BRIDGE}" for number in range(nodes + 1)),
            f"link set {BRIDGE} up",
            f"route add default via {SUBNET}.254",
        ):
            self.run("ip", *words.split())
        self.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        for place in ("/run", "/var/lib/kubelet", "/var/log"):
            self.run("mkdir", "-p", place)
            self.run("mount", "-t", "tmpfs", "tmpfs", place)
        (self.directory / "resolv.conf").write_text(f"nameserver {ADDRESS}\n")
        (self.directory / "cni").mkdir()
        network = {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": BRIDGE,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(self.directory / "addresses"),
                        "ranges": [[{"subnet": f"{SUBNET}.0/24", "rangeStart": f"{SUBNET}.20", "gateway": ADDRESS}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        }
        (self.directory / "cni" / "pods.conflist").write_text(json.dumps(network))

    def _control(self) -> None:
        directory = self.directory
        key = directory / "accounts.key"
        self.run("openssl", "genrsa", "-out", key, "2048")
        (directory / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
        cluster = {"server": SERVER, "insecure-skip-tls-verify": True}
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": "admin", "user": {"token": TOKEN}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
                    "current-context": "test",
                }
            )
        )
        url = "http://127.0.0.1:2379"
        self.begin(
            "etcd",
            "etcd",
            f"--data-dir={directory / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
        )
        self.begin(
            "kube-apiserver",
            self.programs / "kube-apiserver",
            f"--etcd-servers={url}",
            f"--bind-address={ADDRESS}",
            f"--advertise-address={ADDRESS}",
            f"--cert-dir={directory / 'certificates'}",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=RBAC",
            f"--token-auth-file={directory / 'tokens.csv'}",
            "--kubelet-preferred-address-types=InternalIP",
        )
        self.until(lambda: self.try_run(*self._kubectl(), "get", "--raw", "/readyz") == 0)
        login = (f"--kubeconfig={self.kubeconfig}", "--leader-elect=false")
        account = f"--service-account-private-key-file={key}"
        self.begin("kube-controller-manager", self.programs / "kube-controller-manager", *login, account)
        self.begin("kube-scheduler", self.programs / "kube-scheduler", *login)

    def _proxy(self) -> list[str]:
        """Of all nodes together. Packets between pods do not pass iptables, so those to a service get the address of
        the bridge as their source."""
        return [
            f"--kubeconfig={self.kubeconfig}",
            "--proxy-mode=iptables",
            "--masquerade-all",
            "--hostname-override=node-0",
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
            f"--healthz-bind-address={ADDRESS}",
            "--metrics-bind-address=127.0.0.1:10249",
        ]

    # Requests

    def _kubectl(self) -> tuple[str, ...]:
        return (str(self.programs / "kubectl"), f"--kubeconfig={self.kubeconfig}")

    def kubectl(self, *words: str | Path, seconds: float = 120, stdin: bytes = b"") -> str:
        return self.run(*self._kubectl(), *words, seconds=seconds, stdin=stdin)

    def apply(self, *documents: Mapping[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents).encode())


def pause_image(podman: Engine, directory: Path) -> Path:
    """The archive of an image that does nothing until it is told to end."""
    source = directory / "pause.c"
    source.write_text(
        "#include <signal.h>\n#include <unistd.h>\n#include <sys/wait.h>\n"
        "static void end(int n) { _exit(0); }\nstatic void reap(int n) { while (waitpid(-1, 0, WNOHANG) > 0); }\n"
        "int main(void) { signal(SIGTERM, end); signal(SIGINT, end); signal(SIGCHLD, reap); for (;;) pause(); }\n"
    )
    root = directory / "pause"
    root.mkdir()
    subprocess.run(["gcc", "-static", "-Os", "-o", root / "pause", source], check=True)
    archive = directory / "pause.tar"
    subprocess.run(["tar", "--create", "--file", archive, "--directory", root, "."], check=True)
    podman("import", "--change", 'ENTRYPOINT ["/pause"]', archive, PAUSE)
    archive.unlink()
    return saved(podman, PAUSE, archive)


def saved(podman: Engine, image: str, archive: Path) -> Path:
    podman("save", "--format", "docker-archive", "--output", archive, image, seconds=600)
    return archive


@contextmanager
def kubernetes(programs: Path, directory: Path) -> Iterator[Kubernetes]:
    """Skips where programs that it needs are missing."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    missing += [name for name in PROGRAMS if not (programs / name).exists()]
    missing += [] if PLUGINS.exists() else ["containernetworking-plugins"]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"needs root and {', '.join(missing or NEEDED)} (scripts/kubernetes)")
    made = Kubernetes(programs, directory)
    try:
        yield made
    finally:
        made.close()
