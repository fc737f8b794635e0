"""The schema of a typed graph as a picture: types of nodes as circles, relations as arrows between them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from parallel_epochs.scripts.report.elements import NUM_COLOURS, escape
from parallel_epochs.scripts.report.words import shortened

# More types than this make no picture that anybody could read.
MAX_TYPES = 12
# Types that stand one below the other.
MAX_COLUMN = 5
# Lines of a label; of more relations between two types it tells their number.
MAX_NAMES = 4
MAX_LETTERS = 24
# In pixels: half the axes of the ellipse that types stand on, radii of circles, a line of text and a letter of it.
ACROSS, DOWN, SMALLEST, LARGEST, LINE, LETTER, MARGIN = 280, 150, 26, 56, 15, 7.2, 8

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Circle:
    """A type of nodes: its place, and the radius of its circle."""

    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Shape:
    """A part of the picture in SVG, and the room that it takes."""

    svg: str
    box: Box


def schema_picture(types: Sequence[dict], relations: Sequence[dict], label: str) -> str:
    """Draw a schema as SVG.

    Args:
        types: ``name`` and ``nodes``, the number of nodes, of each.
        relations: ``source``, ``name``, ``target`` and ``edges``, the number of edges, of each; reverse ones left out.
        label: description for screen readers.
    """
    circles = dict(zip([kind["name"] for kind in types], place(types, relations), strict=True))
    bundles: dict[tuple[str, str], list[dict]] = {}
    for relation in relations:
        bundles.setdefault((relation["source"], relation["target"]), []).append(relation)
    arrows, labels = [], []
    for (source, target), members in bundles.items():
        arrow, at = _loop(circles[source], members) if source == target else _arrow(
            circles[source], circles[target], members, is_mutual=(target, source) in bundles)
        arrows.append(arrow)
        labels.append(_label(*at, members))
    shapes = [*arrows, *(_circle(circles[kind["name"]], kind, number) for number, kind in enumerate(types)), *labels]
    left, top = (min(shape.box[side] for shape in shapes) - MARGIN for side in (0, 1))
    right, bottom = (max(shape.box[side] for shape in shapes) + MARGIN for side in (2, 3))
    return (f'<svg class="schema" viewBox="{left:.0f} {top:.0f} {right - left:.0f} {bottom - top:.0f}" role="img" '
            f'aria-label="{escape(label)}" style="max-width:{1.25 * (right - left):.0f}px">'
            '<defs><marker id="schema-tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0L10 5L0 10z"/></marker></defs>{"".join(shape.svg for shape in shapes)}</svg>')


def place(types: Sequence[dict], relations: Sequence[dict]) -> list[Circle]:
    """Place types on an ellipse; if all relations have an end at the same type, place this to the left of the others.
    """
    most = max(max(kind["nodes"] for kind in types), 1)
    names = [kind["name"] for kind in types]
    hub = next((name for name in names if 1 < len(names) <= MAX_COLUMN + 1 and all(
        name in (relation["source"], relation["target"]) for relation in relations)), None)
    others = [name for name in names if name != hub]
    if hub is None:
        angles = [math.pi + 2 * math.pi * number / len(others) for number in range(len(others))]
        scale = max(1, len(others) / 7)
        places = {name: (scale * ACROSS * math.cos(angle), scale * DOWN * math.sin(angle))
                  for name, angle in zip(others, angles, strict=True)}
    else:
        height = 2 * LARGEST + LINE
        places = {hub: (-ACROSS * 0.8, 0.0)} | {
            name: (ACROSS * 0.8, height * (number - (len(others) - 1) / 2)) for number, name in enumerate(others)}
    return [Circle(*places[kind["name"]], SMALLEST + (LARGEST - SMALLEST) * math.sqrt(kind["nodes"] / most))
            for kind in types]


def _circle(circle: Circle, kind: dict, number: int) -> Shape:
    """Draw a type: its circle, with its name and count inside, or below where they are too long."""
    name, count = shortened(kind["name"], MAX_LETTERS), f"{kind['nodes']:,}"
    wide = LETTER * max(len(name), len(count)) / 2
    fits = wide < circle.radius - 5
    y = circle.y - 2 if fits else circle.y + circle.radius + LINE
    where = " inside" if fits else ""
    return Shape(
        f'<circle cx="{circle.x:.1f}" cy="{circle.y:.1f}" r="{circle.radius:.1f}" '
        f'data-colour="{number % NUM_COLOURS}"/><text class="type{where}" x="{circle.x:.1f}" y="{y:.1f}">'
        f'{escape(name)}</text><text class="count{where}" x="{circle.x:.1f}" y="{y + LINE:.1f}">{count}</text>',
        (circle.x - max(circle.radius, wide), circle.y - circle.radius, circle.x + max(circle.radius, wide),
         max(circle.y + circle.radius, y + 1.3 * LINE)))


def _arrow(source: Circle, target: Circle, members: Sequence[dict], *,
           is_mutual: bool) -> tuple[Shape, tuple[float, float]]:
    """Draw the relations from one type to another as one arrow; return where its label stands, too."""
    length = math.hypot(target.x - source.x, target.y - source.y)
    along = (target.x - source.x) / length, (target.y - source.y) / length
    bend = 70 if is_mutual else 0  # to its left, so that there is room for the arrow back
    begin, end = source.radius + 3, length - target.radius - 4
    first, last = ((source.x + along[0] * far, source.y + along[1] * far) for far in (begin, end))
    control = (first[0] + last[0]) / 2 + bend * along[1], (first[1] + last[1]) / 2 - bend * along[0]
    # Not in the middle, where lines through the centre of the picture cross.
    share = 0.56
    x, y = ((1 - share)**2 * a + 2 * share * (1 - share) * b + share**2 * c
            for a, b, c in zip(first, control, last, strict=True))
    path = f"M{first[0]:.1f} {first[1]:.1f}Q{control[0]:.1f} {control[1]:.1f} {last[0]:.1f} {last[1]:.1f}"
    return Shape(_line(path, members), (x, y, x, y)), (x, y)


def _loop(circle: Circle, members: Sequence[dict]) -> tuple[Shape, tuple[float, float]]:
    """Draw the relations from a type to itself above its circle; return where its label stands, too."""
    half, top = 0.5 * circle.radius, circle.y - circle.radius
    edge = circle.y - circle.radius * math.sqrt(0.75)
    path = (f"M{circle.x - half:.1f} {edge - 3:.1f}C{circle.x - 2 * half:.1f} {top - 42:.1f} "
            f"{circle.x + 2 * half:.1f} {top - 42:.1f} {circle.x + half:.1f} {edge - 4:.1f}")
    y = top - 36 - LINE * min(len(members), MAX_NAMES + 1) / 2
    return Shape(_line(path, members), (circle.x, y, circle.x, y)), (circle.x, y)


def _line(path: str, members: Sequence[dict]) -> str:
    names = ", ".join(relation["name"] for relation in members[:20])
    return f'<path class="arrow" d="{path}" marker-end="url(#schema-tip)"><title>{escape(names)}</title></path>'


def _label(x: float, y: float, members: Sequence[dict]) -> Shape:
    """Write the names and counts of relations around a point; the most frequent ones if there are many."""
    ordered = sorted(members, key=lambda relation: -relation["edges"])
    shown = ordered if len(ordered) <= MAX_NAMES + 1 else ordered[:MAX_NAMES]
    texts = [f"{shortened(relation['name'], MAX_LETTERS)} {relation['edges']:,}" for relation in shown]
    if rest := ordered[len(shown):]:
        texts.append(f"{len(rest):,} more {sum(relation['edges'] for relation in rest):,}")
    half, top = LETTER * max(map(len, texts)) / 2, y - LINE * len(texts) / 2
    return Shape("".join(f'<text class="relation" x="{x:.1f}" y="{top + LINE * (number + 0.75):.1f}">'
                         f"{escape(text)}</text>" for number, text in enumerate(texts)),
                 (x - half, top, x + half, top + LINE * len(texts)))
