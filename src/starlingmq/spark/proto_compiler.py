"""Compiles a ``.proto`` file, with protoc or with grpcio-tools."""

from __future__ import annotations

import base64
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from starlingmq.spark.option_error import OptionError
from starlingmq.spark.schema_registry import PROTOBUF, RegistrySchema

SECONDS_MAX: Final = 60


def compile_proto(file: Path) -> RegistrySchema:
    """Imports are searched in the directory of the file. Raises OptionError."""
    from google.protobuf import descriptor_pb2

    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "descriptors"
        options = [f"--proto_path={file.parent}", "--include_imports", f"--descriptor_set_out={out}", file.name]
        try:
            done = subprocess.run(  # noqa: S603  # nosec B603
                [*_protoc(), *options], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OptionError(f"schema_file: {file}: protoc cannot run: {error}") from None
        if done.returncode != 0:
            raise OptionError(f"schema_file: {file}: {' '.join(done.stderr.split())[:300]}")
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    *imported, itself = files
    texts = [(each.name, base64.b64encode(each.SerializeToString()).decode()) for each in imported]
    return RegistrySchema(PROTOBUF, base64.b64encode(itself.SerializeToString()).decode(), tuple(texts))


def _protoc() -> list[str]:
    found = shutil.which("protoc")
    if found:
        return [found]
    if importlib.util.find_spec("grpc_tools"):
        return [sys.executable, "-m", "grpc_tools.protoc"]
    raise OptionError("schema_file: ID.proto needs protoc, or pip install grpcio-tools")
