"""The page: one HTML file that needs no other file, made of template.html, in which Jinja escapes every text."""

import base64
import hashlib
import re
from pathlib import Path

import jinja2
from plotly.offline import get_plotlyjs

from parallel_epochs.pipeline.names import SCORES
from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.words import command_of
from parallel_epochs.scripts.report import charts, comparison, labels, layout, words
from parallel_epochs.scripts.report.runs import Run

GENERATOR = '<meta name="generator" content="parallel_epochs.scripts.report">'
# The sections of a page about one run and about several: names of macros, headings, and the files that they show.
GRAPH = {
    "partition": ("Partition", "metrics.jsonl"),
    "sampling": ("Neighbour sampling", "metrics.jsonl"),
    "graphs": ("Batches of graphs", "metrics.jsonl"),
    "components": ("Connected components", "components.json"),
}
SINGLE = {
    "tiles": ("", "summary.json"),
    "curves": ("Curves", "metrics.jsonl"),
    "scores": ("Further scores", "summary.json"),
    "trials": ("Settings compared", "summary.json"),
    "labels": ("Labels", SCORES),
    "thresholds": ("ROC and precision-recall", SCORES),
    "confusion": ("Confusion matrix", SCORES),
    "types": ("Types and relations", SCORES),
    "time": ("Time of each phase", "metrics.jsonl"),
    **GRAPH,
    "environment": ("Hardware and versions", "summary.json"),
    "configuration": ("Configuration", "config.yaml"),
}
SEVERAL = {
    "settings": "Settings",
    "overlaid": "Curves",
    "runs": "Runs",
    "differences": "Differences of configuration",
    "speed": "Speed-up at equal quality",
    "phases": "Time of each phase",
    "environments": "Hardware, versions and commands",
    "leaderboard": "For OGB's leaderboard",
}
DAMAGED = (
    *(TypeError, ValueError, LookupError, AttributeError, ArithmeticError),
    *(OSError, jinja2.UndefinedError),
)


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (words.count, words.score, words.duration, words.memory, words.setting):
        environment.filters[function.__name__] = function
    environment.filters |= {
        "short": words.shortened,
        "named": words.metric_name,
        "cell": words.cell,
    }
    environment.globals |= {
        "charts": charts,
        "Line": charts.Line,
        "judge": labels,
        "read_json": lambda path: files.read_json(path) if files.is_there(path) else None,
        "meanings": words.meanings,
        "resume": command_of("train"),
        "SPLITS": {"train": "Training", "valid": "Validation", "test": "Test"},
    }
    return environment.get_template("template.html")


def page(runs: list[Run], left_out: list[str] = ()) -> str:
    """Build the page about one run or about several.

    Args:
        left_out: a line for each run that has nothing to show.
    """
    return build(runs, left_out)[0]


def build(runs: list[Run], left_out: list[str] = ()) -> tuple[str, list[str]]:
    """Build the page, and list what cannot be read. Its security policy allows only its own scripts."""
    macros, problems = _template().module, dict.fromkeys(f for run in runs for f in run.problems)
    sections, several = [], None

    def add(name: str, heading: str, what: object, path: Path) -> None:
        try:
            content = getattr(macros, name)(what).strip()
        except DAMAGED as error:
            text = " ".join(str(error).split())[:300]
            known = any(str(path) in line for line in problems)
            if str(path) in text or not known:
                problems[text if str(path) in text else f"{path} is damaged: {text}"] = None
            return
        if content:
            sections.append((name, heading, content))

    if len(runs) == 1 and not left_out:
        (run,) = runs
        heading = run.name
        try:
            if found := layout.layout_of(run):
                sections.append(("layout", "Layout", layout.layout_section(found)))
        except (ValueError, OSError) as error:
            problems[str(error)] = None
        for name, (title, file) in SINGLE.items():
            add(name, title, run, run.folder / file)
    else:
        several = comparison.compare(runs, list(left_out))
        problems |= dict.fromkeys(several.problems)
        first, run = several.runs[0], None
        heading = " and ".join(each.name for each in runs)
        if len(runs) > 2:
            heading = f"{len(runs)} runs, {first.name} to {several.runs[-1].name}"
        for name, title in SEVERAL.items():
            add(name, title, several, first.folder)
        for name, (title, file) in GRAPH.items():
            add(name, f"{title} of {first.name}", first, first.folder / file)
    body = macros.body(heading, run, several, list(problems), sections)
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", body, re.DOTALL)
    scripts = [get_plotlyjs(), *scripts]
    digests = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts
    ]
    # A map in two dimensions needs WebGL, for which Plotly compiles functions from text.
    by_eval = " 'unsafe-eval'" if '"scattergl"' in body else ""
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) + by_eval
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
    )
    # Charts are drawn last, when all places have their sizes.
    body = re.sub(r"<script[^>]*>.*?</script>", "", body, flags=re.DOTALL)
    after = "".join(f"<script>{text}</script>" for text in scripts)
    document = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{policy}">{GENERATOR}{macros.head(heading)}</head><body>{body}{after}</body></html>'
    )
    return document, list(problems)


def is_page(path: Path) -> bool:
    """Tell whether a file is a page of this command."""
    if not path.is_file():
        return False
    with files.open_file(path) as file:
        return GENERATOR.encode() in file.read(1 << 16)
