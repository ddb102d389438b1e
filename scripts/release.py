"""Makes a release: scripts/release.py VERSION [--dry-run]; `make release VERSION=0.2.0` calls it.

1. Check that the tree is clean, the tag is free, and CHANGELOG.md has the section "## VERSION, not released".
2. Write the version and the date into the sources, build the artefacts, and check that there are some of this version.
3. Write dist/SHA256SUMS and dist/starlingmq-VERSION-notes.md, the section of the changelog.
4. Commit the version, and tag it with the notes.

If a step fails, the sources are as before. Nothing leaves this machine: the last line is the command that pushes.
--dry-run checks, and prints the notes and the steps.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
VERSION_FILE: Final = "src/starlingmq/_version.py"
CHART: Final = "deploy/helm/starlingmq/Chart.yaml"
CHANGELOG: Final = "CHANGELOG.md"
BUILD: Final = "make build wheels deb image"
NUMBERS: Final = re.compile(r"\d+\.\d+\.\d+")


class ReleaseError(Exception):
    """One line for the person who releases."""


def git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def notes_of(changelog: str, version: str) -> str:
    """The section of a version that is not released yet."""
    heading = f"## {version}, not released\n"
    _, found, rest = changelog.partition(heading)
    if not found:
        raise ReleaseError(f'{CHANGELOG} has no section "{heading.strip()}"')
    text = re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0].strip()
    if not text:
        raise ReleaseError(f"the section of {version} in {CHANGELOG} is empty")
    return text + "\n"


def check(root: Path, version: str) -> str:
    """The notes. Raises ReleaseError."""
    if not NUMBERS.fullmatch(version):
        raise ReleaseError(f"{version}: a version has three numbers, such as 0.2.0")
    if git(root, "status", "--porcelain", "--untracked-files=no"):
        raise ReleaseError("there are changes that are not committed")
    if git(root, "tag", "--list", f"v{version}"):
        raise ReleaseError(f"the tag v{version} exists already")
    return notes_of((root / CHANGELOG).read_text(encoding="utf-8"), version)


def write_version(root: Path, version: str, day: str) -> None:
    for name, pattern, wanted in (
        (VERSION_FILE, r'(?m)^__version__ = ".*"$', f'__version__ = "{version}"'),
        (CHART, r"(?m)^version: .*$", f"version: {version}"),
        (CHART, r"(?m)^appVersion: .*$", f'appVersion: "{version}"'),
        (CHANGELOG, rf"(?m)^## {re.escape(version)}, not released$", f"## {version} ({day})"),
    ):
        path = root / name
        text, count = re.subn(pattern, wanted, path.read_text(encoding="utf-8"))
        if count != 1:
            raise ReleaseError(f"{name}: {pattern} stands there {count} times instead of once")
        path.write_text(text, encoding="utf-8")


def artefacts(directory: Path, version: str) -> list[Path]:
    """The files of this version, not those of a version before it such as 0.2.0.dev0 and 0.2.0~rc1."""
    of_version = re.compile(rf"[-_]{re.escape(version)}(?![0-9~]|\.dev|\.\d|a\d|b\d|rc\d)")
    return sorted(one for one in directory.glob("*") if one.is_file() and of_version.search(one.name))


def write_sums(files: list[Path]) -> Path:
    path = files[0].parent / "SHA256SUMS"
    path.write_text("".join(f"{sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in files))
    return path


def release(root: Path, version: str, build: str, day: str) -> None:
    """Raises ReleaseError, and then the sources are as before."""
    text = check(root, version)
    changed = (VERSION_FILE, CHART, CHANGELOG)
    try:
        write_version(root, version, day)
        if subprocess.run(shlex.split(build), cwd=root, check=False).returncode:
            raise ReleaseError(f"{build}: failed")
        made = artefacts(root / "dist", version)
        if not made:
            raise ReleaseError(f"{build}: there is nothing of version {version} in dist/")
        notes = root / "dist" / f"starlingmq-{version}-notes.md"
        notes.write_text(text, encoding="utf-8")
        sums = write_sums([one for one in made if one != notes] + [notes])
        git(root, "commit", "--quiet", "--message", f"Release {version}", "--", *changed)
    except BaseException:
        git(root, "checkout", "--quiet", "HEAD", "--", *changed)
        raise
    git(root, "tag", "--annotate", f"v{version}", "--cleanup=whitespace", "--file", str(notes))
    print(f"{len(made)} artefacts, {notes.name} and {sums.name} are in dist/")
    print(f"to publish it: git push --atomic origin HEAD v{version}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a release; nothing leaves this machine.")
    parser.add_argument("version")
    parser.add_argument("--dry-run", action="store_true", help="check, and print the notes and the steps")
    parser.add_argument("--build", default=BUILD, help=f"command that writes the artefacts to dist/ (default: {BUILD})")
    parser.add_argument("--root", type=Path, default=ROOT, help="the working tree (default: this one)")
    given = parser.parse_args()
    try:
        if given.dry_run:
            print(check(given.root, given.version))
            print(f"would set the version to {given.version}, run {given.build}, write dist/SHA256SUMS, commit,")
            print(f"and tag v{given.version}")
        else:
            release(given.root, given.version, given.build, datetime.now(UTC).date().isoformat())
    except ReleaseError as error:
        sys.exit(f"release: {error}")


if __name__ == "__main__":
    main()
