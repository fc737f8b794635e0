"""The layout of a run: what of layout.npz is accepted, what the page holds of it, and its still picture."""

import base64
import html
import io
import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from parallel_epochs.scripts import report
from parallel_epochs.scripts.report import figures, layout_colours
from parallel_epochs.scripts.report.layout import TURN, read_layout
from parallel_epochs.scripts.report.layout_figure import draw_layout
from parallel_epochs.scripts.report.layout_names import place_names
from parallel_epochs.scripts.report.runs import read_run
from parallel_epochs.scripts.report.sweep import summary_of_sweep
from tests.helpers.report_runs import many_points, write_layout, write_run
from tests.scripts.test_report import HOSTILE, page_of, small_library  # noqa: F401 - a fixture
from tests.scripts.test_report_states import run_report

NAMES = [
    HOSTILE,
    "\U0001f600 \U0001f468\u200d\U0001f469",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "x" * 10_000,
    "\ud800 half",
    "",
    "line\nbreak\u2028\u202e",
    "$x^",
]


def layout_of(page) -> dict[str, list]:
    """Read the traces of the map: names of points, positions, and for each trace its class and its two colours."""
    traces = [
        trace
        for chart in page.spec["charts"]
        for trace in chart["data"]
        if trace["meta"]["role"] == "point"
    ]
    axes = [
        [
            np.frombuffer(base64.b64decode(trace[axis]["bdata"]), "<f4")
            for axis in "xyz"
            if axis in trace
        ]
        for trace in traces
    ]
    return {
        "position": np.concatenate([np.stack(axis, 1) for axis in axes]),
        "names": [html.unescape(name) for trace in traces for name in trace["text"]],
        "classes": [
            html.unescape(trace["name"]) for trace in sorted(traces, key=lambda t: t["legendrank"])
        ],
        "sizes": [len(trace["text"]) for trace in traces],
        "colours": [trace["meta"]["colours"] for trace in traces],
    }


def test_the_page_holds_the_points(tmp_path):
    page = page_of(write_layout(tmp_path / "run"))
    found = layout_of(page)
    assert found["names"] == list("dbca") and found["classes"] == [
        "left (1)",
        "right (2)",
        "no class (1)",
    ]
    # The longer side, 4 units, goes from -1 to 1; the other keeps its proportion and lies in the middle.
    expected = np.array([[1, 0.5], [-0.5, -0.5], [-1, 0], [-1, -0.5]])
    assert abs(found["position"] - expected).max() < 2**-22
    assert found["colours"] == [
        ["#a3a9b0", "#5d666f"],
        ["#d55e00", "#fe8744"],
        ["#0072b2", "#48a3e6"],
    ]
    assert "toy: 4 points in 2 classes" in page.text
    assert list(dict(re.findall(r'<a href="#(.*?)">(.*?)</a>', page.document)))[0] == "layout"
    identities = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(identities) == len(set(identities))


def without_splits(folder: Path) -> Path:
    """Let a run score all its points at once."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    metric = lines[0]["metric"]
    (folder / "metrics.jsonl").write_text(
        "".join(
            json.dumps(line | ({metric: line["valid"]} if "valid" in line else {})) + "\n"
            for line in lines
        )
    )
    return folder


def layouts(folder: Path, number: int, **settings) -> Path:
    return without_splits(
        write_run(
            folder / str(number), [0.5, 0.5 + number / 8], metric="knn_acc", test=None, **settings
        )
    )


def test_layouts_have_no_score_of_a_test_on_pages_about_several_and_in_summaries(tmp_path):
    seeds = [layouts(tmp_path / "seeds", number, seed=number) for number in (1, 2)]
    rates = [layouts(tmp_path / "rates", number, lr=number) for number in (1, 2)]
    for runs, summary in ((seeds, "all         0.6875 ± 0.0884"), (rates, "lr  seeds  knn_acc")):
        page = page_of(*runs)
        text = page.text
        assert page.titles().count("Nearest-neighbour accuracy") == 1
        assert not any(word in text for word in ("Test", "Validation", "left out", "OGB"))
        opened = [read_run(run) for run in runs]
        found, problems = summary_of_sweep(opened, [])
        assert (
            summary in found
            and not problems
            and not any(word in found for word in ("test", "validation", "OGB"))
        )
    assert (
        "Nearest-neighbour accuracy 0.6250, the best value of the first run" in page_of(*rates).text
    )
    both = page_of(seeds[0], write_run(tmp_path / "labels", [0.5])).text
    assert "Validation metric" in both and "Test metric" in both


def test_a_metric_without_splits_is_shown_once(tmp_path):
    folder = write_run(tmp_path / "run", [0.5, 0.75], metric="knn_acc")
    text = page_of(folder).text
    assert all(
        f"{split} nearest-neighbour accuracy" in text
        for split in ("Validation", "Test", "Training")
    )
    without_splits(folder)
    text = page_of(folder).text
    assert any(f"Nearest-neighbour accuracy {value}" in text for value in (".7500", "0.7500"))
    assert not any(
        f"{split} nearest-neighbour accuracy" in text
        for split in ("Validation", "Test", "Training")
    )


def test_only_the_page_of_a_single_run_with_a_layout_has_it(tmp_path):
    one, other = write_layout(tmp_path / "a"), write_run(tmp_path / "b", [0.5])
    (other / "layout.npz.part").write_bytes(b"of another file")
    for page in (page_of(other), page_of(one, other)):
        assert "layout-search" not in page.document and "unsafe-eval" not in page.document


@pytest.mark.parametrize("dimensions", (pytest.param(2, marks=pytest.mark.slow), 3))
def test_as_many_points_as_debian_has_packages_stay_small(tmp_path, dimensions):
    parts = many_points(63_436, 58, dimensions=dimensions)
    bare = len(page_of(write_run(tmp_path / "bare", [0.5, 0.6])).document)
    page = page_of(write_layout(tmp_path / "run", **parts))
    assert len(page.document.encode()) - bare < (2_000_000 if dimensions == 2 else 2_400_000)
    position = parts["position"].astype(np.float64)
    low, high = position.min(0), position.max(0)
    expected = (position - (low + high) / 2) / ((high - low).max() / 2)
    found = layout_of(page)
    order = [int(name.removeprefix("package-")) for name in found["names"]]
    assert (
        sorted(order) == list(range(63_436))
        and abs(found["position"] - expected[order]).max() < 2**-22
    )
    # After the points of no class the most numerous classes are drawn first, and they come first in the legend.
    assert (
        found["sizes"][1:] == sorted(found["sizes"][1:], reverse=True) and len(found["sizes"]) == 59
    )
    numbers = [int(name.split("(")[1].strip(")").replace(",", "")) for name in found["classes"]]
    assert numbers[:-1] == sorted(numbers[:-1], reverse=True) and found["classes"][-1].startswith(
        "no class"
    )


def test_names_are_never_html(tmp_path):
    names, num_points = np.array(NAMES), len(NAMES)
    parts = dict(
        position=np.eye(num_points, 2),
        names=names,
        labels=np.arange(num_points) % 7,
        title=names[0],
        label_names=names[:7],
    )
    page = page_of(write_layout(tmp_path / "run", **parts))
    found, plain = layout_of(page), [name.replace("\ud800", "?") for name in NAMES]
    assert sorted(found["names"]) == sorted(
        [name if len(name) < 300 else f"{name[:299]}\u2026" for name in plain]
    )
    assert found["classes"][1:] == [
        f"{name} (1)" for name in (*plain[1:3], f"{'x' * 39}\u2026", *plain[4:7])
    ]
    assert "<" not in json.dumps(
        [
            trace["text"]
            for chart in page.spec["charts"]
            for trace in chart["data"]
            if "text" in trace
        ]
    )
    assert [attributes.get("id") for tag, attributes in page.elements if tag == "script"] == [
        "charts",
        *[None] * 4,
    ]
    assert not any(tag == "img" or "onerror" in attributes for tag, attributes in page.elements)
    assert f"{HOSTILE}: 8 points in 7 classes" in page.text and page.document.encode()
    # Neither does the figure read mathematics in them; what its letters lack it says.
    layout = read_layout(
        write_layout(tmp_path / "other", **parts | {"label_names": names[[0, 2, 3, 4, 5, 6, 7]]})
    )
    figures.save(draw_layout(layout), tmp_path / "figure.png")
    with pytest.warns(UserWarning, match="Glyph 128104"):
        figures.save(draw_layout(read_layout(tmp_path / "run")), tmp_path / "figure.svg")


def test_few_classes_keep_their_colours_and_many_go_by_size():
    few = layout_colours.class_colours(np.array([1, 9, 4]))
    assert few == list(layout_colours.DISTINCT[:3]) and layout_colours.legend_order(
        np.array([1, 0, 4])
    ) == [0, 2]
    counts = np.arange(58)
    for dark in (False, True):
        many = layout_colours.class_colours(counts, dark=dark)
        assert many[-20:][::-1] == list(
            layout_colours.DISTINCT_DARK if dark else layout_colours.DISTINCT
        )
        assert len(many) == 58 and set(many[:38]) == set(
            layout_colours.GENTLE_DARK if dark else layout_colours.GENTLE
        )
        # All can be told from the paper, and the first twenty from each other.
        paper = np.array([0x1B, 0x1F, 0x23] if dark else [255] * 3)
        rgb = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in many])
        assert (abs(rgb - paper).max(1) > 60).all()
        first = rgb[-20:]
        apart = abs(first[:, None] - first[None]).max(-1) + 255 * np.eye(20)
        assert apart.min() > 25


def damage(folder, how: str) -> None:
    path = folder / "layout.npz"
    content = path.read_bytes()
    if how == "cut off":
        path.write_bytes(content[: len(content) // 2])
    elif how == "flipped":
        at = content.index(np.float32(4).tobytes())
        path.write_bytes(content[:at] + b"\xff" + content[at + 1 :])
    elif how == "foreign":
        path.write_bytes(b"name,x,y\n")
    elif how == "single":
        content = io.BytesIO()
        np.save(content, np.zeros(3))
        path.write_bytes(content.getvalue())
    elif how == "no array":
        with zipfile.ZipFile(path, "w") as archive:
            for name in ("position", "names", "labels", "label_names", "title"):
                archive.writestr(f"{name}.npy", b"nothing that NumPy wrote")
    elif how == "absent":
        path.unlink()
    elif how == "directory":
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize(
    "how, said",
    (
        ("cut off", "is damaged or not a layout: it is truncated"),
        ("flipped", "Bad CRC-32"),
        ("foreign", "it is not an archive of NumPy arrays"),
        ("single", "it is not an archive of NumPy arrays"),
        ("no array", "position, names, labels, label_names, title is not a NumPy array"),
        ("absent", "layout.npz does not exist. A run of trainer=layout writes it when it ends"),
        ("directory", "is a directory, not a file"),
    ),
)
def test_a_damaged_file_is_named_and_the_rest_is_shown(tmp_path, monkeypatch, capsys, how, said):
    folder = write_layout(tmp_path / "run")
    damage(folder, how)
    run_report(monkeypatch, folder)
    assert said in capsys.readouterr().err
    page = page_of(folder)
    assert (
        said in page.text and "Accuracy" in page.titles() and "layout-search" not in page.document
    )
    with pytest.raises(SystemExit, match="error: --figure: ") as error:
        run_report(monkeypatch, folder, "--figure", tmp_path / "figure.png")
    assert said in str(error.value) and not (tmp_path / "figure.png").exists()


@pytest.mark.parametrize(
    "parts, said",
    (
        (dict(labels=None), "it lacks labels"),
        (dict(names=None, title=None), "it lacks names, title"),
        (
            dict(position=np.zeros((4, 4))),
            r"position is \[4, 4\], but must be \[num_points, 2 or 3\]",
        ),
        (
            dict(position=np.zeros(4)),
            r"position is float64 \[4\], not real numbers \[num_points, 2 or 3\]",
        ),
        (
            dict(position=np.zeros((0, 2))),
            r"position is \[0, 2\], but must be .* with at least one point",
        ),
        (dict(position=np.zeros((4, 2), int)), r"position is int64 \[4, 2\], not real numbers"),
        (dict(position=np.zeros((5, 2))), "4 names for 5 positions"),
        (dict(labels=np.zeros(3, int)), "3 labels for 4 positions"),
        (dict(labels=np.zeros(4)), r"labels is float64 \[4\], not whole numbers"),
        (
            dict(labels=np.array([0, 2, -2, 1])),
            "2 labels are neither -1 nor one of 2 label_names. The first one is 2 of point 1",
        ),
        (dict(names=np.array([b"a"] * 4)), r"names is \|S1 \[4\], not text"),
        (dict(names=np.array(["a", 1, None, 2], object)), "Object arrays cannot be loaded"),
        (dict(title=np.array(["a"])), "title is <U1 .* not one text"),
        (
            dict(position=np.array([[0, 0], [1, np.nan], [np.inf, 0], [0, 1]])),
            r"2 of 4 positions are not finite. The first one is \[1.0, nan\] of point 1 \(b\). The training diverged: lower "
            "train.lr",
        ),
    ),
)
def test_wrong_parts_are_refused(tmp_path, parts, said):
    with pytest.raises(ValueError, match=said):
        read_layout(write_layout(tmp_path / "run", **parts))


@pytest.mark.parametrize(
    "position",
    (
        np.zeros((4, 2)),
        np.array([[1e38, 0], [-1e38, 0], [0, 0], [1, 1]], np.float32),
        np.array([[1.5e308, 0], [-1.5e308, 0], [0, 0], [1, 1]]),
        np.array([[0, 1], [0, 2], [0, 3], [0, 9]], np.float32),
    ),
)
def test_extreme_positions_are_drawn(tmp_path, position):
    folder = write_layout(tmp_path / "run", position=position)
    drawn = layout_of(page_of(folder))["position"]
    assert np.isfinite(drawn).all() and abs(drawn).max() <= 1
    figures.save(draw_layout(read_layout(folder)), tmp_path / "figure.png")


def test_a_run_that_goes_on_is_not_blamed_for_its_missing_layout(tmp_path, monkeypatch):
    folder = write_layout(tmp_path / "run")
    (folder / "layout.npz").unlink()
    (folder / "summary.json").unlink()
    assert report.read_run(folder).layout == (None, "")
    assert report.read_run(write_run(tmp_path / "other", [0.5])).layout == (None, "")
    # Its curves are not written in place of what was asked for.
    with pytest.raises(
        SystemExit, match="no layout yet; the run writes it when it ends. To draw the curves, add"
    ):
        run_report(monkeypatch, folder, "--figure", tmp_path / "figure.png")
    run_report(monkeypatch, folder, "--figure", tmp_path / "figure.png", "--against", "step")


def test_the_figure_draws_the_points_in_the_colours_of_the_page(tmp_path, monkeypatch):
    from matplotlib.image import imread

    folder = write_layout(tmp_path / "run")
    figure = draw_layout(read_layout(folder))
    (points,) = figure.axes[0].collections
    drawn = {
        tuple(np.round(at, 3)): tuple(np.round(255 * colour[:3]).astype(int))
        for at, colour in zip(points.get_offsets().tolist(), points.get_facecolors())
    }
    assert drawn == {
        (-1, -0.5): (0x00, 0x72, 0xB2),
        (-0.5, -0.5): (0xD5, 0x5E, 0x00),
        (-1, 0): (0xD5, 0x5E, 0x00),
        (1, 0.5): (0xA3, 0xA9, 0xB0),
    }
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "left  1",
        "right  2",
        "no class  1",
    ]
    for name in ("layout.svg", "layout.png"):
        run_report(monkeypatch, folder, "--figure", tmp_path / name)
    assert "<!-- right  2 -->" in (tmp_path / "layout.svg").read_text()
    blue = np.array([0x00, 0x72, 0xB2]) / 255
    assert (abs(imread(tmp_path / "layout.png")[..., :3] - blue).max(-1) < 0.1).mean() > 0.0001
    run_report(monkeypatch, folder, "--figure", tmp_path / "curves.svg", "--against", "step")
    assert "training loss" in (tmp_path / "curves.svg").read_text()


@pytest.mark.parametrize("num_points", [10_000, pytest.param(63_436, marks=pytest.mark.slow)])
def test_a_figure_of_many_points_stays_small_and_its_legend_within(tmp_path, num_points):
    parts = many_points(num_points, 30)
    parts["label_names"] = np.array(
        [f"section {i} {'of some words ' * (i % 4)}" for i in range(30)]
    )
    figure = draw_layout(read_layout(write_layout(tmp_path / "run", **parts)))
    figures.save(figure, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size < 4_000_000
    pixels = io.BytesIO()
    figure.savefig(pixels, format="png", dpi=50)
    legend, whole, points = (
        figure.legends[0].get_window_extent(),
        figure.bbox,
        figure.axes[0].get_window_extent(),
    )
    assert (
        points.x1 <= legend.x0 + 1
        and legend.x1 <= whole.x1
        and 0 <= legend.y0
        and legend.y1 <= whole.y1
    )


@pytest.mark.slow
def test_the_names_of_many_classes_stand_on_the_map_and_none_over_another(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(36), 50)
    centres = np.stack(np.meshgrid(np.arange(6.0), np.arange(6.0)), -1).reshape(36, 2)
    centres[1] = centres[0] + 0.05  # two classes at the same place
    position = centres[labels] + 0.1 * rng.standard_normal((len(labels), 2))
    layout = read_layout(
        write_layout(
            tmp_path / "run",
            position=position,
            labels=labels,
            names=np.array([f"p{i}" for i in range(len(labels))]),
            label_names=np.array([f"class $_{i}" for i in range(36)]),
        )
    )
    figure = draw_layout(layout)
    assert not figure.legends
    figure.savefig(io.BytesIO(), format="png", dpi=100)
    texts = {text.get_text().replace("\\", ""): text for text in figure.axes[0].texts}
    assert len(texts) == 36 and not any(
        one.get_window_extent().overlaps(other.get_window_extent())
        for one in texts.values()
        for other in texts.values()
        if one is not other
    )
    for label in range(2, 36):  # each beside its own points
        place, middle = (
            np.array(texts[f"class $_{label}"].get_position()),
            layout.flat()[labels == label].mean(0),
        )
        assert abs(place - middle).max() < 0.15


def test_a_class_that_is_rare_wherever_it_lies_gets_no_name():
    rng = np.random.default_rng(0)
    points, labels = rng.random((30_000, 2)), np.where(np.arange(30_000) < 300, 1, 0)
    names = place_names(points, labels, {0: ("common", 0.1, 0.02), 1: ("rare", 0.1, 0.02)})
    assert [name.text for name in names] == ["common"]
    (alone,) = place_names(np.zeros((4, 2)), np.full(4, 3), {3: ("one place", 0.1, 0.02)})
    assert alone.label == 3 and np.isfinite([alone.x, alone.y]).all()


def test_three_dimensions_are_looked_at_from_the_same_side_everywhere(tmp_path):
    assert abs(TURN @ TURN.T - np.eye(3)).max() < 1e-12 and np.linalg.det(TURN) > 0
    folder = write_layout(
        tmp_path / "run", position=np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, 0, 1.0]])
    )
    page, layout = page_of(folder), read_layout(folder)
    (camera,) = (
        chart["layout"]["scene"]["camera"]
        for chart in page.spec["charts"]
        if "scene" in chart["layout"]
    )
    eye, up = (np.array([camera[key][axis] for axis in "xyz"]) for key in ("eye", "up"))
    towards = eye / np.linalg.norm(eye)
    seen = layout.position @ np.stack([np.cross(up, towards), up, towards]).T
    assert abs(seen - layout.flat()).max() < 1e-6 and "unsafe-eval" not in page.document
    right, left, above, front = seen
    assert right[0] > left[0] and above[1] == max(seen[:, 1]) and front[2] > right[2] > left[2]
    (points,) = draw_layout(layout).axes[0].collections
    assert (
        abs(points.get_offsets() - layout.flat()[np.argsort(layout.flat()[:, 2]), :2]).max() < 1e-6
    )
