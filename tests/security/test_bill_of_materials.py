"""The bill of materials lists what is shipped, and is CycloneDX."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component
from scripts import bill_of_materials

from tests.security.test_locks import pins, text


def made() -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(bill_of_materials.written(bill_of_materials.bill(text("run"), "1.2.3")))
    return tree


def test_each_package_of_the_lock_is_listed_with_its_version_and_hashes() -> None:
    tree = made()
    listed = {one["name"]: (one["version"], len(one["externalReferences"][0]["hashes"])) for one in tree["components"]}
    assert listed == {pin.name: (pin.version, pin.hashes) for pin in pins("run")}
    about = tree["metadata"]["component"]
    assert (about["name"], about["version"], tree["specVersion"]) == ("starlingmq", "1.2.3", "1.6")


def test_each_package_is_needed_by_the_broker_or_by_another_one() -> None:
    tree = made()
    needs = {one["ref"]: one.get("dependsOn", []) for one in tree["dependencies"]}
    reached, waiting = set[str](), ["starlingmq"]
    while waiting:
        if (ref := waiting.pop()) not in reached:
            reached.add(ref)
            waiting += needs[ref]
    assert reached == {"starlingmq", *(one["bom-ref"] for one in tree["components"])}


def test_a_bill_that_is_not_valid_is_not_written() -> None:
    bom = Bom(components=[Component(name="wrong", purl=None, mime_type="not a type")])
    with pytest.raises(ValueError, match="not valid"):
        bill_of_materials.written(bom)
