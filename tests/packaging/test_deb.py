"""The Debian packages on a Debian with systemd: installed, started, upgraded, removed, purged (`make test-deb`)."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import starlingmq
from tests.packaging.machine import ROOT, Machine, booted, refuse_without_tools

pytestmark = [
    pytest.mark.long(alone="needs the packages of make deb, and root"),
    pytest.mark.shipped,
    pytest.mark.timeout(900),
]

SETTINGS: Final = "/etc/starlingmq/starlingmq.yaml"
DATA: Final = "/var/lib/starlingmq"
NEW_DEFAULT: Final = "# a later default\n"
EXPOSURE_MOST: Final = 3.0  # of systemd-analyze security; 10 is a unit without any protection
SERVES: Final = ("sh", "-c", "starlingmq ctl health && echo it serves")
APT: Final = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold")


def debian_version() -> str:
    return re.sub(r"\.(dev|a|b|rc)", r"~\1", starlingmq.__version__) + "-1"


@pytest.fixture(scope="module")
def debs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages that `make deb` has made, those of a later version with other default settings, and some that refuse
    to be installed."""
    refuse_without_tools()
    directory = tmp_path_factory.mktemp("debs")
    made = sorted((ROOT / "dist").glob(f"starlingmq*_{debian_version()}_*.deb"))
    assert len(made) == 2, "make deb first"
    for path in made:
        shutil.copy(path, directory / f"{path.name.partition('_')[0]}-old.deb")
        tree = directory / "tree"
        subprocess.run(["dpkg-deb", "--raw-extract", path, tree], check=True)
        control = tree / "DEBIAN/control"
        control.write_text(control.read_text().replace(debian_version(), later()))
        if (settings := tree / SETTINGS.removeprefix("/")).exists():
            settings.write_text(settings.read_text() + NEW_DEFAULT)
        name = path.name.partition("_")[0]
        build(tree, directory / f"{name}-new.deb")
        refusing = tree / "DEBIAN/preinst"
        refusing.write_text("#!/bin/sh\nexit 1\n")
        refusing.chmod(0o755)
        build(tree, directory / f"{name}-refusing.deb")
        shutil.rmtree(tree)
    return directory


def build(tree: Path, package: Path) -> None:
    command = ("dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, package)
    subprocess.run(command, check=True, capture_output=True)


def later() -> str:
    return debian_version() + "+later"


@pytest.fixture(scope="module")
def machine(debs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    tree = tmp_path_factory.mktemp("machine") / "tree"
    with booted(tree, ("python3", "adduser", "man-db", "bash-completion", "etcd-server")) as machine:
        machine.shell("mkdir /debs; systemctl disable --now etcd.service 2>/dev/null || true")
        for path in debs.iterdir():
            shutil.copy(path, tree / "debs")
        yield machine


@pytest.fixture
def installed(machine: Machine) -> Iterator[Machine]:
    """The machine with the package, freshly installed and serving."""
    machine.run(*APT, "/debs/starlingmq-old.deb")
    machine.wait_for(("journalctl", "-u", "starlingmq", "-o", "cat"), "ready mqtt://127.0.0.1:1883")
    yield machine
    machine.run("dpkg", "--purge", "starlingmq-cluster", "starlingmq", expect=None)
    machine.shell(f"rm -rf {DATA} /etc/starlingmq; journalctl --rotate; journalctl --vacuum-time=1s")


def password(machine: Machine) -> str:
    """That of the first user, from the journal."""
    (found,) = set(
        re.findall(r"first user: admin, password: (\S+)", machine.run("journalctl", "-u", "starlingmq", "-o", "cat"))
    )
    return str(found)


def publish(machine: Machine, secret: str, topic: str, message: str, expect: int | None = 0) -> str:
    words = ("starlingmq", "pub", "-u", "admin", "-P", secret, "-q", "1", "-r", "-t", topic, "-m", message)
    return machine.run(*words, expect=expect)


def retained(machine: Machine, secret: str, topic: str) -> str:
    return machine.run("starlingmq", "sub", "-u", "admin", "-P", secret, "-t", topic, "-C", "1", "-W", "30", "-v")


def test_the_installed_broker_is_compiled_and_asks_for_a_password(installed: Machine) -> None:
    assert installed.run("starlingmq", "--version") == f"starlingmq {starlingmq.__version__} (compiled)\n"
    assert installed.run("systemctl", "is-enabled", "starlingmq").strip() == "enabled"
    secret = password(installed)
    publish(installed, secret, "greenhouse", "21.5")
    assert retained(installed, secret, "greenhouse") == "greenhouse 21.5\n"
    publish(installed, secret + "x", "greenhouse", "22", expect=None)
    assert retained(installed, secret, "greenhouse") == "greenhouse 21.5\n"
    refused = installed.run("starlingmq", "pub", "-t", "greenhouse", "-m", "22", "-q", "1", expect=None)
    assert "Not authorized" in refused or "not authorized" in refused.lower()
    assert "127.0.0.1:1883" in installed.shell("grep -E '^- mqtt' " + SETTINGS)


def test_it_runs_as_its_own_user_and_only_that_user_reads_the_data(installed: Machine) -> None:
    process = installed.run("systemctl", "show", "-P", "MainPID", "starlingmq").strip()
    assert installed.run("stat", "-c", "%U", f"/proc/{process}").strip() == "starlingmq"
    assert installed.run("stat", "-c", "%U %a", DATA).strip() == "starlingmq 700"
    assert installed.run("stat", "-c", "%U:%G %a", "/etc/starlingmq").strip() == "root:starlingmq 750"
    installed.run("setpriv", "--reuid=65534", "ls", DATA, expect=2)


def test_systemd_calls_the_unit_well_protected(installed: Machine) -> None:
    said = installed.run("systemd-analyze", "security", "--no-pager", "starlingmq.service")
    (exposure,) = re.findall(r"Overall exposure level for starlingmq.service: ([\d.]+)", said)
    assert float(exposure) <= EXPOSURE_MOST, said


def test_reload_applies_new_settings_and_ctl_finds_the_broker(installed: Machine) -> None:
    installed.shell(
        f"sed -i 's/^node:/limits: {{max_connections: 77}}\\nnode:/' {SETTINGS}; systemctl reload starlingmq"
    )
    installed.wait_for(("starlingmq", "ctl", "config"), "max_connections: 77")
    assert installed.run("starlingmq", "ctl", "health").strip() == "ok"


def test_settings_that_do_not_hold_keep_it_from_starting_with_one_line(installed: Machine) -> None:
    installed.shell(f"echo 'nonsense: 1' >> {SETTINGS}; systemctl restart starlingmq", expect=1)
    assert "nonsense: unknown key" in installed.run("journalctl", "-u", "starlingmq", "-o", "cat", "-n", "20")
    installed.shell("systemctl stop starlingmq; systemctl reset-failed starlingmq")


def test_an_upgrade_keeps_data_and_changed_settings(installed: Machine) -> None:
    secret = password(installed)
    publish(installed, secret, "greenhouse", "21.5")
    sub = ("starlingmq", "sub", "-u", "admin", "-P", secret, "-i", "cellar", "-c", "-q", "1", "-t", "alarm/#")
    installed.run(*sub, "-E")
    publish(installed, secret, "alarm/door", "open")
    installed.shell(f"echo '# mine' >> {SETTINGS}; chmod 0751 /etc/starlingmq")
    installed.run(*APT, "/debs/starlingmq-new.deb")
    assert installed.run("dpkg-query", "-W", "-f", "${Version}", "starlingmq") == later()
    installed.wait_for(("systemctl", "is-active", "starlingmq"), "active")
    installed.wait_for(SERVES, "it serves")
    assert installed.run("tail", "-1", SETTINGS) == "# mine\n"
    assert installed.run("tail", "-1", f"{SETTINGS}.dpkg-dist") == NEW_DEFAULT
    assert installed.run("stat", "-c", "%a", "/etc/starlingmq").strip() == "751"
    assert retained(installed, secret, "greenhouse") == "greenhouse 21.5\n"
    assert installed.run(*sub, "-C", "1", "-W", "30", "-v") == "alarm/door open\n"


def test_after_an_upgrade_that_fails_the_old_broker_serves_its_data(installed: Machine) -> None:
    secret = password(installed)
    publish(installed, secret, "greenhouse", "21.5")
    before = installed.run("systemctl", "show", "-P", "MainPID", "starlingmq")
    said = installed.run("dpkg", "--install", "/debs/starlingmq-refusing.deb", expect=1)
    assert "pre-installation script" in said
    assert installed.run("dpkg-query", "-W", "-f", "${Version} ${db:Status-Status}", "starlingmq") == (
        f"{debian_version()} installed"
    )
    installed.wait_for(SERVES, "it serves")
    assert installed.run("systemctl", "show", "-P", "MainPID", "starlingmq") != before, "it was stopped meanwhile"
    assert retained(installed, secret, "greenhouse") == "greenhouse 21.5\n"


def test_purging_empties_a_data_directory_that_is_a_file_system_of_its_own(installed: Machine) -> None:
    installed.shell(f"systemctl stop starlingmq; mount -t tmpfs none {DATA}; chown starlingmq: {DATA}")
    try:
        installed.run("systemctl", "start", "starlingmq")
        installed.wait_for(SERVES, "it serves")
        installed.run("apt-get", "purge", "-y", "-qq", "starlingmq")
        assert installed.run("ls", "-A", DATA) == ""
    finally:
        installed.shell(f"umount {DATA}")


def test_a_stopped_and_disabled_broker_is_not_started_by_an_upgrade(installed: Machine) -> None:
    installed.run("systemctl", "disable", "--now", "starlingmq")
    installed.run(*APT, "/debs/starlingmq-new.deb")
    assert installed.run("systemctl", "is-active", "starlingmq", expect=3).strip() == "inactive"
    assert installed.run("systemctl", "is-enabled", "starlingmq", expect=1).strip() == "disabled"


def test_removing_keeps_the_data_and_purging_leaves_nothing(installed: Machine) -> None:
    secret = password(installed)
    publish(installed, secret, "greenhouse", "21.5")
    installed.run("apt-get", "remove", "-y", "-qq", "starlingmq")
    assert installed.run("systemctl", "is-active", "starlingmq", expect=None).strip() in ("inactive", "failed")
    installed.shell(f"test -f {SETTINGS} && test -d {DATA}/journal && ! test -e /usr/lib/starlingmq")
    installed.run(*APT, "/debs/starlingmq-old.deb")
    installed.wait_for(SERVES, "it serves")
    assert retained(installed, secret, "greenhouse") == "greenhouse 21.5\n"
    installed.shell("touch /etc/starlingmq/cluster-secret /etc/starlingmq/api-tokens /etc/starlingmq/node.key")
    installed.run("apt-get", "purge", "-y", "-qq", "starlingmq")
    left = installed.shell(
        "find / -xdev -name '*starlingmq*' ! -path '/debs/*' ! -path '/var/log/journal/*' ! -path '/proc/*'"
    )
    assert left == "" and "starlingmq" not in installed.run("cat", "/etc/passwd", "/etc/group")


def test_the_cluster_package_makes_a_node_of_it(installed: Machine) -> None:
    assert "etcd-server" in installed.run("dpkg-deb", "--field", "/debs/starlingmq-cluster-old.deb", "Recommends")
    node = "starlingmq serve --cluster 127.0.0.1:7883 --data-dir /tmp/n1 --listen mqtt://127.0.0.1:1884 --name n1"
    assert "grpc" in installed.shell(f"timeout 20 {node} 2>&1", expect=2)
    installed.run(*APT, "/debs/starlingmq-cluster-old.deb")
    installed.shell(f"systemd-run --unit=n1 {node}")
    installed.wait_for(("starlingmq", "ctl", "cluster", "status", "--data-dir", "/tmp/n1"), "1 of 1")
    installed.run("systemctl", "stop", "n1")


def test_manual_pages_and_completion_are_there(installed: Machine) -> None:
    assert "Operate a broker" in installed.shell("man starlingmq-ctl | cat")
    completed = (
        ". /usr/share/bash-completion/completions/starlingmq; COMP_WORDS=(starlingmq doc); COMP_CWORD=1; "
        "_starlingmq_completion starlingmq; echo ${COMPREPLY[@]}"
    )
    assert installed.run("bash", "-c", completed).strip() == "doctor"
    said = installed.run("runuser", "-u", "starlingmq", "--", "starlingmq", "doctor", "-c", SETTINGS, expect=None)
    assert "0 problems" in said and "the broker of this data directory runs" in said, said
