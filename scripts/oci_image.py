"""Packs a directory tree as a container image with one layer: ``oci_image.py TREE IMAGE.tar VERSION``.

The file is an OCI image layout (OCI Image Format 1.0). It is read by ``podman load``, ``skopeo copy oci-archive:``,
``ctr image import`` and ``docker load`` (25 or newer). Equal trees give equal images: times are those of
SOURCE_DATE_EPOCH, entries are sorted.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX: Final = "application/vnd.oci.image.index.v1+json"
SECOND: Final = 1_000_000_000  # nanoseconds, the unit of the health check


def runs(version: str) -> dict[str, Any]:
    """How a container of the image runs: the same as in deploy/docker/Dockerfile."""
    data = "/var/lib/starlingmq"
    return {
        "User": "10001:10001",
        "WorkingDir": data,
        "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "PYTHONUNBUFFERED=1", "LC_ALL=C.UTF-8"],
        "Entrypoint": ["starlingmq"],
        "Cmd": [
            *("serve", "--listen", "mqtt://0.0.0.0:1883", "--data-dir", data),
            *("--set", f"auth.password.file={data}/passwords", "--set", "auth.password.first_user=admin"),
        ],
        "ExposedPorts": {f"{port}/tcp": {} for port in (1883, 4222, 8080, 7883)},
        "Volumes": {data: {}},
        "StopSignal": "SIGTERM",
        # Over the control socket, so that it needs no HTTP listener. Docker and podman read it; Kubernetes has probes.
        "Healthcheck": {
            "Test": ["CMD", "starlingmq", "ctl", "health", "--data-dir", data],
            "Interval": 30 * SECOND,
            "Timeout": 10 * SECOND,
            "StartPeriod": 60 * SECOND,
            "Retries": 3,
        },
        "Labels": {
            "org.opencontainers.image.title": "StarlingMQ",
            "org.opencontainers.image.version": version,
            "org.opencontainers.image.licenses": "Apache-2.0",
        },
    }


def layer(tree: Path, when: int) -> bytes:
    """All files of the tree, with their owners and modes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(tree.rglob("*")):
            entry = archive.gettarinfo(path, str(path.relative_to(tree)))
            if entry is None:  # a socket
                continue
            entry.mtime = when
            entry.uname = entry.gname = ""
            if entry.isreg():
                with path.open("rb") as file:
                    archive.addfile(entry, file)
            else:
                archive.addfile(entry)
    return out.getvalue()


def image(tree: Path, version: str, when: int) -> dict[str, bytes]:
    """The files of an OCI image layout by their names."""
    files: dict[str, bytes] = {}

    def blob(data: bytes, kind: str, **more: Any) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        files[f"blobs/sha256/{digest}"] = data
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data), **more}

    plain = layer(tree, when)
    config = {
        "created": datetime.fromtimestamp(when, UTC).isoformat().replace("+00:00", "Z"),
        "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
        "os": "linux",
        "config": runs(version),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]},
        "history": [{"created_by": "make image"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blob(json.dumps(config).encode(), CONFIG),
        "layers": [blob(gzip.compress(plain, 6, mtime=0), LAYER)],
    }
    names = {"org.opencontainers.image.ref.name": version, "io.containerd.image.name": f"starlingmq:{version}"}
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [blob(json.dumps(manifest).encode(), MANIFEST, annotations=names)],
    }
    files["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    files["index.json"] = json.dumps(index).encode()
    return files


def main() -> None:
    tree, out, version = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    files = image(tree, version, int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    with tarfile.open(out, "w") as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size = len(files[name])
            archive.addfile(entry, io.BytesIO(files[name]))
    print(f"{out}: {sum(map(len, files.values())) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
