"""What mkdocs does beside reading docs/*.md: pages from the top of the repository, and links out of docs/."""

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
TOP = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}


def on_files(files, config):
    """Add the pages that lie beside docs/."""
    for name, page in TOP.items():
        text = (ROOT / name).read_text()
        text = re.sub(r"<picture>.*?alt=\"([^\"]*)\".*?</picture>",
                      r"![\1](idea-light.svg#only-light)![\1](idea-dark.svg#only-dark)", text, flags=re.DOTALL)
        text = re.sub(r"\]\((?!https?:|#)([^)]*)\)", lambda link: f"](../{link[1]})", text)
        text = text.replace("](../idea-", "](idea-").replace("](../docs/", "](")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, **_):
    """Lead links to the pages of the top there, and leave out links to files that are no pages."""
    def mend(link: re.Match) -> str:
        page = TOP.get(link[2].partition("#")[0])
        return f"[{link[1]}]({page})" if page else link[1]

    return re.sub(r"\[([^\]]*)\]\(\.\./([^)]*)\)", mend, markdown)
