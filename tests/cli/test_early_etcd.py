"""A node that starts again has its etcd run before its broker is imported, if nothing refuses the start."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from starlingmq.cli import early_etcd
from starlingmq.cli.early_etcd import begin_etcd
from starlingmq.config.settings import Config, load_config
from starlingmq.net.etcd.etcd_process import EtcdServerError
from starlingmq.storage.copies.copy_facts import CopyFacts, write_facts
from starlingmq.storage.data_dir import DataDir, DataDirError

PROGRAM = f"#!{sys.executable}\nimport pathlib, sys, time\npathlib.Path(sys.argv[0] + ' ran').touch()\ntime.sleep(60)\n"


def settings(tmp_path: Path) -> Config:
    program = tmp_path / "etcd"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    values = [f"node.data_dir={tmp_path / 'data'}", "node.name=n1", f"cluster.etcd.binary={program}"]
    return load_config(None, ["cluster.enabled=true", "cluster.listen=127.0.0.1:0", *values], {})


def has_run(tmp_path: Path) -> bool:
    return (tmp_path / "etcd ran").exists()


def lived_before(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    DataDir(directory, {}).close()
    log = directory / "etcd" / "data" / "member" / "wal" / "0.wal"
    log.parent.mkdir(parents=True)
    log.touch()
    return directory


async def test_it_runs_before_the_broker_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lived_before(tmp_path)
    ran = str(tmp_path / "etcd ran")
    (tmp_path / "late.py").write_text(
        f"import pathlib, time\nwhile not pathlib.Path({ran!r}).exists():\n    time.sleep(0.01)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(early_etcd, "MODULES", ("late",))
    async with asyncio.timeout(60):
        etcd = await begin_etcd(settings(tmp_path))
    assert etcd is not None and has_run(tmp_path)
    await etcd.stop()


async def test_a_node_whose_import_fails_leaves_no_etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lived_before(tmp_path)
    monkeypatch.setattr(early_etcd, "MODULES", ("not_there",))
    with pytest.raises(ModuleNotFoundError):
        await begin_etcd(settings(tmp_path))


async def test_a_new_node_becomes_no_member_of_etcd_before_its_time(tmp_path: Path) -> None:
    assert await begin_etcd(settings(tmp_path)) is None
    DataDir(tmp_path / "data", {}).close()
    assert await begin_etcd(settings(tmp_path)) is None
    assert not has_run(tmp_path)


async def test_it_does_not_run_beside_a_process_that_has_the_data_directory(tmp_path: Path) -> None:
    other = DataDir(lived_before(tmp_path), {})
    with pytest.raises(DataDirError, match="in use"):
        await begin_etcd(settings(tmp_path))
    other.close()
    assert not has_run(tmp_path)


async def test_it_does_not_run_on_the_data_of_another_node(tmp_path: Path) -> None:
    write_facts(lived_before(tmp_path), CopyFacts(owner="n2"))
    with pytest.raises(DataDirError, match="has the data of n2"):
        await begin_etcd(settings(tmp_path))
    assert not has_run(tmp_path)


async def test_the_broker_gets_the_reason_why_it_does_not_start(tmp_path: Path) -> None:
    directory = lived_before(tmp_path)
    (directory / "etcd" / "left").touch()
    etcd = await begin_etcd(settings(tmp_path))
    assert etcd is not None
    with pytest.raises(EtcdServerError, match="has left"):
        await etcd.start()
    await etcd.stop()
