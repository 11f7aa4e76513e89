"""Files that say something about the package: they agree with it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from fairmean import __version__

ROOT = Path(__file__).parent.parent


def test_the_citation_has_the_version_and_the_licence():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"\nversion: {__version__}\n" in citation
    assert f"\nlicense: {project['license']}\n" in citation


def test_what_contributors_read_is_there():
    """Every folder, file, link and make target that the pages name."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for page in ("CONTRIBUTING.md", "SECURITY.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        paths = re.findall(r"`((?:src|docs|tests|scripts|paper|\.ci)(?:/[\w./-]*)?)`", text)
        paths += re.findall(r"\]\(([^)#]+)\)", text) + re.findall(r"python (scripts/\S+\.py)", text)
        for path in paths:
            assert (ROOT / path).exists(), f"{page} names {path}"
        assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)) <= set(targets)
