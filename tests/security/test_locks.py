"""The lock files agree with pyproject.toml and with each other, and are what everything is installed from."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[2]
IMAGE: Final = ("auth", "cluster", "http", "nkeys", "otel", "zstd")
LOCKS: Final = ("dev", "spark", "build", "run", "uv")
PYTHONS: Final = ("3.11.7", "3.12.1", "3.13.0")
HASH: Final = re.compile(r"--hash=sha256:[0-9a-f]{64}")


class Pin(NamedTuple):
    name: str
    version: str
    requirement: Requirement
    hashes: int


@cache
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@cache
def text(lock: str) -> str:
    return (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")


@cache
def pins(lock: str) -> tuple[Pin, ...]:
    found = []
    for entry in re.sub(r"\\\n", " ", re.sub(r"^ *#.*\n", "", text(lock), flags=re.MULTILINE)).splitlines():
        requirement = Requirement(entry.partition(" --hash")[0])
        (exact,) = requirement.specifier
        assert exact.operator == "==", entry
        found.append(Pin(canonicalize_name(requirement.name), exact.version, requirement, len(HASH.findall(entry))))
    return tuple(found)


def installed(lock: str, python: str) -> dict[str, str]:
    """The versions, by name, for a Python on Linux."""
    env = {name: str(value) for name, value in default_environment().items()}
    env |= {"python_version": python.rpartition(".")[0], "python_full_version": python}
    env |= {"sys_platform": "linux", "implementation_name": "cpython", "platform_python_implementation": "CPython"}
    chosen = [pin for pin in pins(lock) if pin.requirement.marker is None or pin.requirement.marker.evaluate(env)]
    assert len({pin.name for pin in chosen}) == len(chosen), "one version for each package"
    return {pin.name: pin.version for pin in chosen}


def asked(lock: str) -> list[Requirement]:
    """The direct requirements in pyproject.toml, extras that name extras followed."""
    if lock == "build":
        return [Requirement(one) for one in project()["build-system"]["requires"]]
    extras = project()["project"]["optional-dependencies"]
    if lock == "uv":
        return [Requirement(one) for one in extras["dev"] if Requirement(one).name == "uv"]
    waiting = [*project()["project"]["dependencies"]]
    for extra in {"dev": ("dev",), "spark": ("spark",), "run": IMAGE}[lock]:
        waiting += extras[extra]
    found = []
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.name == project()["project"]["name"]:
            waiting += [one for extra in requirement.extras for one in extras[extra]]
        else:
            found.append(requirement)
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_each_package_has_one_exact_version_and_its_hashes(lock: str) -> None:
    assert len(pins(lock)) > (0 if lock == "uv" else 5)
    assert [pin.name for pin in pins(lock) if not pin.hashes] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_registry_and_no_path(lock: str) -> None:
    assert re.findall(r"^.*(?:://|--(?:extra-)?index|--find-links|-[ce] /|tmp/).*$", text(lock), re.MULTILINE) == []


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("lock", LOCKS)
def test_each_requirement_of_the_project_is_locked_within_its_range(lock: str, python: str) -> None:
    """Otherwise: make lock."""
    versions = installed(lock, python)
    missing = [str(one) for one in asked(lock) if canonicalize_name(one.name) not in versions]
    assert missing == [], "make lock"
    outside = [str(one) for one in asked(lock) if not one.specifier.contains(versions[canonicalize_name(one.name)])]
    assert outside == [], "make lock"


@pytest.mark.parametrize("python", PYTHONS)
def test_the_tested_versions_are_the_shipped_versions(python: str) -> None:
    tested = installed("dev", python)
    for lock in LOCKS:
        other = installed(lock, python)
        assert {name: other[name] for name in other.keys() & tested} == {
            name: tested[name] for name in other.keys() & tested
        }
    assert installed("run", python).keys() <= tested.keys()


def test_everything_is_installed_from_the_locks() -> None:
    """The machines that run ``make``, and the image: each pip install has hashes or installs no dependency."""
    for file in ("Makefile", "deploy/docker/Dockerfile"):
        lines = (ROOT / file).read_text(encoding="utf-8").replace("pip install --quiet --disable-pip-version-check", "")
        installs = re.findall(r"^.*(?:pip install|pip wheel|\$\(INSTALL\)).*$", lines, re.MULTILINE)
        assert len(installs) >= 3, file
        assert [one for one in installs if "--require-hashes" not in one and "--no-deps" not in one] == []
