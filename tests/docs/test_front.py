"""The first screen of the README: for whom, a picture, and how to install, before anything for developers."""

from __future__ import annotations

import re
import struct

from tests.docs.blocks import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_begins_with_its_readers_and_a_picture_of_the_dashboard() -> None:
    top = README[: README.index("\n## ")]
    assert "It is for teams" in "\n".join(top.splitlines()[:6])
    picture = re.search(r"!\[([^\]]+)\]\((docs/images/[\w.-]+\.png)\)", top)
    assert picture is not None and len(picture[1].split()) > 5, "a picture, and words for those who cannot see it"
    data = (ROOT / picture[2]).read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert data.startswith(b"\x89PNG") and width >= 1000 and height >= 600
    assert len(data) < 200_000


def test_pip_and_a_container_come_before_make_and_tests_come_last() -> None:
    install = README[README.index("## Install and run") :]
    pip, container, make = (install.index(word) for word in ("$ pip install", "$ docker run", "$ make run"))
    assert pip < container < make
    assert "make test`" not in README[: README.index("## Contribute")]
