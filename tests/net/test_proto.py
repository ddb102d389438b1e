"""The generated Python in ``net/proto`` matches the ``.proto`` files."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

ROOT = Path(__file__).resolve().parents[2]
PROTOS = sorted((ROOT / "src/starlingmq/net/proto").glob("*.proto"))


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.stem)
def test_generated_code_is_in_step(proto: Path, tmp_path: Path) -> None:
    out = tmp_path / "descriptors"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "src", f"--descriptor_set_out={out}"]
    command.append(str(proto.relative_to(ROOT)))
    subprocess.run(command, cwd=ROOT, check=True)
    (wanted,) = FileDescriptorSet.FromString(out.read_bytes()).file
    module = importlib.import_module(f"starlingmq.net.proto.{proto.stem}_pb2")
    present = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    assert present == _without_json_names(wanted), f"{proto.name} has changed: make proto"


def _without_json_names(file: FileDescriptorProto) -> FileDescriptorProto:
    """protoc writes them into a set of descriptors and not into code."""
    messages = list(file.message_type)
    while messages:
        message = messages.pop()
        messages += message.nested_type  # a map is one of these
        for field in message.field:
            field.ClearField("json_name")
    return file
