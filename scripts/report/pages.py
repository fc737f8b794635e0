"""The page: one HTML file that needs no other file."""

import base64
import hashlib
from pathlib import Path

from parallel_epochs.pipeline.run.outputs import Header
from parallel_epochs.scripts.report import single
from parallel_epochs.scripts.report.charts import Figures, Line, points_for
from parallel_epochs.scripts.report.comparison import compare
from parallel_epochs.scripts.report.elements import escape
from parallel_epochs.scripts.report.runs import Run, groups

FOLDER = Path(__file__).resolve().parent
GENERATOR = '<meta name="generator" content="parallel_epochs.scripts.report">'
# How pages begin that were written before there was GENERATOR.
OLD_START = b'<!doctype html><html lang="en"'
OLD_POLICY = b"""<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'sha256-"""


def page(runs: list[Run], left_out: list[str] = (), *, live: float = 0) -> str:
    """Build the page about one run or about several.

    Args:
        left_out: a line for each run that has nothing to show.
        live: seconds after which the page reloads itself if there is a newer one. 0: never.

    Raises:
        ImportError: Plotly is not installed.
    """
    if len(runs) == 1 and not left_out:
        figures = Figures()
        title, sections = single.describe(runs[0], figures)
    else:
        lines = [
            Line(f"line-{i}", label, members, i) for i, (label, members) in enumerate(groups(runs))
        ]
        num_points, with_seeds = points_for(lines)
        figures = Figures(num_points)
        title, sections = compare(lines, list(left_out), figures, with_seeds=with_seeds)
    head, *rest = sections
    shown = [
        f'<section id="{anchor}"><h2>{escape(heading)}</h2>{content}</section>'
        for anchor, heading, content in rest
        if content
    ]
    links = "".join(
        f'<li><a href="#{anchor}">{escape(heading)}</a></li>'
        for anchor, heading, content in rest
        if content
    )
    body = (
        f'<header><div class="top"><h1>{escape(title)}</h1><button type="button" id="theme">Dark</button></div>'
        f'{head[2]}</header><nav aria-label="Sections"><ul>{links}</ul></nav><main>{"".join(shown)}</main>'
    )
    return _document(title, body, figures, live)


def is_page(header: Header) -> bool:
    """Tell by the header of a file whether it is a page of this command, of this version or of one before."""
    return (
        GENERATOR.encode() in header.start
        or header.start.startswith(OLD_START)
        and OLD_POLICY in header.start
    )


def _document(title: str, body: str, figures: Figures, live: float) -> str:
    """Build the document. Its content security policy allows only these scripts, and loads nothing."""
    from plotly.offline import get_plotlyjs

    names = (
        "charts.js",
        "page.js",
        *(("layout_search.js",) if 'id="layout-search"' in body else ()),
    )
    scripts = [get_plotlyjs(), *((FOLDER / name).read_text() for name in names)]
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    by_eval = " 'unsafe-eval'" if figures.draws_by_eval else ""
    policy = f"default-src 'none'; script-src {hashes}{by_eval}; style-src 'unsafe-inline'; img-src data: blob:"
    reload = f'<noscript><meta http-equiv="refresh" content="{live:g}"></noscript>' if live else ""
    return (
        f'<!doctype html><html lang="en"{f" data-live={live:g}" if live else ""}><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'{GENERATOR}<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>{reload}'
        f"<style>{(FOLDER / 'page.css').read_text()}</style></head><body>{body}"
        '<noscript><p class="warning">The charts need JavaScript; the tables do not.</p></noscript>'
        '<p id="announce" class="unseen" aria-live="polite"></p>'
        f'<script type="application/json" id="charts">{figures.data()}</script>'
        + "".join(f"<script>{script}</script>" for script in scripts)
        + "</body></html>"
    )
