"""The report in a real Chromium: it draws, its console is silent, and what can be clicked does what it says."""

import base64
import fcntl
import io
import json

import pytest

from parallel_epochs.pipeline.run.log import read_records
from parallel_epochs.scripts import report
from tests.helpers.report_runs import (
    components,
    typed_record,
    write_records,
    write_run,
    write_scores,
)

pytestmark = pytest.mark.system
WIDTHS = (400, 900, 1600)
SHOWN = """(() => {
    const out = {};
    for (const t of document.getElementById("%s").data) if (t.visible) (out[t.meta.role] ??= []).push(t.meta.key);
    return out;
})()"""
# Elements of the page that reach beyond its right edge, or lie on each other within a card.
ASTRAY = """[...document.querySelectorAll("h1, h2, h3, p, .card, .wide, .tiles > div, .legend li, button, pre")]
    .filter((e) => !e.closest(".wide table, .modebar, .unseen") && e.getBoundingClientRect().width > 0)
    .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 || e.getBoundingClientRect().left < -1)
    .map((e) => e.outerHTML.slice(0, 120))"""
OVERLAPPING = """[...document.querySelectorAll(".drawing")].flatMap((plot) => {
    const boxes = [...plot.querySelectorAll(".xtick text, .ytick text, .xtitle, .ytitle, .annotation-text")]
        .map((e) => [e.textContent, e.getBoundingClientRect()]);
    const meet = (p, q) => p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 1 && q.top < p.bottom - 1;
    return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([b, q]) => meet(p, q))
        .map(([b]) => `${plot.id}: ${a} on ${b}`));
})"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page of one run, and one of two settings with three seeds each and of another metric."""
    folder = tmp_path_factory.mktemp("runs")
    climb = [0.5 + 0.4 * i / (i + 5) for i in range(30)]
    hardware = "16 x Some CPU with a rather long name, 128 GiB"
    folders = [
        write_run(
            folder / f"{lr}-{seed}",
            [v + seed / 100 + lr / 10 for v in climb],
            seed=seed,
            lr=lr,
            hardware=hardware,
        )
        for lr in (0.1, 0.2)
        for seed in range(3)
    ]
    (folders[0] / "components.json").write_text(json.dumps(components([20, 9, 3, 1])))
    folders.append(write_run(folder / "other", climb, metric="rocauc", finished=False, num_ranks=2))
    write_scores(
        folders[0],
        "classes",
        18,
        names=[f"section of packages {number}" for number in range(18)],
        typed=typed_record(),
    )
    out = {}
    early = write_run(folder / "early", [0.9, *climb[:9]])  # the best epoch is at the left edge
    curve = {
        "positive": [0, 1, 3, 9],
        "negative": [70, 19, 9, 1],
        "probability": [0.01, 0.2, 0.5, 0.9],
        "rocauc": 0.9,
        "ap": 0.75,
    }
    binary = write_scores(
        write_run(folder / "binary", climb, metric="rocauc"), "binary tasks", curve=curve
    )
    links = write_scores(
        write_run(folder / "links", climb, metric="rocauc"),
        "links",
        curve=curve,
        each=None,
        ranking={"mrr": 0.25, "hits@10": 0.125},
    )
    for name, chosen in (
        ("one", folders[:1]),
        ("early", [early]),
        ("several", folders),
        ("binary", [binary]),
        ("links", [links]),
    ):
        out[name] = folder / f"{name}.html"
        out[name].write_text(report.page(*report.find_runs(chosen)))
    return out


@pytest.mark.parametrize("dark", (False, True), ids=("light", "dark"))
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ("one", "early", "several", "binary", "links"))
def test_it_draws_at_every_width_in_both_themes(browser, pages, name, width, dark):
    from matplotlib.image import imread

    browser.open(pages[name], width=width, dark=dark)
    assert browser.run("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(ASTRAY) == [] and browser.run(OVERLAPPING) == []
    charts = browser.run("document.querySelectorAll('.drawing').length")
    assert (
        charts
        == browser.run("document.querySelectorAll('.drawing .cartesianlayer .subplot').length")
        >= 6
    )
    pixels = imread(io.BytesIO(browser.screenshot()))[..., :3]
    assert pixels.shape[1] == width
    # Curves in the theme's first colour, on its background.
    blue, paper = (
        ((0x4B, 0xA6, 0xE3), (0x14, 0x17, 0x1A))
        if dark
        else ((0x00, 0x72, 0xB2), (0xFB, 0xFB, 0xFA))
    )
    assert near(pixels, blue) > 0.001 and near(pixels, paper) > 0.1
    assert not browser.complaints


def near(pixels, colour) -> float:
    return (abs(pixels - [channel / 255 for channel in colour]) < 0.03).all(-1).mean()


def test_the_legend_switches_curves_in_all_charts_of_its_block(browser, pages):
    browser.open(pages["several"], width=1600)
    before = browser.run(SHOWN % "chart-0")
    assert before == {
        "mean": ["line-0", "line-1"],
        "band": ["line-0", "line-1"],
        "best": ["line-0", "line-1"],
    }
    browser.click(".key[data-key=line-0]")
    assert browser.run("document.querySelector('.key[data-key=line-0]').ariaPressed") == "false"
    for chart in ("chart-0", "chart-2"):
        assert browser.run(SHOWN % chart)["mean"] == ["line-1"]
    assert "line-2" in browser.run(SHOWN % "chart-3")["mean"]  # of the other metric
    browser.click(".key[data-key=line-0]")
    assert browser.run(SHOWN % "chart-0") == before
    browser.click(".key[data-key=line-1]", times=2)
    assert browser.run(SHOWN % "chart-0")["mean"] == ["line-1"]
    browser.click(".key[data-key=line-1]")  # nothing would be left
    assert browser.run(SHOWN % "chart-0") == before
    browser.click(".seeds[data-key=line-1]")
    assert browser.run(SHOWN % "chart-2")["seed"] == ["line-1"] * 3
    # The same by keyboard.
    browser.run("document.querySelector('.seeds[data-key=line-1]').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.call(
            "Input.dispatchKeyEvent", type=kind, key="Enter", windowsVirtualKeyCode=13, text="\r"
        )
    assert "seed" not in browser.run(SHOWN % "chart-2")


def test_axes_zoom_and_hover(browser, pages):
    browser.open(pages["one"], width=1600)
    range_ = "document.getElementById('%s').layout.xaxis.range"
    whole = browser.run(range_ % "chart-1")
    x, y, width, height = (
        browser.run("""(() => { document.getElementById("chart-0").scrollIntoView({block: "center"});
        const r = document.querySelector("#chart-0 .nsewdrag").getBoundingClientRect();
        return [r.x, r.y, r.width, r.height]; })()""")
    )
    browser.mouse("mouseMoved", x + width / 2, y + height / 2)
    browser.mouse("mouseMoved", x + width / 2 + 2, y + height / 2)
    browser.wait_for(
        "document.querySelector('#chart-0 .hoverlayer').textContent.includes('Validation : 0.')"
    )
    assert "after 1" in browser.run("document.querySelector('#chart-0 .hoverlayer').textContent")
    browser.mouse("mousePressed", x + width / 4, y + height / 2, 1)
    for share in (0.3, 0.4, 0.5):
        browser.mouse("mouseMoved", x + width * share, y + height / 2, 1)
    browser.mouse("mouseReleased", x + width / 2, y + height / 2, 1)
    browser.wait_for(f"{range_ % 'chart-0'}[1] < 20")
    zoomed = browser.run(range_ % "chart-0")
    assert browser.run(range_ % "chart-1") == zoomed != whole  # the charts of a block go together
    browser.click("#theme")
    assert browser.run(range_ % "chart-0") == zoomed  # and stay so
    browser.click("[data-axis=step]")
    assert (
        browser.run("document.getElementById('chart-0').layout.xaxis.title.text")
        == "optimizer steps"
    )
    assert browser.run("document.getElementById('chart-0').data[0].x.slice(0, 3)") == [2, 4, 6]
    browser.click("[data-log]")
    assert browser.run("document.getElementById('chart-0').layout.xaxis.type") == "log"
    assert browser.run(
        "[...document.querySelectorAll('[aria-pressed=true]:not(.key)')].map((b) => b.textContent)"
    ) == ["Steps", "Logarithmic"]


def test_the_theme_is_kept(browser, pages):
    browser.open(pages["one"], width=900, dark=True)
    browser.run("localStorage.clear()")
    browser.open(pages["one"], width=900, dark=True)
    browser.click("#theme")
    colour = "getComputedStyle(document.body).backgroundColor"
    assert browser.run(colour) == "rgb(251, 251, 250)"
    assert (
        browser.run("document.querySelector('#chart-0 .xtitle').style.fill") == "rgb(95, 104, 114)"
    )
    browser.open(pages["several"], width=900, dark=True)
    assert browser.run("document.documentElement.dataset.theme") == "light"
    browser.run("localStorage.clear()")


def test_tables_are_sorted_and_texts_copied(browser, pages):
    browser.open(pages["several"], width=1600)
    browser.call(
        "Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"]
    )
    column = (
        """[...document.querySelectorAll('#runs tbody tr')].map((r) => r.cells[3].textContent)"""
    )
    written = browser.run(column)
    for order, direction in (
        (sorted(written, reverse=True), "descending"),
        (sorted(written), "ascending"),
    ):
        browser.click("#runs thead th:nth-child(4) button")
        assert browser.run(column) == order
        assert (
            browser.run("document.querySelector('#runs thead th:nth-child(4)').ariaSort")
            == direction
        )
    browser.click(
        "#runs thead th:nth-child(9) button"
    )  # the run that has not ended has no memory to show
    assert (
        browser.run("[...document.querySelectorAll('#runs tbody tr')].at(-1).cells[8].textContent")
        == "–"
    )
    browser.open(pages["one"], width=1600)
    browser.click(".copy")
    browser.wait_for("document.querySelector('.copy').textContent == 'Copied'")
    assert browser.run("document.getElementById('announce').textContent") == "Copied"
    assert browser.run("navigator.clipboard.readText()") == "python -m pipeline.train -m seed=0,1,2"


def test_a_table_that_is_too_wide_says_so_until_it_is_not(browser, pages):
    hints = """[...document.querySelectorAll('.wide')].filter((wide) => !wide.closest('details:not([open])'))
        .map((wide) => [wide, wide.nextElementSibling]).map(([wide, hint]) => [
            wide.scrollWidth > wide.clientWidth + 1, !hint.hidden && hint.textContent.startsWith("Scroll sideways")])"""
    for width, least in ((390, 4), (1600, 0)):
        browser.open(pages["one"], width=width)
        browser.wait_for(f"({hints}).every(([scrolls, says]) => scrolls === says)")
        assert sum(scrolls for scrolls, _ in browser.run(hints)) >= least
    browser.open(pages["one"], width=390)
    table = "document.querySelector('#confusion .wide')"
    first = f"{table}.querySelector('tbody th').getBoundingClientRect().left"
    before = browser.run(first)
    browser.run(f"{table}.scrollLeft = 1e6")
    browser.wait_for(f"{table}.classList.contains('at-end')")
    assert browser.run(first) == before  # the names of the rows stay
    browser.run("document.querySelector('details').open = true")  # a table that had no width
    browser.wait_for(f"({hints}).every(([scrolls, says]) => scrolls === says)")


def test_it_prints_in_the_light_theme(browser, pages):
    browser.open(pages["several"], width=1600, dark=True)
    browser.run(
        "localStorage.clear(); window.seen = []; addEventListener('beforeprint', () => "
        "seen.push(document.documentElement.dataset.theme, document.getElementById('chart-0').layout.width))"
    )
    pdf = base64.b64decode(browser.call("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert pdf.startswith(b"%PDF") and browser.run("window.seen") == ["light", 318]
    assert browser.run("document.documentElement.dataset.theme") == "dark"


def test_a_live_page_keeps_what_was_chosen(browser, tmp_path):
    folder = write_run(tmp_path / "run", [0.5, 0.6, 0.7], finished=False, epochs=9)
    records = read_records(folder / "metrics.jsonl")
    with open(folder / ".lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        page = tmp_path / "page.html"
        page.write_text(report.page(*report.find_runs([folder]), live=3))
        browser.open(page, width=900)
        browser.click("[data-axis=step]")
        browser.click(".key[data-key=test]")
        browser.run("document.querySelector('details').open = true; scrollTo(0, 200)")
        browser.run("void Plotly.relayout('chart-0', {'xaxis.range': [1, 5]})")
        write_records(folder, [*records, {**records[-1], "round": 3, "epochs": 4, "step": 8}])
        page.write_text(report.page(*report.find_runs([folder]), live=600))
        browser.wait_for(
            "document.body.textContent.includes('4 of 9 epochs') && "
            "!!document.getElementById('chart-0')?.layout?.xaxis"
        )
    assert browser.run(
        "[document.getElementById('chart-0').layout.xaxis.range, scrollY, "
        "document.querySelector('details').open]"
    ) == [[1, 5], 200, True]
    assert browser.run(SHOWN % "chart-0")["mean"] == ["valid", "train"]
    assert (
        browser.run("document.getElementById('chart-0').layout.xaxis.title.text")
        == "optimizer steps"
    )


def test_a_planted_script_does_not_run(browser, tmp_path):
    """Were the escaping to fail, the page's policy still lets no script run but its own."""
    folder = write_run(tmp_path / "run", [0.5, 0.6])
    page = tmp_path / "page.html"
    text = report.page(*report.find_runs([folder]))
    page.write_text(
        text.replace(
            "<main>",
            "<main><script>window.planted = 1</script><img src=x onerror='window.planted = 1'>",
        )
    )
    browser.open(page, width=900)
    assert browser.run("window.planted") is None
    assert any("Content Security Policy" in complaint for complaint in browser.complaints)
    browser.complaints.clear()
