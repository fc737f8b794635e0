import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from conftest import TOY

from pipeline.train import run
from scripts import report


@pytest.fixture
def two_runs(configure, tmp_path):
    folders = [tmp_path / "a", tmp_path / "b<b>"]
    for seed, folder in enumerate(folders):
        folder.mkdir()
        run(configure(*TOY, f"seed={seed}", "train.eval_every=2"), folder, "python -m pipeline.train <toy>")
    return folders


class Balanced(HTMLParser):
    """Every tag that is opened is closed, in order."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_stands_alone_and_shows_everything(two_runs):
    one = report.page([report.read_run(two_runs[0])])
    Balanced().feed(one)
    # Only names of XML vocabularies may look like addresses.
    assert not re.search(r'(src|href)="http', one) and "<script" not in one
    assert one.count("<svg") == 4
    summary = json.loads((two_runs[0] / "summary.json").read_text())
    for text in (f"{summary['test']:.4f}", summary["weights_sha256"][:16], "&lt;toy&gt;", "directed edges kept",
                 "1 components, of which 0 are single nodes", "Metric: rocauc"):
        assert text in one
    both = report.page([report.read_run(folder) for folder in two_runs])
    Balanced().feed(both)
    assert "b&lt;b&gt;" in both and "<b>" not in both


def test_equal_runs_give_equal_pages_and_an_unfinished_run_is_shown(two_runs):
    assert len({report.page([report.read_run(two_runs[0])]) for _ in range(2)}) == 1
    (two_runs[0] / "summary.json").unlink()
    page = report.page([report.read_run(two_runs[0])])
    assert "–" in page and page.count("<svg") == 4


def test_what_is_no_run_is_refused(tmp_path, two_runs):
    with pytest.raises(ValueError, match="is not a run directory: it has no config.yaml"):
        report.read_run(tmp_path)
    (two_runs[0] / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="has no epoch to show"):
        report.read_run(two_runs[0])


@pytest.mark.system
def test_a_browser_draws_the_page(two_runs, tmp_path):
    chromium = shutil.which("chromium")
    assert chromium, "make test-all installs chromium"
    page = two_runs[0] / "report.html"
    page.write_text(report.page([report.read_run(folder) for folder in two_runs]))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync",
             "--disable-component-update", f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000"]
    dom = subprocess.run([chromium, *flags, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120).stdout
    assert dom.count("<svg") == 4 and "Connected components" in dom
    shot = tmp_path / "shot.png"
    subprocess.run([chromium, *flags, "--window-size=1100,2200", f"--screenshot={shot}", page.as_uri()], capture_output=True,
                   timeout=120, check=True)
    from matplotlib.image import imread

    pixels = imread(shot)[..., :3]
    # A page with curves is neither blank nor a single colour: the bars' blue covers a part of it.
    blue = (abs(pixels - [0x33 / 255, 0x66 / 255, 0xAA / 255]) < 0.04).all(-1)
    assert pixels.shape[:2] == (2200, 1100) and blue.mean() > 0.01
