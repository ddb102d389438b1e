"""Containers as they are handed out: parsed, consistent in themselves, and the program takes what they tell it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
import yaml
from kubernetes_validate import ValidationError  # type: ignore[import-untyped]  # it has no types

from starlingmq.config.settings import NodeConfig
from tests.cli.commands import run as starlingmq
from tests.cli.commands import start
from tests.packaging.manifests import check_schema

ROOT: Final = Path(__file__).parent.parent
DOCKER: Final = ROOT / "deploy" / "docker"
KUBERNETES: Final = ROOT / "deploy" / "kubernetes"
INSTRUCTIONS: Final = frozenset(
    [
        "FROM",
        "RUN",
        "COPY",
        "ENV",
        "USER",
        "WORKDIR",
        "VOLUME",
        "EXPOSE",
        "STOPSIGNAL",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    ]
)
HEALTH: Final = frozenset(["/health/live", "/health/ready"])
SECRET_FILES: Final = {
    "cluster-secret": "0123456789abcdef01234567",
    "cluster_secret": "0123456789abcdef01234567",
    "api-tokens": "0123456789abcdef01234567",
    "api_token": "0123456789abcdef01234567",
    "acl.yaml": "rules: [{allow: all}]",
    "passwords": "",
}


def dockerfile() -> list[tuple[str, str]]:
    """Its instructions."""
    lines = (DOCKER / "Dockerfile").read_text(encoding="utf-8").splitlines(keepends=True)
    text = "".join(line for line in lines if not line.lstrip().startswith("#"))
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def documents() -> dict[tuple[str, str], dict[str, Any]]:
    """By kind and name."""
    found = {}
    for name in yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]:
        for one in yaml.safe_load_all((KUBERNETES / name).read_text()):
            assert one["apiVersion"], name
            found[one["kind"], one["metadata"]["name"]] = one
    return found


def test_the_manifests_fit_the_schemas_of_kubernetes() -> None:
    checked = {kind for (kind, _), one in documents().items() if check_schema(one)}
    assert {"StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy"} <= checked
    wrong = documents()["StatefulSet", "starlingmq"]
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(ValidationError, match="readinesProbe"):
        check_schema(wrong)


def check_settings(directory: Path, settings: str, environment: dict[str, str], monkeypatch: Any) -> None:
    """By the real command, with files where the settings look for them, but for where that is."""
    authority = trustme.CA()
    certificate = authority.issue_cert("n1.example")
    authority.cert_pem.write_to_path(directory / "ca.crt")
    certificate.private_key_pem.write_to_path(directory / "tls.key")
    for at, pem in enumerate(certificate.cert_chain_pems):
        pem.write_to_path(directory / "tls.crt", append=at > 0)
    for name, text in SECRET_FILES.items():
        (directory / name).write_text(text)
    moved = re.sub(r"/(etc/starlingmq/secrets|etc/starlingmq/tls|run/secrets)/", f"{directory}/", settings)
    (directory / "starlingmq.yaml").write_text(moved)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code, output, errors = starlingmq("config", "check", "-c", str(directory / "starlingmq.yaml"))
    assert (code, errors) == (0, ""), errors
    assert output.startswith(b"ok")


def test_the_image_is_made_of_what_there_is() -> None:
    instructions = dockerfile()
    assert {word for word, _ in instructions} <= INSTRUCTIONS
    copied = [rest.split()[:-1] for word, rest in instructions if word == "COPY" and not rest.startswith("--from")]
    assert all((ROOT / path).exists() for paths in copied for path in paths)
    last = dict(instructions)
    assert last["USER"] == "10001" and f"--uid {last['USER']}" in " ".join(rest for _, rest in instructions)
    assert json.loads(last["ENTRYPOINT"]) == ["starlingmq"] and last["STOPSIGNAL"] == "SIGTERM"
    assert {".git", ".venv"} <= set((ROOT / ".dockerignore").read_text().splitlines())


@pytest.mark.slow
def test_the_image_starts_what_serves(tmp_path: Path) -> None:
    words = json.loads(dict(dockerfile())["CMD"])
    words[words.index("--data-dir") + 1] = str(tmp_path)
    words[words.index("--listen") + 1] = "mqtt://127.0.0.1:0"
    words = [word.replace("/var/lib/starlingmq", str(tmp_path)) for word in words]
    command = start(*words)
    assert command.process.stdout is not None
    assert command.process.stdout.readline().startswith(b"ready mqtt://")
    command.process.terminate()
    code, _, errors = command.finish()
    assert code == 0 and "first user: admin, password: " in errors
    assert (tmp_path / "passwords").exists()


def test_nothing_that_is_handed_out_lets_anybody_in_without_a_password() -> None:
    files = [path for path in (ROOT / "deploy").rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [path.name for path in files if "anonymous" in path.read_text(encoding="utf-8")] == []
    asks = yaml.safe_load((DOCKER / "starlingmq.yaml").read_text())["auth"]
    assert asks["password"]["file"] and asks["api"]["token_file"]


def test_manifests_speak_tls_or_say_why_not() -> None:
    """An address without TLS in a line, or in the block that it is in, needs the words "without TLS" above it."""
    spoken = probes = 0
    for path in sorted(KUBERNETES.glob("*.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for at, line in enumerate(lines):
            if re.search(r"\b(http|mqtt|nats|ws)://|allow_insecure|scheme: HTTP\b", line):
                assert re.match(r"\s*# Without TLS, because ", lines[at - 1]), f"{path.name}: {line}"
                spoken += 1
            if "httpGet" in line and "health}" not in line:
                assert "scheme: HTTPS" in line, f"{path.name}: {line}"
                probes += 1
    assert spoken and probes, "nothing was looked at"


def test_the_certificates_fit_what_uses_them() -> None:
    found = {}
    for one in yaml.safe_load_all((KUBERNETES / "certificates.yaml").read_text()):
        found[one["kind"], one["metadata"]["name"]] = one["spec"]
    certificate = found["Certificate", "starlingmq-tls"]
    for name in ("starlingmq", "etcd"):
        volumes = documents()["StatefulSet", name]["spec"]["template"]["spec"]["volumes"]
        assert certificate["secretName"] in [volume.get("secret", {}).get("secretName") for volume in volumes]
    assert {"server auth", "client auth"} <= set(certificate["usages"])
    domains = ("", ".cluster.local")
    names = {f"*.{service}.starlingmq.svc{domain}" for service in ("nodes", "etcd") for domain in domains}
    assert names <= set(certificate["dnsNames"]), "etcd looks up whole names"
    # gRPC refuses a wildcard for a name of two parts, such as *.etcd.
    assert [name for name in certificate["dnsNames"] if name.startswith("*") and name.count(".") < 2] == []
    for spec in found.values():
        if "issuerRef" in spec:
            assert (spec["issuerRef"]["kind"], spec["issuerRef"]["name"]) in found
    authority = found["Issuer", certificate["issuerRef"]["name"]]["ca"]["secretName"]
    assert found["Certificate", "starlingmq-authority"]["secretName"] == authority


def test_three_nodes_of_compose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    settings = (DOCKER / "starlingmq.yaml").read_text()
    etcd = yaml.safe_load(settings)["cluster"]["etcd"]["initial_members"]
    published: list[str] = []
    for name, service in tree["services"].items():
        environment = service["environment"]
        address = service["networks"]["nodes"]["ipv4_address"]
        assert environment["STARLINGMQ_NODE__NAME"] == name
        assert environment["STARLINGMQ_CLUSTER__ETCD__HOST"] == address and f"{name}={address}:2380" in etcd
        assert int(service["stop_grace_period"].removesuffix("s")) > NodeConfig().shutdown_timeout
        assert set(service["secrets"]) <= set(tree["secrets"])
        assert service["command"] == ["serve", "-c", "/etc/starlingmq/starlingmq.yaml"]
        assert any(path in service["healthcheck"]["test"][-1] for path in HEALTH)
        named = [volume.partition(":")[0] for volume in service["volumes"] if not volume.startswith("./")]
        assert named == [name] and name in tree["volumes"]
        ports = [mapping.rpartition(":") for mapping in service["ports"]]
        assert {port for _, _, port in ports} == {"1883", "4222", "8080"}
        published += [host.rpartition(":")[2] for host, _, _ in ports]
    assert len(published) == len(set(published)) == 9 and len(etcd) == 3
    environment = tree["services"]["n1"]["environment"]
    check_settings(tmp_path, settings, environment, monkeypatch)


def test_the_manifests_fit_together() -> None:
    found = documents()
    nodes = found["StatefulSet", "starlingmq"]["spec"]
    headless = found["Service", nodes["serviceName"]]["spec"]
    assert headless["clusterIP"] == "None" and headless["publishNotReadyAddresses"]
    for name in ("starlingmq", "etcd"):
        spec = found["StatefulSet", name]["spec"]
        labels = spec["template"]["metadata"]["labels"]
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        assert spec["selector"]["matchLabels"] == labels
        assert found["PodDisruptionBudget", name]["spec"]["selector"]["matchLabels"] == labels
        assert found["PodDisruptionBudget", name]["spec"]["maxUnavailable"] == 1 and spec["replicas"] == 3
        assert pod["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
        volumes = {
            volume["name"] for volume in pod["volumes"] + [one["metadata"] for one in spec["volumeClaimTemplates"]]
        }
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        ports = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe in container:
                assert container[probe]["httpGet"]["port"] in ports
                assert container[probe]["httpGet"]["path"] in HEALTH | {"/health"}
        for service in (one["spec"] for (kind, _), one in found.items() if kind == "Service"):
            if service["selector"] == labels:
                assert {port.get("targetPort", port["name"]) for port in service["ports"]} <= ports
        rules = found["NetworkPolicy", name]["spec"]
        assert rules["podSelector"]["matchLabels"] == labels
        assert {port["port"] for rule in rules["ingress"] for port in rule.get("ports", [])} <= ports
        on_any_port = [rule["from"] for rule in rules["ingress"] if "ports" not in rule]
        assert on_any_port == ([[{"podSelector": {"matchLabels": labels}}]] if name == "starlingmq" else [])
    pod = nodes["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > NodeConfig().shutdown_timeout + 10
    assert pod["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/health/ready"


def test_the_settings_of_the_manifests_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (container,) = documents()["StatefulSet", "starlingmq"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["serve", "-c", "/etc/starlingmq/starlingmq.yaml"]
    settings = (KUBERNETES / "settings.yaml").read_text()
    tree = yaml.safe_load(settings)
    urls = [one if isinstance(one, str) else one["url"] for one in tree["listeners"]]
    listening = {int(url.rpartition(":")[2]) for url in [*urls, tree["cluster"]["listen"]]}
    assert listening == {port["containerPort"] for port in container["ports"]}
    environment = {
        one["name"]: one["value"].replace("$(POD)", "starlingmq-0").replace("$(NAMESPACE)", "starlingmq")
        for one in container["env"]
        if "value" in one
    }
    check_settings(tmp_path, settings, environment, monkeypatch)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_puts_them_together() -> None:
    made = subprocess.run(["kubectl", "kustomize", str(KUBERNETES)], capture_output=True, text=True, check=True)
    kinds = [one["kind"] for one in yaml.safe_load_all(made.stdout)]
    assert kinds.count("StatefulSet") == 2 and "ConfigMap" in kinds
