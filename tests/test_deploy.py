"""The files for operators name only metrics, commands and settings that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from starlingmq.admin.metric_values import FAMILIES
from starlingmq.cli.local_cluster import COPIES
from tests.cli.commands import run as starlingmq

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
SUFFIX = re.compile(r"_(total|bucket|sum|count)$")


@pytest.mark.parametrize("name", ["prometheus/alerts.yaml", "grafana/starlingmq.json"])
def test_the_metrics_that_are_asked_for_are_told(name: str) -> None:
    asked = set(re.findall(r"\bstarlingmq_\w+", (DEPLOY / name).read_text(encoding="utf-8")))
    assert asked
    known = {f"starlingmq_{name}" for name in FAMILIES}
    assert [each for each in sorted(asked) if each not in known and SUFFIX.sub("", each) not in known] == []


def test_the_dashboard_is_what_its_script_writes() -> None:
    written = subprocess.run([sys.executable, ROOT / "scripts/grafana-dashboard"], capture_output=True, check=True)
    assert json.loads(written.stdout) == json.loads((DEPLOY / "grafana/starlingmq.json").read_text(encoding="utf-8"))


def test_each_alert_says_what_it_means_and_what_to_look_at() -> None:
    (group,) = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text(encoding="utf-8"))["groups"]
    assert len(group["rules"]) > 5
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith((".", "?")), rule["alert"]
    scrape = yaml.safe_load((DEPLOY / "prometheus/scrape.yaml").read_text(encoding="utf-8"))
    assert scrape["scrape_configs"][0]["job_name"] == "starlingmq"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd/starlingmq.service").read_text(encoding="utf-8")
    unit = tmp_path / "starlingmq.service"
    unit.write_text(text.replace("/opt/starlingmq/bin/starlingmq", "/bin/true"), encoding="utf-8")
    checked = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert checked.returncode == 0 and not [line for line in checked.stderr.splitlines() if unit.name in line]


def test_the_cluster_example_of_the_package_is_accepted_alone_and_by_its_own_commands(tmp_path: Path) -> None:
    """It replaces a line of the settings that the package installs."""
    example, installed = DEPLOY / "debian/cluster.yaml", tmp_path / "starlingmq.yaml"
    shutil.copy(DEPLOY / "debian/starlingmq.yaml", installed)
    lines = example.read_text(encoding="utf-8").splitlines()
    commands = "\n".join(line.removeprefix("#   ") for line in lines if line.startswith("#   "))
    assert commands.count("\n") == 1
    places = {
        "/etc/starlingmq/starlingmq.yaml": str(installed),
        "/usr/share/doc/starlingmq-cluster/examples/cluster.yaml": str(example),
    }
    for there, here in places.items():
        assert there in commands
        commands = commands.replace(there, here)
    subprocess.run(["sh", "-ec", commands], check=True)
    for path in (example, installed):
        code, _, errors = starlingmq("config", "check", "-c", str(path))
        missing = [line for line in errors.splitlines() if not line.startswith("warning: /etc/starlingmq/")]
        assert (code, missing) == (0, []), path.name  # its certificates are those of the reader
    settings = yaml.safe_load(installed.read_text(encoding="utf-8"))
    assert settings["auth"]["password"]["first_user"] == "admin"


def test_every_shipped_cluster_has_copies_as_cluster_up_has() -> None:
    for name in ("debian/cluster.yaml", "docker/starlingmq.yaml", "kubernetes/settings.yaml"):
        assert yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))["cluster"]["copies"] == COPIES, name
    helm = (DEPLOY / "helm/starlingmq/templates/_helpers.tpl").read_text(encoding="utf-8")
    assert f'"copies" (min {COPIES} (int .Values.replicas))' in helm


def test_the_links_of_the_installed_pages_lead_to_installed_files(tmp_path: Path) -> None:
    installed = tmp_path / "doc"
    subprocess.run([DEPLOY / "debian/install-docs", ROOT, installed], check=True)
    pages = list(installed.glob("*.md"))
    assert len(pages) > 30 and (installed / "examples/prometheus/alerts.yaml").is_file()
    lost = []
    for page in pages:
        text = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            path = link.partition("#")[0]
            if path and "://" not in path and not path.startswith("mailto:") and not (installed / path).exists():
                lost.append(f"{page.name}: {link}")
        for path in re.findall(r"/usr/share/doc/starlingmq/([\w./-]+)", text):
            if not (installed / path.rstrip(".")).exists():
                lost.append(f"{page.name}: {path}")
        assert not re.search(r"deploy/(prometheus|grafana|systemd)", text), page.name
    assert lost == []


def test_a_purge_removes_the_secrets_and_leaves_what_the_administrator_added(tmp_path: Path) -> None:
    settings, data = tmp_path / "etc", tmp_path / "var"
    script = (DEPLOY / "debian/starlingmq.postrm").read_text(encoding="utf-8")
    for there, here in {
        "/etc/starlingmq": settings,
        "/var/lib/starlingmq": data,
        "/usr/": tmp_path / "usr",
        "/run/": tmp_path / "run",
    }.items():
        assert there in script
        script = script.replace(there, f"{here}/" if there.endswith("/") else str(here))
    secrets = ["cluster-secret", "api-tokens", "node.key", "tls.key"]
    for added in ([], ["ca.crt"]):
        settings.mkdir(exist_ok=True)
        data.mkdir()
        for name in [*secrets, *added]:
            (settings / name).touch()
        subprocess.run(["sh", "-c", script, "postrm", "remove"], check=True)
        assert data.exists() and (settings / "node.key").exists()
        subprocess.run(["sh", "-c", script, "postrm", "purge"], check=True)
        assert not data.exists()
        assert settings.exists() == bool(added)
        if added:
            assert [path.name for path in settings.iterdir()] == added
