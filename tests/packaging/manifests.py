"""Manifests as Kubernetes reads them: rendered by helm, with the fields that its API knows."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from kubernetes_validate import validate  # type: ignore[import-untyped]  # it has no types

ROOT: Final = Path(__file__).resolve().parent.parent.parent
CHART: Final = ROOT / "deploy" / "helm" / "starlingmq"
VERSION: Final = "1.31.0"  # of Kubernetes
OWN_SCHEMAS: Final = ("cert-manager.io/v1",)
"""API groups that are not part of Kubernetes, and so not checked by ``check_schema``."""


def helm(*words: str, expect: int = 0) -> str:
    """The output of helm, or its error. Skips where it is not installed."""
    if shutil.which("helm") is None:
        pytest.skip("helm is not installed (go install helm.sh/helm/v3/cmd/helm@v3.17.3)")
    done = subprocess.run(["helm", *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == expect, done.stderr
    return done.stdout if expect == 0 else done.stderr


def rendered(*values: str, namespace: str = "starlingmq") -> list[dict[str, Any]]:
    """The documents of the chart with ``--set`` values."""
    sets = [word for value in values for word in ("--set", value)]
    words = ("template", "starlingmq", str(CHART), "--namespace", namespace, "--kube-version", VERSION, *sets)
    return [one for one in yaml.safe_load_all(helm(*words)) if one]


def by_name(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in documents if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def check_schema(document: dict[str, Any]) -> bool:
    """Whether Kubernetes knows the kind of the document. Raises ValidationError for a wrong or unknown field."""
    if document["apiVersion"] in OWN_SCHEMAS:
        return False
    validate(document, VERSION, strict=True)
    return True
