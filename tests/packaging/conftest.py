"""The images: that of the Debian packages (``make image``), and that of the Dockerfile, with a Debian in place of its
base image."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import starlingmq
from tests.packaging.podman import Engine, engine
from tests.test_deploy_containers import DOCKER, ROOT, dockerfile

IMAGE: Final = "localhost/starlingmq"
NEXT: Final = "localhost/starlingmq:next"
NEXT_VERSION: Final = "99.0.0"
NEXT_DOCKERFILE: Final = f"""
FROM {IMAGE}
USER root
RUN sed -i 's/^__version__ = .*/__version__ = "{NEXT_VERSION}"/' \\
    $(python -c 'import starlingmq._version; print(starlingmq._version.__file__)')
USER 10001
"""


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with engine(tmp_path_factory.mktemp("podman")) as made:
        yield made


@pytest.fixture(scope="session")
def packaged(podman: Engine) -> str:
    file = ROOT / "dist" / f"starlingmq-{starlingmq.__version__}.oci.tar"
    assert file.exists(), "make image first"
    loaded = re.findall(r"Loaded image: *(\S+)", podman("load", "--input", file))
    podman("tag", loaded[-1], "localhost/packaged")
    return "localhost/packaged"


@pytest.fixture(scope="session")
def built(podman: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("base")
    root, archive = directory / "root", directory / "root.tar"
    scripts = ROOT / "scripts"
    commands: tuple[list[str | Path], ...] = (
        [scripts / "debian-chroot", root, "python3-dev", "python3-venv", "ca-certificates"],
        [scripts / "pip-settings", root],
        ["ln", "--symbolic", "python3", root / "usr/bin/python"],
        ["tar", "--create", "--file", archive, "--directory", root, "."],
        [scripts / "remove-chroot", root],
    )
    for command in commands:
        subprocess.run(command, cwd=ROOT, check=True, timeout=600, stdout=subprocess.PIPE)
    for base in {rest.partition(" ")[0] for word, rest in dockerfile() if word == "FROM"}:
        podman("import", archive, f"docker.io/library/{base}")
    archive.unlink()
    build(podman, DOCKER / "Dockerfile", IMAGE)
    return IMAGE


@pytest.fixture(scope="session")
def built_next(podman: Engine, built: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same program with another version."""
    file = tmp_path_factory.mktemp("next") / "Dockerfile"
    file.write_text(NEXT_DOCKERFILE.replace(IMAGE, built))
    build(podman, file, NEXT)
    return NEXT


def build(podman: Engine, file: Path, tag: str) -> None:
    """``chroot``: the only isolation without systemd. ``docker``: images of OCI's own format have no health check."""
    how = ("--isolation", "chroot", "--network", "host", "--format", "docker")
    podman("build", *how, "--file", file, "--tag", tag, ROOT, seconds=1800)
