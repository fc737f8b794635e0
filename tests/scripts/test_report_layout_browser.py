"""The layout of a run in a real Chromium: it is moved, asked and searched as a reader would."""

import base64
import io
import shutil
import subprocess
import time

import numpy as np
import pytest

from parallel_epochs.scripts import report
from tests.helpers.report_runs import many_points, write_layout
from tests.scripts.test_report import HOSTILE
from tests.scripts.test_report_browser import ASTRAY

pytestmark = pytest.mark.system
NUM_POINTS, NUM_CLASSES = 63_436, 58  # as many as Debian has packages and sections
READY = "document.getElementById('layout-card')?.dataset.ready == 'yes'"
FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
TIP = "[...document.querySelectorAll('#layout-tip bdi')].map((e) => e.textContent)"
BOX = "(() => { const r = layoutMap.picture.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()"
BLUE, VERMILION, PAPER = [0x00, 0x72, 0xB2], [0xD5, 0x5E, 0x00], [255, 255, 255]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page of as many points as Debian has packages, of few, in three dimensions, and of hostile names."""
    folder = tmp_path_factory.mktemp("runs")
    few = dict(position=np.array([[0, 0], [2, 0], [0, 2], [2, 2], [1, 1]], np.float32),
               labels=np.array([0, 0, 1, 1, -1]), names=np.array(["alpha", "beta", "Alphabet", "delta", "none"]))
    hostile = np.array([HOSTILE, "\u0645\u0631\u062d\u0628\u0627", "x" * 10_000, "\U0001f600"])
    made = {"many": many_points(NUM_POINTS, NUM_CLASSES), "few": few,
            "solid": many_points(5000, 6, dimensions=3),
            "hostile": dict(position=few["position"][:4], names=hostile, label_names=hostile, labels=np.arange(4),
                            title=np.array(HOSTILE))}
    out = {}
    for name, parts in made.items():
        out[name] = folder / f"{name}.html"
        out[name].write_text(report.page(*report.find_runs([write_layout(folder / name, **parts)])))
    return out


def show(browser, page, *, width: int = 1300, **options) -> None:
    browser.open(page, width=width, **options)
    browser.wait_for(READY)
    browser.run("layoutMap.picture.scrollIntoView({block: 'center'})")
    browser.run(FRAMES)


def drawn(browser) -> np.ndarray:
    """What is seen within the picture's frame, as whole numbers."""
    from matplotlib.image import imread

    browser.run(FRAMES)
    x, y, width, height = browser.run(BOX.replace("r.x, r.y", "r.x + scrollX, r.y + scrollY"))
    clip = {"x": x + 8, "y": y + 8, "width": width - 16, "height": height - 16, "scale": 1}
    png = browser.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
    return np.rint(255 * imread(io.BytesIO(base64.b64decode(png)))[..., :3]).astype(int)


def share(pixels: np.ndarray, colour: list[int]) -> float:
    """The share of pixels that are nearly of a colour."""
    return (abs(pixels - colour) < 30).all(-1).mean()


def where(browser, point: int) -> tuple[float, float]:
    """Where a point lies in the window."""
    return browser.run(f"""(() => {{ const r = layoutMap.picture.getBoundingClientRect(), p = layoutMap.place({point});
        return [r.x + p[0], r.y + p[1]]; }})()""")


def wheel(browser, x: float, y: float, turns: float) -> None:
    browser.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=turns)
    browser.run(FRAMES)


def press(browser, key: str, code: int = 0, shift: bool = False, text: str = "") -> None:
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                     modifiers=8 if shift else 0, **({"text": text} if text and kind == "keyDown" else {}))
    browser.run(FRAMES)


def search(browser, words: str) -> None:
    browser.run("document.getElementById('layout-search').focus()")
    browser.call("Input.insertText", text=words)
    browser.run(FRAMES)


@pytest.mark.parametrize("dark", (False, True), ids=("light", "dark"))
@pytest.mark.parametrize("width", (400, 900, 1600))
def test_it_draws_at_every_width_in_both_themes(browser, pages, width, dark):
    show(browser, pages["many"], width=width, dark=dark)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(ASTRAY) == []
    assert browser.run("""[...document.querySelectorAll('.of-class, .finding > *, .looking > *')].filter((e) => {
        const r = e.getBoundingClientRect(); return e.scrollWidth > e.clientWidth + 1 && e.matches('.of-class')
            || r.right > document.getElementById('layout-card').getBoundingClientRect().right; })
        .map((e) => e.outerHTML)""") == []
    first, paper = ([0x48, 0xA3, 0xE6], [0x1B, 0x1F, 0x23]) if dark else (BLUE, PAPER)
    pixels = drawn(browser)
    assert share(pixels, first) > 0.0005 and share(pixels, paper) > 0.2
    assert not browser.complaints


def test_the_wheel_zooms_about_the_pointer_and_drags_move(browser, pages):
    show(browser, pages["many"])
    before = drawn(browser)
    at = np.array(where(browser, 7))
    x, y = np.rint(at).tolist()
    for _ in range(4):
        wheel(browser, x, y, -200)
    zoom = browser.run("layoutMap.view.zoom")
    assert zoom == pytest.approx(np.exp(1.6), rel=0.01)
    expected = np.array([x, y]) + zoom * (at - [x, y])  # the place under the pointer stays
    assert where(browser, 7) == pytest.approx(expected, abs=0.01)
    zoomed = drawn(browser)
    assert (zoomed != before).any(-1).mean() > 0.05
    browser.mouse("mousePressed", x, y, 1)
    for step in (10, 20, 30):
        browser.mouse("mouseMoved", x + step, y - step, 1)
    browser.mouse("mouseReleased", x + 30, y - 30, 1)
    browser.run(FRAMES)
    assert where(browser, 7) == pytest.approx(expected + [30, -30], abs=0.01)
    assert (drawn(browser) != zoomed).any(-1).mean() > 0.05
    browser.run("layoutMap.picture.focus({preventScroll: true})")
    for key, text in (("ArrowLeft", ""), ("ArrowDown", ""), ("+", "+"), ("-", "-")):
        seen = browser.run("JSON.stringify(layoutMap.view)")
        press(browser, key, text=text)
        assert browser.run("JSON.stringify(layoutMap.view)") != seen
    for _ in range(2):
        browser.click("#layout-picture", times=2)
    browser.wait_for("layoutMap.view.zoom == 1")
    browser.run(FRAMES)
    browser.mouse("mouseMoved", 1, 1)
    assert (drawn(browser) == before).all()
    # Nothing is left to zoom out: the page is scrolled.
    time.sleep(0.5)
    scrolled = browser.run("scrollY")
    x, y, *_ = browser.run(BOX)
    x, y = x + 90, y + 90
    wheel(browser, x, y, 120)
    browser.wait_for(f"scrollY > {scrolled}")
    assert browser.run("layoutMap.view.zoom") == 1


def test_two_fingers_zoom(browser, pages):
    show(browser, pages["few"], width=400)
    browser.call("Emulation.setTouchEmulationEnabled", enabled=True)
    x, y = where(browser, 4)

    def touch(kind: str, apart: float) -> None:
        points = [] if kind == "touchEnd" else [{"x": x - apart, "y": y, "id": 0}, {"x": x + apart, "y": y, "id": 1}]
        browser.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    touch("touchStart", 30)
    for apart in (40, 50, 60):
        touch("touchMove", apart)
    touch("touchEnd", 0)
    browser.run(FRAMES)
    browser.call("Emulation.setTouchEmulationEnabled", enabled=False)
    assert browser.run("layoutMap.view.zoom") == pytest.approx(2, rel=0.1)
    assert where(browser, 4) == pytest.approx([x, y], abs=12)


def test_hovering_names_the_point(browser, pages):
    show(browser, pages["few"])
    for point, named in ((1, ["beta", "left"]), (3, ["delta", "right"]), (4, ["none", "no class"])):
        x, y = where(browser, point)
        browser.mouse("mouseMoved", x + 3, y - 2)
        browser.wait_for(f"layoutMap.held == {point}")
        assert browser.run(TIP) == named and browser.run("document.getElementById('layout-tip').checkVisibility()")
    browser.mouse("mouseMoved", x + 60, y + 60)
    browser.wait_for("layoutMap.held == -1")
    assert not browser.run("document.getElementById('layout-tip').checkVisibility()")
    # Among many, the grid finds the same as looking at each.
    show(browser, pages["many"])
    browser.run("layoutMap.zoom(3)")
    assert browser.run("""(() => { const { points, near, spot } = layoutMap; let wrong = 0;
        for (let k = 0; k < 200; k++) {
            const [left, top] = [(k * 37) % layoutMap.picture.clientWidth, (k * 53) % layoutMap.picture.clientHeight];
            const [x, y] = spot(left, top), [right] = spot(left + 9, top); let best = -1, least = (right - x) ** 2;
            for (let i = 0; i < points.count; i++) {
                const d = (points.x[i] - x) ** 2 + (points.y[i] - y) ** 2; if (d <= least) [best, least] = [i, d]; }
            const found = near(left, top);
            if (found !== best && Math.hypot(points.x[found] - x, points.y[found] - y) ** 2 > least + 1e-12) wrong++;
            if ((found < 0) !== (best < 0)) wrong++; }
        return wrong; })()""") == 0


def test_the_search_marks_counts_and_centres(browser, pages):
    show(browser, pages["few"])
    before = drawn(browser)
    search(browser, "ALPHA")
    assert browser.run("document.getElementById('layout-found').value") == "2 matches"
    assert (drawn(browser) != before).any()
    for shown, point in (("1 of 2", 0), ("2 of 2", 2), ("1 of 2", 0)):
        press(browser, "Enter", 13)
        assert browser.run("document.getElementById('layout-found').value") == shown
        left, top, width, height = browser.run(BOX)
        assert where(browser, point) == pytest.approx([left + width / 2, top + height / 2], abs=2)
        assert browser.run("layoutMap.held") == point
    assert "alpha, left, 1 of 2" in browser.run("document.getElementById('announce').textContent")
    press(browser, "Enter", 13, shift=True)
    assert browser.run("document.getElementById('layout-found').value") == "2 of 2"
    press(browser, "Escape", 27)
    assert browser.run("[document.getElementById('layout-search').value, layoutMap.found, layoutMap.held]") == [
        "", None, -1]
    search(browser, "nowhere")
    assert browser.run("document.getElementById('layout-found').value") == "No match"
    # Of many, the exact name comes first.
    show(browser, pages["many"])
    search(browser, "package-12")
    press(browser, "Enter", 13)
    assert browser.run(TIP)[0] == "package-12"
    wanted = sum("package-12" in f"package-{i}" for i in range(NUM_POINTS))
    assert browser.run("layoutMap.found.reduce((a, b) => a + b)") == wanted


def test_the_legend_hides_and_singles_out_classes(browser, pages):
    show(browser, pages["few"])
    pixels = drawn(browser)
    blue, other = share(pixels, BLUE), share(pixels, VERMILION)
    assert blue > 0 and other > 0
    browser.click(".of-class[data-label='0']")
    browser.mouse("mouseMoved", 1, 1)
    pixels = drawn(browser)
    assert share(pixels, BLUE) == 0 and share(pixels, VERMILION) == other
    assert browser.run("document.querySelector('.of-class').ariaPressed") == "false"
    browser.run("layoutMap.picture.scrollIntoView({block: 'center'})")
    for point, held in ((2, 2), (0, -1)):  # what is not seen is not named
        browser.mouse("mouseMoved", *where(browser, point))
        browser.run(FRAMES)
        assert browser.run("layoutMap.held") == held
    search(browser, "alpha")
    assert browser.run("document.getElementById('layout-found').value") == "1 match (1 hidden)"
    press(browser, "Escape", 27)
    browser.click("#layout-all")
    browser.click(".of-class[data-label='1']", times=2)
    browser.mouse("mouseMoved", 1, 1)
    pixels = drawn(browser)
    assert browser.run("[...document.querySelectorAll('.of-class')].map((e) => e.ariaPressed)") == [
        "false", "true", "false"]
    assert share(pixels, BLUE) == 0 and share(pixels, VERMILION) == other  # the others in grey
    assert browser.run("[layoutMap.faint, layoutMap.accepts(0), layoutMap.accepts(2)]") == [True, False, True]
    browser.click(".of-class[data-label='1']", times=2)
    assert browser.run("layoutMap.hidden.size") == 0
    # By keyboard as well.
    browser.run("document.querySelector(\".of-class[data-label='-1']\").focus()")
    press(browser, "Enter", 13, text="\r")
    assert browser.run("[...layoutMap.hidden]") == [-1]


def test_three_dimensions_turn(browser, pages):
    show(browser, pages["solid"])
    before = drawn(browser)
    browser.click("#layout-turn")
    x, y, *_ = browser.run(BOX)
    x, y = x + 300, y + 200
    browser.mouse("mousePressed", x, y, 1)
    browser.mouse("mouseMoved", x + 80, y + 30, 1)
    browser.mouse("mouseReleased", x + 80, y + 30, 1)
    assert (drawn(browser) != before).any(-1).mean() > 0.05 and browser.run("layoutMap.view.zoom") == 1
    browser.run("layoutMap.picture.focus({preventScroll: true})")
    press(browser, "ArrowLeft", shift=True)
    rows = np.array(browser.run("layoutMap.points.turned")).reshape(3, 3)
    assert abs(rows @ rows.T - np.eye(3)).max() < 1e-9 and np.linalg.det(rows) > 0
    assert browser.run("layoutMap.points.names.length") == 5000
    # Dragging to the right carries what is in front to the right; the nearer points are drawn last.
    front = browser.run("layoutMap.points.order.at(-1)")
    at = where(browser, front)
    browser.run("layoutMap.turn(0.1, 0)")
    assert where(browser, front)[0] > at[0]
    assert browser.run("[...layoutMap.points.order].every((i, k, all) => !k || "
                       "layoutMap.points.depth(i) >= layoutMap.points.depth(all[k - 1]))")


def test_hostile_names_are_shown_as_they_are(browser, pages):
    show(browser, pages["hostile"], width=500)
    for point, name in ((0, HOSTILE), (2, f"{'x' * 300}\u2026")):
        browser.mouse("mouseMoved", *where(browser, point))
        browser.wait_for(f"layoutMap.held == {point}")
        assert browser.run(TIP)[0] == name
        tip = browser.run("(() => { const r = document.getElementById('layout-tip').getBoundingClientRect(), "
                          "p = layoutMap.picture.getBoundingClientRect(); return [r.left - p.left, p.right - r.right, "
                          "r.top - p.top, p.bottom - r.bottom]; })()")
        assert min(tip) >= 0
    assert browser.run("document.querySelector('.of-class bdi').textContent") == HOSTILE
    assert browser.run("document.documentElement.scrollWidth") <= 500
    assert not browser.complaints


def test_it_prints_on_white_paper_with_its_legend(browser, pages, tmp_path):
    if not shutil.which("pdftoppm"):
        pytest.skip("pdftoppm, of poppler-utils, shows what is printed")
    show(browser, pages["many"], dark=True)
    screen = browser.run("[layoutMap.picture.clientWidth, document.getElementById('layout-canvas').width]")
    pdf = base64.b64decode(browser.call("Page.printToPDF", preferCSSPageSize=True)["data"])
    browser.run(FRAMES)
    assert browser.run("[layoutMap.picture.clientWidth, document.getElementById('layout-canvas').width]") == screen
    png = subprocess.run(["pdftoppm", "-r", "60", "-png", "-l", "1", "-singlefile"], input=pdf, check=True,
                         capture_output=True).stdout
    from matplotlib.image import imread

    pixels = 255 * imread(io.BytesIO(png))[..., :3]
    assert (pixels > 245).all(-1).mean() > 0.5 and (abs(pixels - BLUE) < 40).all(-1).mean() > 0.0001
    text = subprocess.run(["pdftotext", "-", "-"], input=pdf, check=True, capture_output=True).stdout.decode()
    assert all(f"section {i}" in text for i in range(NUM_CLASSES))
    assert not browser.complaints


def test_a_live_page_keeps_the_view(browser, pages, tmp_path):
    show(browser, pages["few"])
    browser.run("layoutMap.zoom(4); layoutMap.look({x: 0.2, y: -0.3})")
    browser.click(".of-class[data-label='1']")
    browser.run("sessionStorage.setItem(`report ${location.pathname}`, JSON.stringify(report.state))")
    browser.open(pages["few"], width=1300)
    browser.wait_for(READY)
    assert browser.run("[layoutMap.view, [...layoutMap.hidden]]") == [{"x": 0.2, "y": -0.3, "zoom": 4}, [1]]


def test_sixty_thousand_points_are_fluent(browser, pages):
    """A bound ten times as wide as what a laptop needs: it finds a mistake, it does not measure."""
    show(browser, pages["many"])
    milliseconds = browser.run("""(async () => {
        for (let i = 0; i < 40; i++) {
            layoutMap.zoom(i < 20 ? 1.1 : 1 / 1.1, 300 + i, 200);
            await new Promise((done) => requestAnimationFrame(done));
        }
        return layoutMap.milliseconds.slice(-40); })()""")
    assert len(milliseconds) == 40 and sorted(milliseconds)[20] < 150
    assert browser.run("""(() => { const began = performance.now();
        for (let k = 0; k < 100; k++) layoutMap.near(5 * k, 3 * k);
        return performance.now() - began; })()""") < 500
    assert not browser.complaints
