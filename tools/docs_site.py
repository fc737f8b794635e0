"""Gives mkdocs the pages that are no docs/*.md: those at the top of the repository, and every key; mends links."""

import re
import sys
from pathlib import Path

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # mkdocs loads this file by its path
from tools.architecture import draw  # noqa: E402
from tools.keys import write_page  # noqa: E402

TOP = {
    "README.md": "index.md",
    **{name: name for name in ("CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md")},
}
PACKAGE = griffe.load("parallel_epochs", search_paths=[str(ROOT)])
TEXTS: dict[str, tuple[str, str]] = {}


def on_files(files, config):
    """Add the pages that lie outside of docs/."""
    for name, page in TOP.items():
        text = (ROOT / name).read_text()
        text = re.sub(r"\]\((?!https?:|#)([^)]*)\)", lambda link: f"](../{link[1]})", text)
        text = re.sub(
            r"<picture>.*?alt=\"([^\"]*)\" src=\"docs/([\w-]+)-light.svg\".*?</picture>",
            r"![\1](\2-light.svg#only-light)![\1](\2-dark.svg#only-dark)",
            text,
            flags=re.DOTALL,
        )
        text = text.replace("](../docs/", "](")
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "keys.md", content=write_page()))
    return files


def on_page_markdown(markdown, page, **_):
    """Lead links to the pages of the top there, leave out links to files that are no pages, and keep the text."""

    def mend(link: re.Match) -> str:
        name = TOP.get(link[2].partition("#")[0])
        return f"[{link[1]}]({above[3:]}{name})" if name else link[1]

    if page.file.src_uri == "CONTRIBUTING.md":
        markdown += "\n" + draw()
    above = "../" * (1 + page.file.src_uri.count("/"))
    text = re.sub(rf"\[([^\]]*)\]\({above}([^)]*)\)", mend, markdown)
    TEXTS[page.file.src_uri] = (
        str(page.title),
        re.sub(r"^::: ([\w.]+)$", _describe, text, flags=re.MULTILINE),
    )
    return text


def _describe(mark: re.Match) -> str:
    """Write out the class or function that a mark of the reference names, and the public methods of a class."""
    found = PACKAGE[mark[1].partition(".")[2]]
    members = {**found.inherited_members, **found.members}
    public = [
        member
        for name, member in members.items()
        if member.is_function and not name.startswith("_")
    ]
    return "\n\n".join(
        part
        for one in [found, *public]
        if one.docstring
        for part in (
            f"### {one.path.removeprefix(found.parent.path + '.')}",
            f"```python\n{one.signature()}\n```",
            one.docstring.value,
        )
    )


def on_post_build(config):
    """Write the Markdown of each page beside it, and llms.txt, which lists them for programs that read."""
    site = Path(config["site_dir"])
    lines = [f"- [{title}]({name})" for name, (title, _) in sorted(TEXTS.items())]
    (site / "llms.txt").write_text("\n".join([f"# {config['site_name']}", "", *lines, ""]))
    for name, (_, text) in TEXTS.items():
        (site / name).write_text(text)
