"""Both images, run by podman: that of `make image` and that of the Dockerfile (`make test-image`)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import starlingmq
from tests.packaging.podman import Container, Engine, container
from tests.test_deploy_containers import dockerfile

pytestmark = [
    pytest.mark.long(alone="needs images, and root"),
    pytest.mark.shipped,
    pytest.mark.timeout(2400),
]

SIZE_MAX: Final = 200e6  # bytes, unpacked
USER: Final = 10001
HEALTH: Final = ("starlingmq", "ctl", "health", "--data-dir", "/var/lib/starlingmq")


@pytest.fixture(scope="module", params=["packaged", "built"])
def image(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """An empty volume that belongs to the user of the image."""
    return volume(tmp_path / "data", USER)


def volume(directory: Path, user: int) -> Path:
    directory.mkdir(mode=0o700)
    os.chown(directory, user, user)
    return directory


@pytest.fixture
def broker(podman: Engine, image: str, data: Path) -> Iterator[Container]:
    with container(podman, image, data) as running:
        running.healthy(*HEALTH)
        yield running


def password(broker: Container) -> str:
    (found,) = re.findall(r"first user: admin, password: (\S+)", broker.log())
    return str(found)


def publish(broker: Container, secret: str, topic: str, message: str) -> None:
    broker.execute("starlingmq", "pub", "-u", "admin", "-P", secret, "-q", "1", "-r", "-t", topic, "-m", message)


def received(broker: Container, secret: str, *more: str) -> str:
    return broker.execute("starlingmq", "sub", "-u", "admin", "-P", secret, "-C", "1", "-W", "30", "-v", *more)


def test_the_packaged_image_is_small_and_has_no_package_manager(podman: Engine, packaged: str) -> None:
    tree = Path(podman("image", "mount", packaged).strip())
    unpacked = sum(path.lstat().st_size for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    assert unpacked <= SIZE_MAX, unpacked
    assert [name for name in ("gcc", "pip", "pip3", "apt-get", "curl") if (tree / "usr/bin" / name).exists()] == []
    assert (tree / "var/lib/dpkg/status").exists(), "scanners read the list of packages"


def test_both_images_run_as_the_dockerfile_says(podman: Engine, image: str) -> None:
    """Both ways to an image give the same program with the same command."""
    last = dict(dockerfile())
    config = podman.inspect("image", image)["Config"]
    assert config["Entrypoint"] == json.loads(last["ENTRYPOINT"]) and config["Cmd"] == json.loads(last["CMD"])
    assert config["User"].partition(":")[0] == last["USER"] and config["StopSignal"] == last["STOPSIGNAL"]
    assert sorted(port.partition("/")[0] for port in config["ExposedPorts"]) == sorted(last["EXPOSE"].split())
    assert list(config["Volumes"]) == [last["VOLUME"]]


def test_a_container_is_compiled_not_root_and_refuses_clients_without_a_password(broker: Container) -> None:
    assert broker.execute("starlingmq", "--version") == f"starlingmq {starlingmq.__version__} (compiled)\n"
    assert broker.execute("id", "-u").strip() == str(USER)
    broker.execute("touch", "/usr/lib/x", expect=1)
    assert "ready mqtt://0.0.0.0:1883" in broker.log()
    refused = broker.execute("starlingmq", "pub", "-t", "a", "-m", "b", "-q", "1", expect=None)
    assert "not authorized" in refused.lower(), refused
    secret = password(broker)
    publish(broker, secret, "greenhouse", "21.5")
    assert received(broker, secret, "-t", "greenhouse") == "greenhouse 21.5\n"


def test_a_stop_is_graceful_and_a_container_of_the_next_version_has_the_data(
    podman: Engine, image: str, data: Path
) -> None:
    with container(podman, image, data) as first:
        first.healthy(*HEALTH)
        secret = password(first)
        publish(first, secret, "greenhouse", "21.5")
        waiting = ("-i", "cellar", "-c", "-q", "1", "-t", "alarm/#")
        first.execute("starlingmq", "sub", "-u", "admin", "-P", secret, *waiting, "-E")
        publish(first, secret, "alarm/door", "open")
        assert first.stop() == 0
    with container(podman, image, data) as second:
        second.healthy(*HEALTH)
        assert "first user" not in second.log()
        assert received(second, secret, "-t", "greenhouse") == "greenhouse 21.5\n"
        assert received(second, secret, *waiting) == "alarm/door open\n"


def test_another_user_may_run_it_with_a_volume_of_its_own(podman: Engine, image: str, tmp_path: Path) -> None:
    with container(podman, image, volume(tmp_path / "own", 20002), options=("--user", "20002:20002")) as broker:
        broker.healthy(*HEALTH)
        assert broker.execute("id", "-u").strip() == "20002"
        assert broker.stop() == 0


def test_a_signal_reloads_and_the_container_goes_on(podman: Engine, broker: Container) -> None:
    podman("kill", "--signal", "HUP", broker.name)
    assert "ok" in broker.execute(*HEALTH)
    assert broker.stop() == 0


def test_the_health_check_of_the_dockerfile_is_that_of_the_container(podman: Engine, built: str, data: Path) -> None:
    with container(podman, built, data) as broker:
        broker.healthy()


def test_the_health_check_fails_while_there_is_no_broker(podman: Engine, image: str, data: Path) -> None:
    with container(podman, image, data, *HEALTH[1:]) as asked:
        assert asked.wait() != 0
        assert "no broker" in asked.log() or "not a data directory" in asked.log(), asked.log()


def test_a_node_of_a_cluster_has_etcd_and_grpc(podman: Engine, image: str, data: Path) -> None:
    args = ["serve", "--listen", "mqtt://127.0.0.1:1883", "--data-dir", "/var/lib/starlingmq", "--name", "n1"]
    with container(podman, image, data, *args, "--cluster", "127.0.0.1:7883") as node:
        node.healthy(*HEALTH)
        said: Any = node.execute("starlingmq", "ctl", "cluster", "status", "--data-dir", "/var/lib/starlingmq")
        assert "1 of 1" in said
