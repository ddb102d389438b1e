"""The site of each release, and of the present tree, beside each other: ``make site-versions`` builds build/sites.

| path | content |
|---|---|
| ``VERSION/`` | the pages of the tag ``vVERSION``, built from that tag; ``next/`` those of the present tree |
| ``versions.js`` | versions and their pages, newest first: a script, because pages opened as files cannot fetch |
| ``index.html`` | leads to the newest release; without one, to ``next/`` |

Each page shows the versions in its header; the same page of the chosen version is opened, or its front page if it has
no such page. Each release is built once: delete its directory to build it again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
NEXT: Final = "next"
FRONT: Final = """<!doctype html><meta charset="utf-8"><title>StarlingMQ</title>
<meta http-equiv="refresh" content="0; url={first}/index.html"><a href="{first}/index.html">StarlingMQ {first}</a>
"""
TAG: Final = re.compile(r"v(\d+)\.(\d+)\.(\d+)")


class SiteError(Exception):
    """One line for the person who builds the site."""


def run(tree: Path, *words: str, **environment: str) -> str:
    done = subprocess.run(
        words, cwd=tree, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SiteError(f"{' '.join(words[:3])} in {tree}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def releases(root: Path) -> list[str]:
    """The versions of all tags of releases, newest first."""
    found = [tag for tag in run(root, "git", "tag").split() if TAG.fullmatch(tag)]
    return [tag[1:] for tag in sorted(found, key=lambda tag: [int(one) for one in tag[1:].split(".")], reverse=True)]


def build(tree: Path, sites: Path, version: str) -> None:
    print(f"site of {version}", flush=True)
    arguments = ("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(sites / version))
    run(tree, sys.executable, *arguments, NO_MKDOCS_2_WARNING="1", SITE_VERSION=version)


def build_release(root: Path, sites: Path, version: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory) / version
        run(root, "git", "worktree", "add", "--quiet", "--detach", str(tree), f"v{version}")
        try:
            build(tree, sites, version)
        finally:
            run(root, "git", "worktree", "remove", "--force", str(tree))


def build_all(root: Path, sites: Path) -> list[str]:
    """Build what is missing, and ``next``. Returns all versions, newest first. Raises SiteError."""
    sites.mkdir(parents=True, exist_ok=True)
    found = releases(root)
    for version in found:
        if not (sites / version / "index.html").is_file():
            build_release(root, sites, version)
    build(root, sites, NEXT)
    versions = [NEXT, *found]
    pages = {
        version: sorted(str(path.relative_to(sites / version)) for path in (sites / version).rglob("*.html"))
        for version in versions
    }
    (sites / "versions.js").write_text(f"window.siteVersions = {json.dumps(pages)};\n", encoding="utf-8")
    (sites / "index.html").write_text(FRONT.format(first=found[0] if found else NEXT), encoding="utf-8")
    return versions


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the site of each release beside that of the present tree.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "sites", help="directory (default: build/sites)")
    options = parser.parse_args()
    try:
        versions = build_all(ROOT, options.out.resolve())
    except SiteError as error:
        print(f"site-versions: {error}", file=sys.stderr)
        return 1
    print(f"{options.out / 'index.html'}: {', '.join(versions)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
