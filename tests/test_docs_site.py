"""The pages as a site: anchors exist, and `make docs` builds pages that load nothing from elsewhere."""

import json
import os
import re
import subprocess
import sys

import pytest

import parallel_epochs as pe
from parallel_epochs import models
from tests.helpers.running import ROOT
from tests.test_docs import EVERYWHERE, prose_of


def anchors_of(page) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", EVERYWHERE, ids=lambda page: page.name)
def test_links_lead_to_headings(page):
    for target, anchor in re.findall(r"\]\(([^):#]*)#([^)]+)\)", prose_of(page)):
        linked = page.parent / target if target else page
        assert linked.is_file() and anchor in anchors_of(linked), f"{page.name}: {target}#{anchor}"


def test_every_page_is_in_the_navigation():
    named = set(re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("nav:")[2]))
    assert named == {page.name for page in EVERYWHERE} - {"README.md"} | {"index.md", "keys.md"}


def test_pictures_have_their_files_and_load_nothing():
    for page in EVERYWHERE:
        for target in re.findall(r'(?:src|srcset)="([^"]+)"', page.read_text()):
            assert (page.parent / target).is_file(), f"{page.name}: {target}"
    for picture in (ROOT / "docs").glob("*.svg"):
        assert not re.search(
            r'(?:href|src)="https?:|url\(["\']?https?:|@import', picture.read_text()
        ), picture.name


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="make docs installs it")
    folder = tmp_path_factory.mktemp("site")
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.mark.system
def test_the_site_is_built_and_loads_nothing_from_elsewhere(site):
    found = {
        entry["location"].partition("#")[0].removeprefix("evidence/")
        for entry in json.loads((site / "search" / "search_index.json").read_text())["docs"]
    }
    pages = {page.with_suffix(".html").name for page in EVERYWHERE} - {"README.html"}
    assert found == pages | {"index.html", "keys.html"}
    listed = (site / "llms.txt").read_text()
    for page in [*site.glob("*.html"), *site.glob("evidence/*.html")]:
        if page.name != "404.html":
            text = page.with_suffix(".md")
            assert f"]({text.relative_to(site)})" in listed and "# " in text.read_text(), page.name
        loaded = re.findall(
            r'<(?:script|img|source)[^>]* src="(https?:[^"]*)|<link[^>]* href="(https?:[^"]*)',
            page.read_text(),
        )
        assert not loaded, f"{page.name}: {loaded}"


def test_the_reference_has_every_public_name():
    text = (ROOT / "docs" / "python.md").read_text()
    for name in (*pe._API, *models.__all__):
        assert re.search(rf"^::: parallel_epochs\.[\w.]+\.{name}$", text, re.MULTILINE), name


@pytest.mark.system
def test_the_reference_has_docstrings(site):
    for page in ("python.html", "python.md"):
        text = (site / page).read_text()
        for words in ("Cut a graph into clusters", "num_parts", "set_epoch", "GENConv"):
            assert words in text, (page, words)
