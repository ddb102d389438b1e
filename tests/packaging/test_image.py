"""The image that `make image` has made, run by an OCI runtime (`make test-image`)."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import starlingmq
from tests.packaging.runtime import Container, Image, container
from tests.test_deploy_containers import ROOT, dockerfile

pytestmark = [
    pytest.mark.long(alone="needs the image of make image, and root"),
    pytest.mark.shipped,
    pytest.mark.timeout(600),
]

SIZE_MAX: Final = 200e6  # bytes, unpacked
USER: Final = 10001


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    if os.geteuid() != 0 or shutil.which("runc") is None:
        pytest.skip("needs root and runc (apt-get install runc)")
    file = ROOT / "dist" / f"starlingmq-{starlingmq.__version__}.oci.tar"
    assert file.exists(), "make image first"
    return Image(file, tmp_path_factory.mktemp("image"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """An empty volume that belongs to the user of the image."""
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    os.chown(directory, USER, USER)
    return directory


@pytest.fixture
def broker(image: Image, data: Path, tmp_path: Path) -> Iterator[Container]:
    with container(image, tmp_path, data) as running:
        running.healthy()
        yield running


def password(broker: Container) -> str:
    (found,) = re.findall(r"first user: admin, password: (\S+)", broker.log())
    return str(found)


def publish(broker: Container, secret: str, topic: str, message: str) -> None:
    broker.execute("starlingmq", "pub", "-u", "admin", "-P", secret, "-q", "1", "-r", "-t", topic, "-m", message)


def received(broker: Container, secret: str, *more: str) -> str:
    return broker.execute("starlingmq", "sub", "-u", "admin", "-P", secret, "-C", "1", "-W", "30", "-v", *more)


def test_it_is_small_and_has_no_package_manager(image: Image) -> None:
    unpacked = sum(path.lstat().st_size for path in image.tree.rglob("*") if path.is_file() and not path.is_symlink())
    assert unpacked <= SIZE_MAX and image.packed <= SIZE_MAX / 2, (unpacked, image.packed)
    assert [
        name for name in ("gcc", "pip", "pip3", "apt-get", "curl") if (image.tree / "usr/bin" / name).exists()
    ] == []
    assert (image.tree / "var/lib/dpkg/status").exists(), "scanners read the list of packages"


def test_it_runs_as_the_dockerfile_says(image: Image) -> None:
    """Both ways to an image give the same program with the same command."""
    last = dict(dockerfile())
    config = image.config["config"]
    assert config["Entrypoint"] == json.loads(last["ENTRYPOINT"]) and config["Cmd"] == json.loads(last["CMD"])
    assert config["User"].partition(":")[0] == last["USER"] and config["StopSignal"] == last["STOPSIGNAL"]
    assert [port.partition("/")[0] for port in config["ExposedPorts"]] == last["EXPOSE"].split()
    assert list(config["Volumes"]) == [last["VOLUME"]]


def test_a_container_is_compiled_not_root_and_refuses_clients_without_a_password(broker: Container) -> None:
    assert broker.execute("starlingmq", "--version") == f"starlingmq {starlingmq.__version__} (compiled)\n"
    assert broker.execute("id", "-u").strip() == str(USER)
    broker.execute("touch", "/usr/lib/starlingmq/x", expect=1)
    assert "ready mqtt://0.0.0.0:1883" in broker.log()
    refused = broker.execute("starlingmq", "pub", "-t", "a", "-m", "b", "-q", "1", expect=None)
    assert "not authorized" in refused.lower(), refused
    secret = password(broker)
    publish(broker, secret, "greenhouse", "21.5")
    assert received(broker, secret, "-t", "greenhouse") == "greenhouse 21.5\n"


def test_a_stop_is_graceful_and_a_container_of_the_next_version_has_the_data(
    image: Image, data: Path, tmp_path: Path
) -> None:
    with container(image, tmp_path, data) as first:
        first.healthy()
        secret = password(first)
        publish(first, secret, "greenhouse", "21.5")
        waiting = ("-i", "cellar", "-c", "-q", "1", "-t", "alarm/#")
        first.execute("starlingmq", "sub", "-u", "admin", "-P", secret, *waiting, "-E")
        publish(first, secret, "alarm/door", "open")
        assert first.stop() == 0
    with container(image, tmp_path, data) as second:
        second.healthy()
        assert "first user" not in second.log()
        assert received(second, secret, "-t", "greenhouse") == "greenhouse 21.5\n"
        assert received(second, secret, *waiting) == "alarm/door open\n"


def test_the_health_check_fails_while_there_is_no_broker(image: Image, data: Path, tmp_path: Path) -> None:
    kind, *words = image.config["config"]["Healthcheck"]["Test"]
    assert kind == "CMD" and words[0] == "starlingmq"
    with container(image, tmp_path, data, args=words[1:]) as asked:
        assert asked.wait() != 0
        assert "no broker" in asked.log() or "not a data directory" in asked.log(), asked.log()


def test_a_node_of_a_cluster_has_etcd_and_grpc(image: Image, data: Path, tmp_path: Path) -> None:
    args = ["serve", "--listen", "mqtt://127.0.0.1:1883", "--data-dir", "/var/lib/starlingmq", "--name", "n1"]
    with container(image, tmp_path, data, args=[*args, "--cluster", "127.0.0.1:7883"]) as node:
        node.healthy()
        said: Any = node.execute("starlingmq", "ctl", "cluster", "status", "--data-dir", "/var/lib/starlingmq")
        assert "1 of 1" in said
