"""StatefulSets run by hand: each pod is played by ``podman kube play`` with an address of its own on one network.

Image, command, environment, security contexts, limits, mounts and grace period are those of the manifest. What podman
does not know is done here: variables in commands, names of headless services (in /etc/hosts), volumes of secrets and
configurations (files of this machine), claims (a directory with the group of ``fsGroup``), and probes.
"""

from __future__ import annotations

import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests.packaging.podman import Container, Engine

USER: Final = 10001
NETWORK: Final = "pods"
SUBNET: Final = "172.31.84"
PATIENCE: Final = 120.0


@contextmanager
def network(podman: Engine) -> Iterator[None]:
    """A network of this machine alone."""
    podman("network", "create", "--subnet", f"{SUBNET}.0/24", NETWORK)
    try:
        yield
    finally:
        podman("network", "rm", "--force", NETWORK)


class Pod:
    """One pod of a StatefulSet. ``volumes``: the content of secrets and of the configuration, by the name of each."""

    def __init__(
        self,
        podman: Engine,
        image: str,
        directory: Path,
        spec: dict[str, Any],
        name: str,
        number: int,
        volumes: dict[str, Path],
        namespace: str,
    ) -> None:
        self.image = image
        self.name = name
        self.address = f"{SUBNET}.{number}"
        self.host = f"{self.name}.{spec['serviceName']}.{namespace}.svc"
        self.hosts: list[dict[str, Any]] = []
        self._podman = podman
        self._file = directory / f"{self.name}.yaml"
        self._claim = directory / f"data-{self.name}"
        self._pod = spec["template"]["spec"]
        (self._spec,) = self._pod["containers"]
        self._volumes = volumes
        self._claims = {each["metadata"]["name"] for each in spec["volumeClaimTemplates"]}
        self._fields = {"metadata.name": self.name, "metadata.namespace": namespace}

    @property
    def container(self) -> Container:
        return Container(self._podman, f"{self.name}-{self._spec['name']}")

    def start(self) -> None:
        if not self._claim.exists():
            self._claim.mkdir(mode=0o770)
            os.chown(self._claim, 0, USER)  # as fsGroup does
            self._claim.chmod(0o2770)
        self._file.write_text(yaml.safe_dump(self._document()))
        self._podman("kube", "play", "--network", NETWORK, "--ip", self.address, self._file)

    def stop(self) -> None:
        """As Kubernetes: SIGTERM, and the grace period of the manifest."""
        before = time.monotonic()
        grace = self._pod["terminationGracePeriodSeconds"]
        assert self.container.stop(grace) == 0, self.container.log()[-3000:]
        assert time.monotonic() - before < grace
        self.remove()

    def remove(self) -> None:
        """At once, as if its machine were gone."""
        self._podman("pod", "rm", "--force", "--time", "0", self.name)

    def lose_its_volume(self) -> None:
        self._claim.rename(self._claim.with_suffix(f".lost{time.monotonic_ns()}"))

    def probe(self, kind: str) -> bool:
        """Whether a probe of the manifest succeeds. Kubernetes does not check the certificate."""
        asked = self._spec[kind]["httpGet"]
        ports = {each["name"]: each["containerPort"] for each in self._spec["ports"]}
        url = f"{asked.get('scheme', 'HTTP').lower()}://{self.address}:{ports[asked['port']]}{asked['path']}"
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        try:
            with urllib.request.urlopen(url, timeout=5, context=context) as answer:
                return bool(200 <= answer.status < 400)
        except (OSError, urllib.error.URLError):
            return False

    def wait_until_ready(self) -> None:
        end = time.monotonic() + PATIENCE
        while not self.probe("readinessProbe"):
            assert time.monotonic() < end, f"{self.name} is not ready:\n{self.container.log()[-3000:]}"
            time.sleep(0.3)

    def _document(self) -> dict[str, Any]:
        env: dict[str, str] = {}
        for each in self._spec.get("env", []):
            field = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            env[each["name"]] = self._fields[field] if field else _expanded(each["value"], env)
        container = {
            **{key: self._spec[key] for key in ("name", "resources", "securityContext") if key in self._spec},
            **{
                key: [_expanded(word, env) for word in self._spec[key]]
                for key in ("command", "args")
                if key in self._spec
            },
            "image": self.image,
            "imagePullPolicy": "Never",
            "env": [{"name": name, "value": value} for name, value in env.items()],
        }
        sources = dict(self._sources())
        mounts = [mount for mount in self._spec["volumeMounts"] if mount["name"] in sources]
        container["volumeMounts"] = [
            {key: mount[key] for key in ("name", "mountPath", "readOnly") if key in mount} for mount in mounts
        ]
        volumes = []
        for mount in mounts:
            source = sources[mount["name"]] / mount.get("subPath", "")
            volumes.append({"name": mount["name"], "hostPath": {"path": str(source)}})
        spec = {
            **{key: self._pod[key] for key in ("securityContext", "terminationGracePeriodSeconds")},
            "hostname": self.name,
            "hostAliases": self.hosts,
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": volumes,
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.name}, "spec": spec}

    def _sources(self) -> Iterator[tuple[str, Path]]:
        for name in self._claims:
            yield name, self._claim
        for volume in self._pod["volumes"]:
            if "secret" in volume:
                yield volume["name"], self._volumes[volume["secret"]["secretName"]]
            elif "configMap" in volume:
                yield volume["name"], self._volumes["config:" + volume["configMap"]["name"]]


def _expanded(text: str, env: dict[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda match: env[match[1]], text)
