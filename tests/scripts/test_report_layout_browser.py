"""The layout of a run in a real Chromium: it is moved, asked and searched as a reader would."""

import numpy as np
import pytest

from parallel_epochs.scripts import report
from tests.helpers.report_runs import many_points, write_layout
from tests.scripts.test_report import HOSTILE
from tests.scripts.test_report_browser import ASTRAY

pytestmark = pytest.mark.system
NUM_POINTS, NUM_CLASSES = 63_436, 58  # as many as Debian has packages and sections
MAP = "document.getElementById('chart-0')"
FOUND = "document.getElementById('layout-found').value"
# A browser without a graphics card says so, and that it reads pictures back.
OF_DRIVERS = ("WebGL", "Canvas2D")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page of as many points as Debian has packages, of few, in three dimensions, and of hostile names."""
    folder = tmp_path_factory.mktemp("runs")
    few = dict(
        position=np.array([[0, 0], [2, 0], [0, 2], [2, 2], [1, 1]], np.float32),
        labels=np.array([0, 0, 1, 1, -1]),
        names=np.array(["alpha", "beta", "Alphabet", "delta", "none"]),
    )
    hostile = np.array([HOSTILE, "\u0645\u0631\u062d\u0628\u0627", "x" * 10_000, "\U0001f600"])
    made = {
        "many": many_points(NUM_POINTS, NUM_CLASSES),
        "few": few,
        "solid": many_points(500, 6, dimensions=3),
        "hostile": dict(
            position=few["position"][:4],
            names=hostile,
            label_names=hostile,
            labels=np.arange(4),
            title=np.array(HOSTILE),
        ),
    }
    out = {}
    for name, parts in made.items():
        out[name] = folder / f"{name}.html"
        out[name].write_text(report.page(*report.find_runs([write_layout(folder / name, **parts)])))
    return out


@pytest.fixture
def show(browser):
    """Open a page, wait until its map is drawn, and look for complaints at the end."""

    def open_page(page, *, width: int = 1300, **options) -> None:
        browser.open(page, width=width, **options)
        browser.wait_for(f"!!{MAP}._fullLayout && !!{MAP}.querySelector('canvas')")
        browser.run(f"{MAP}.scrollIntoView({{block: 'center'}})")

    yield open_page
    browser.complaints[:] = [
        text for text in browser.complaints if not any(word in text for word in OF_DRIVERS)
    ]
    assert not browser.complaints


def where(browser, x: float, y: float) -> tuple[float, float]:
    """Where a place of the map lies in the window."""
    return browser.run(f"""(() => {{ const r = {MAP}.getBoundingClientRect(), {{ xaxis, yaxis }} = {MAP}._fullLayout;
        return [r.x + xaxis._offset + xaxis.d2p({x}), r.y + yaxis._offset + yaxis.d2p({y})]; }})()""")


def search(browser, words: str) -> None:
    browser.run("document.getElementById('layout-search').focus()")
    browser.call("Input.insertText", text=words)


def press(browser, key: str, code: int, shift: bool = False) -> None:
    for kind in ("keyDown", "keyUp"):
        browser.call(
            "Input.dispatchKeyEvent",
            type=kind,
            key=key,
            windowsVirtualKeyCode=code,
            modifiers=8 * shift,
        )


@pytest.mark.parametrize("width, dark", ((400, True), (1600, False)))
def test_it_draws_at_every_width_in_both_themes(browser, show, pages, width, dark):
    for name in ("many", "solid"):
        show(pages[name], width=width, dark=dark)
        assert (
            browser.run("document.documentElement.scrollWidth") <= width
            and browser.run(ASTRAY) == []
        )
        assert "not supported" not in browser.run("document.body.innerText")
        colours = ["#5d666f", "#48a3e6"] if dark else ["#a3a9b0", "#0072b2"]
        assert browser.run(f"{MAP}.data.slice(0, 2).map((trace) => trace.marker.color)") == colours


def test_the_wheel_zooms_and_hovering_names_a_point(browser, show, pages):
    show(pages["few"])
    x, y = where(browser, 1, 1)
    before = browser.run(f"{MAP}.layout.xaxis.range")
    browser.mouse("mouseMoved", x, y)
    browser.wait_for(f"{MAP}.querySelector('.hovertext')?.textContent.includes('delta')")
    browser.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-200)
    browser.wait_for(f"{MAP}.layout.xaxis.range[1] < {before[1]}")
    assert where(browser, 1, 1) == pytest.approx([x, y], abs=2)  # the place under the pointer stays


def test_the_search_marks_counts_and_centres(browser, show, pages):
    show(pages["few"])
    search(browser, "ALPHA")
    browser.wait_for(f"{FOUND} == '2 found'")
    assert browser.run(f"{MAP}.data.at(-1).x") == [-1, -1]
    for shown, place, shift in (
        ("1 of", (-1, -1), False),
        ("2 of", (-1, 1), False),
        ("1 of", (-1, -1), True),
    ):
        press(browser, "Enter", 13, shift)
        browser.wait_for(f"{FOUND}.startsWith('{shown}')")
        middle = browser.run(
            f"[{MAP}.layout.xaxis.range, {MAP}.layout.yaxis.range].map(([a, b]) => (a + b) / 2)"
        )
        assert middle == pytest.approx(place, abs=1e-6)
    press(browser, "Escape", 27)
    browser.wait_for(f"{FOUND} == '' && {MAP}.data.at(-1).x.length == 0")
    # The exact name comes first of many, and in three dimensions it is named in its place.
    for name, number in (("many", NUM_POINTS), ("solid", 500)):
        show(pages[name])
        search(browser, "package-12")
        browser.wait_for(
            f"{FOUND} == '{sum('package-12' in f'package-{i}' for i in range(number)):,} found'"
        )
        press(browser, "Enter", 13)
        browser.wait_for(f"{MAP}.data.at(-1).text[0] == 'package-12'")


def test_the_legend_hides_a_class_which_a_change_of_the_theme_leaves_hidden(browser, show, pages):
    show(pages["few"])
    browser.click("#chart-0 .legendtoggle")
    browser.wait_for(
        f"{MAP}._fullData.filter((trace) => trace.visible === 'legendonly').length == 1"
    )
    browser.click("#theme")
    browser.wait_for(f"{MAP}.data[0].marker.color == '#5d666f'")
    assert (
        browser.run(f"{MAP}._fullData.filter((trace) => trace.visible === 'legendonly').length")
        == 1
    )


def test_hostile_names_are_shown_as_they_are(browser, show, pages):
    show(pages["hostile"], width=900)
    browser.mouse("mouseMoved", *where(browser, -1, -1))
    browser.wait_for(f"{MAP}.querySelector('.hovertext')?.textContent.includes({HOSTILE!r})")
    assert HOSTILE[:20] in browser.run(f"{MAP}.querySelector('.legendtext').textContent")
    assert browser.run("document.documentElement.scrollWidth") <= 900


def test_sixty_thousand_points_are_fluent(browser, show, pages):
    """A bound ten times as wide as what a laptop needs: it finds a mistake, it does not measure."""
    show(pages["many"])
    milliseconds = browser.run(f"""(async () => {{ const found = [];
        for (let i = 1; i < 20; i++) {{
            const began = performance.now();
            await Plotly.relayout({MAP}, {{ "xaxis.range": [-1 / i, 1 / i], "yaxis.range": [-1 / i, 1 / i] }});
            found.push(performance.now() - began);
        }}
        return found; }})()""")
    assert sorted(milliseconds)[10] < 300
