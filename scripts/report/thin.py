"""Thin an SVG of matplotlib: leave out indentation, digits and points of curves that nobody sees."""

import re

import numpy as np

NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
TOLERANCE = 0.35  # in 1/72 inch, how far a point that is left out may lie from the curve


def thin_svg(text: str) -> str:
    """Return the same picture in fewer bytes.

    Curves are paths of straight lines that are clipped to their axes. Text, markers and images keep all their points.
    """
    text = re.sub(r"\n +<", "\n<", text)
    text = re.sub(r'<path d="([ML\d .e\n-]+)" clip-path', lambda path: f'<path d="{_thin(path[1])}" clip-path', text)
    return re.sub(r'(?<= d="|\s[xy]=")[^"]*', lambda value: re.sub(NUMBER, _round, value[0]).replace(" \n", "\n"), text)


def keep(points: np.ndarray, tolerance: float) -> np.ndarray:
    """Choose the points of a polyline that matter (Douglas and Peucker 1973).

    Args:
        points: float [num_points, 2].
        tolerance: largest distance of a point that is left out from the line that replaces it.

    Returns:
        bool [num_points]; the first and the last are kept.
    """
    kept = np.zeros(len(points), bool)
    kept[[0, -1]] = True
    parts = [(0, len(points) - 1)]
    while parts:
        first, last = parts.pop()
        if last - first < 2:
            continue
        along, inner = points[last] - points[first], points[first + 1:last] - points[first]
        length = float(along @ along)
        share = np.clip(inner @ along / length, 0, 1) if length else np.zeros(len(inner))
        distance = np.hypot(*(inner - share[:, None] * along).T)
        if distance.max() > tolerance:
            middle = first + 1 + int(distance.argmax())
            kept[middle] = True
            parts += [(first, middle), (middle, last)]
    return kept


def _thin(path: str) -> str:
    """Thin each part of a path of straight lines; a part begins with an M."""
    parts = []
    for part in filter(str.strip, path.split("M")):
        points = np.array(re.findall(NUMBER, part), float).reshape(-1, 2)
        parts.append("M " + "\nL ".join(f"{x:.1f} {y:.1f}" for x, y in points[keep(points, TOLERANCE)]) + "\n")
    return "".join(parts)


def _round(number: re.Match) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
