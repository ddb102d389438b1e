"""Writes dist/starlingmq-VERSION.cdx.json: the packages of the image with their hashes, and which of them needs which.

CycloneDX 1.6, made from requirements/run.txt without the network. It is validated before it is written.
"""

from __future__ import annotations

import re
import runpy
from collections import defaultdict
from pathlib import Path
from typing import Final

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

ROOT: Final = Path(__file__).resolve().parent.parent
NAME: Final = "starlingmq"
LOCK: Final = ROOT / "requirements" / "run.txt"
PACKAGE: Final = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^ ;]+)(?: ; (?P<marker>.*?))? \\$")
HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
VIA: Final = re.compile(r"^    # (?:via | {2})(?P<name>[\w.-]+)(?: \(pyproject\.toml\))?$")


def bill(lock: str, version: str) -> Bom:
    """The packages of a lock file. Its comments ``# via`` name the packages that need one."""
    hashes, parents = defaultdict[str, list[HashType]](list), defaultdict[str, list[str]](list)
    packages: dict[str, re.Match[str]] = {}
    name = ""
    for line in lock.splitlines():
        if package := PACKAGE.match(line):
            name = package["name"]
            packages[name] = package
        elif digest := HASH.search(line):
            hashes[name].append(HashType(alg=HashAlgorithm.SHA_256, content=digest[1]))
        elif via := VIA.match(line):
            parents[name].append(via["name"])
    root = Component(
        name=NAME,
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=NAME,
        purl=PackageURL("pypi", name=NAME, version=version),
        licenses=[LicenseExpression("Apache-2.0")],
    )
    components = {name: _component(package, hashes[name]) for name, package in packages.items()}
    bom = Bom(components=components.values())
    bom.metadata.component = root
    components[NAME] = root
    for child, needing in parents.items():
        for parent in needing:
            bom.register_dependency(components[parent], [components[child]])
    return bom


def _component(package: re.Match[str], hashes: list[HashType]) -> Component:
    """The hashes are those of all files of the release: installing takes the one file that fits."""
    purl = PackageURL("pypi", name=package["name"], version=package["version"])
    files = ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(purl.to_string()), hashes=hashes)
    marker = package["marker"]
    return Component(
        name=package["name"],
        version=package["version"],
        bom_ref=f"{package['name']}=={package['version']}",
        purl=purl,
        external_references=[files],
        properties=[Property(name=f"{NAME}:marker", value=marker)] if marker else (),
    )


def written(bom: Bom) -> str:
    """As JSON. Raises ValueError if it is not CycloneDX 1.6."""
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        raise ValueError(f"the bill of materials is not valid: {error}")
    return text


def main() -> None:
    version = runpy.run_path(str(ROOT / "src" / NAME / "_version.py"))["__version__"]
    path = ROOT / "dist" / f"{NAME}-{version}.cdx.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(written(bill(LOCK.read_text(encoding="utf-8"), version)) + "\n", encoding="utf-8")
    print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
