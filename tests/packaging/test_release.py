"""``scripts/release.py``: version, artefacts with checksums, notes and tag by one command, or nothing has changed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/release.py"
FILES = ("src/starlingmq/_version.py", "deploy/helm/starlingmq/Chart.yaml")
CHANGES = "# Changelog\n\n## 9.1.0, not released\n\n### Added\n\n- A new thing.\n\n## 9.0.0\n\n- An old thing.\n"
BUILD = (
    'sh -c "mkdir -p dist; for one in starlingmq-9.1.0.tar.gz starlingmq_9.1.0-1_amd64.deb; '
    'do grep version deploy/helm/starlingmq/Chart.yaml > dist/$one; done"'
)


def git(tree: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=tree, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with the files of this one that a release changes."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    (tmp_path / ".gitignore").write_text("dist\n")
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    git(tmp_path, "config", "user.name", "tester")
    git(tmp_path, "config", "user.email", "tester@example.org")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def release(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--root", str(tree), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def unchanged(tree: Path) -> bool:
    one_commit = git(tree, "rev-list", "--count", "HEAD").strip() == "1"
    return one_commit and not git(tree, "status", "--porcelain") and not git(tree, "tag")


def test_a_release_is_committed_tagged_and_has_checksums(tree: Path) -> None:
    (tree / "dist").mkdir()
    for older in ("starlingmq-9.1.0.dev0.tar.gz", "starlingmq_9.1.0~dev0-1_amd64.deb", "starlingmq-9.1.0rc1.tar.gz"):
        (tree / "dist" / older).write_text("older")
    done = release(tree, "9.1.0", "--build", BUILD)
    assert done.returncode == 0, done.stderr
    assert "git push --atomic origin HEAD v9.1.0" in done.stdout
    assert not git(tree, "status", "--porcelain") and git(tree, "log", "-1", "--format=%s") == "Release 9.1.0\n"
    assert '__version__ = "9.1.0"' in git(tree, "show", "v9.1.0:src/starlingmq/_version.py")
    assert 'version: 9.1.0\nappVersion: "9.1.0"\n' in git(tree, "show", "v9.1.0:deploy/helm/starlingmq/Chart.yaml")
    assert "## 9.1.0 (2" in git(tree, "show", "v9.1.0:CHANGELOG.md")
    assert "### Added\n\n- A new thing." in git(tree, "tag", "--list", "--format=%(contents)", "v9.1.0")
    assert "version: 9.1.0" in (tree / "dist/starlingmq-9.1.0.tar.gz").read_text(), "built with the new version"
    sums = (tree / "dist/SHA256SUMS").read_text()
    names = [line.split()[1] for line in sums.splitlines()]
    assert names == ["starlingmq-9.1.0.tar.gz", "starlingmq_9.1.0-1_amd64.deb", "starlingmq-9.1.0-notes.md"]
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tree / "dist", check=True)
    again = release(tree, "9.1.0", "--build", BUILD)
    assert again.returncode == 1 and "the tag v9.1.0 exists already" in again.stderr


def test_a_dry_run_prints_the_notes_and_changes_nothing(tree: Path) -> None:
    done = release(tree, "9.1.0", "--dry-run", "--build", "false")
    assert done.returncode == 0 and done.stdout.startswith("### Added\n\n- A new thing.\n")
    assert "An old thing" not in done.stdout and unchanged(tree)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("9.1", "--build", BUILD), "a version has three numbers"),
        (("9.2.0", "--build", BUILD), 'no section "## 9.2.0, not released"'),
        (("9.1.0", "--build", "false"), "false: failed"),
        (("9.1.0", "--build", "true"), "there is nothing of version 9.1.0 in dist/"),
    ],
)
def test_a_release_that_fails_changes_nothing(tree: Path, words: tuple[str, ...], said: str) -> None:
    done = release(tree, *words)
    assert done.returncode == 1 and said in done.stderr
    assert unchanged(tree)


def test_uncommitted_changes_are_refused(tree: Path) -> None:
    (tree / "CHANGELOG.md").write_text(CHANGES + "more\n")
    done = release(tree, "9.1.0", "--build", BUILD)
    assert done.returncode == 1 and "changes that are not committed" in done.stderr


def test_the_changelog_of_this_tree_has_notes_for_the_version_under_work() -> None:
    version = (ROOT / FILES[0]).read_text().split('"')[-2].partition(".dev")[0]
    notes = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, release; print(release.notes_of(open(sys.argv[1]).read(), sys.argv[2]))",
            str(ROOT / "CHANGELOG.md"),
            version,
        ],
        cwd=SCRIPT.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert notes.returncode == 0 and "### " in notes.stdout, notes.stderr
