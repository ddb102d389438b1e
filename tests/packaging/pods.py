"""StatefulSets run by hand: each pod is a container of runc in a network namespace of its own, on one bridge.

Command, arguments, environment, volumes, probes and grace period are those of the manifest, and nothing else. Names of
pods are in /etc/hosts of each container, in place of the DNS of headless services.
"""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.packaging.runtime import Container, Image, bound, started

USER: Final = 10001
BRIDGE: Final = "smqpods"
SUBNET: Final = "172.31.84"
PATIENCE: Final = 120.0


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def bridge() -> Iterator[None]:
    """A network of this machine alone."""
    ip("link", "add", BRIDGE, "type", "bridge")
    try:
        ip("addr", "add", f"{SUBNET}.1/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        yield
    finally:
        ip("link", "delete", BRIDGE)


@contextmanager
def network(number: int) -> Iterator[str]:
    """A network namespace with an address on the bridge; its path."""
    name, inside, outside = f"smqpod{number}", f"smqi{number}", f"smqo{number}"
    ip("netns", "add", name)
    try:
        ip("link", "add", outside, "type", "veth", "peer", "name", inside)
        ip("link", "set", outside, "master", BRIDGE, "up")
        ip("link", "set", inside, "netns", name)
        for words in (
            ("addr", "add", f"{SUBNET}.{number}/24", "dev", inside),
            ("link", "set", inside, "up"),
            ("link", "set", "lo", "up"),
        ):
            ip("-n", name, *words)
        yield f"/run/netns/{name}"
    finally:
        # First: a link lives as long as its namespace, which waits for its last process.
        subprocess.run(["ip", "link", "delete", outside], check=False, capture_output=True)
        ip("netns", "delete", name)


class Pod:
    """One pod of a StatefulSet. ``volumes``: the content of secrets and of the configuration, by the name of each."""

    def __init__(
        self, image: Image, directory: Path, spec: dict[str, Any], name: str, number: int, volumes: dict[str, Path]
    ) -> None:
        self.name = name
        self.address = f"{SUBNET}.{number}"
        self._image = image
        self._directory = directory
        self._number = number
        self._pod = spec["template"]["spec"]
        (self._spec,) = self._pod["containers"]
        self._volumes = volumes
        self._claims = {each["metadata"]["name"] for each in spec["volumeClaimTemplates"]}
        self._stack = ExitStack()
        self.container: Container | None = None

    def start(self, namespace: str) -> None:
        variables = {"metadata.name": self.name, "metadata.namespace": namespace}
        env: dict[str, str] = {}
        for each in self._spec.get("env", []):
            if "value" in each:
                env[each["name"]] = self._expanded(each["value"], env)
            else:
                env[each["name"]] = variables[each["valueFrom"]["fieldRef"]["fieldPath"]]
        config = self._image.config["config"]
        command = self._spec.get("command", config["Entrypoint"]) + self._spec.get("args", [])
        words = [self._expanded(word, env) for word in command]
        path = self._stack.enter_context(network(self._number))
        pairs = [*config["Env"], *(f"{name}={value}" for name, value in env.items())]
        self.container = self._stack.enter_context(
            started(self._image, self._directory, words, pairs, list(self._mounts()), path)
        )

    def stop(self) -> None:
        """As Kubernetes: SIGTERM, and the grace period of the manifest."""
        assert self.container is not None
        before = time.monotonic()
        assert self.container.stop() == 0, self.container.log()[-3000:]
        assert time.monotonic() - before < self._pod["terminationGracePeriodSeconds"]
        self._stack.close()
        self.container = None

    def close(self) -> None:
        self._stack.close()

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
            assert self.container is not None
            assert time.monotonic() < end, f"{self.name} is not ready:\n{self.container.log()[-3000:]}"
            time.sleep(0.3)

    def _mounts(self) -> Iterator[dict[str, Any]]:
        hosts = self._directory / "hosts"
        yield bound(hosts, "/etc/hosts")
        sources = {}
        for volume in self._pod["volumes"]:
            if "secret" in volume:
                sources[volume["name"]] = self._volumes[volume["secret"]["secretName"]]
            elif "configMap" in volume:
                sources[volume["name"]] = self._volumes["config:" + volume["configMap"]["name"]]
        for mount in self._spec["volumeMounts"]:
            if mount["name"] in self._claims:
                claim = self._directory / f"{mount['name']}-{self.name}"
                if not claim.exists():
                    claim.mkdir(mode=0o770)
                    os.chown(claim, 0, USER)  # as fsGroup does
                    claim.chmod(0o2770)
                yield bound(claim, mount["mountPath"], writable=True)
            elif mount["name"] in sources:
                yield bound(sources[mount["name"]] / mount.get("subPath", ""), mount["mountPath"])

    @staticmethod
    def _expanded(text: str, env: dict[str, str]) -> str:
        return re.sub(r"\$\((\w+)\)", lambda match: env[match[1]], text)
