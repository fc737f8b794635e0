"""HTML elements of a page. Every text that comes from a run is escaped here."""

import html
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from parallel_epochs.scripts.report.words import NOTHING

NUM_COLOURS = 7  # of page.css
BRIEF = 12  # characters of names of rows that need no column of a least width

escape = html.escape


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        html: content of the cell.
        value: value by which the column is sorted. None: the text.
    """

    html: str
    value: float | str | None = None


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        is_number: whether the column is aligned right, with digits of equal width.
        hint: text that is shown on hover.
    """

    title: str
    is_number: bool = False
    hint: str = ""


def text(value: object) -> Cell:
    """Build a cell of text."""
    return Cell(escape(str(value)))


def number(value: float | None, written: str) -> Cell:
    """Build a cell of a number."""
    return Cell(
        escape(written) if value is not None else NOTHING, value if value is not None else ""
    )


def code(value: object) -> str:
    """Mark text that a user types or reads in a terminal."""
    return f"<code>{escape(str(value))}</code>"


def paragraph(words: str, kind: str = "") -> str:
    """Build a paragraph of plain text."""
    return f'<p class="{kind}">{escape(words)}</p>' if kind else f"<p>{escape(words)}</p>"


def table(columns: list[Column], rows: list[list[Cell]], *, label: str) -> str:
    """Build a table whose first column names the rows.

    Args:
        label: description for screen readers.
    """
    is_sortable = len(rows) > 1
    head = "".join(_heading(column, is_sortable) for column in columns)
    body = "".join(f"<tr>{_row(columns, row)}</tr>" for row in rows)
    kind = ' class="brief"' if all(len(row[0].html) <= BRIEF for row in rows) else ""
    kind += " data-sortable" if is_sortable else ""
    return _wide(f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>", label)


def matrix(
    names: list[str], counts: list[list[int]], *, label: str, hint: Callable[[int, int], str]
) -> str:
    """Build a table of counts whose rows and columns have the same names. A cell is shaded by its share of the row.

    Args:
        label: description for screen readers.
        hint: text that is shown on hover, given the numbers of the row and of the column.
    """
    upright = "" if all(len(name) <= 4 for name in names) else " upright"
    head = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{escape(names[i])}</th>'
        + "".join(
            f'<td class="{"right" if i == j else "wrong"}" style="--share:{count / max(sum(row), 1):.3f}" '
            f'title="{escape(hint(i, j))}">{count:,}</td>'
            if count
            else "<td>0</td>"
            for j, count in enumerate(row)
        )
        + "</tr>"
        for i, row in enumerate(counts)
    )
    return _wide(
        f'<table class="matrix{upright}"><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>',
        label,
    )


def _wide(content: str, label: str) -> str:
    """Let a table scroll sideways where it is wider than the page. The script of the page shows the hint then."""
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(label)}">{content}</div>'
        '<p class="sideways note" hidden>Scroll sideways to see all columns.</p>'
    )


def _heading(column: Column, is_sortable: bool) -> str:
    kind = ' class="number"' if column.is_number else ""
    hint = f' title="{escape(column.hint)}"' if column.hint else ""
    title = escape(column.title)
    if is_sortable:
        return f'<th scope="col"{kind} aria-sort="none"><button type="button"{hint}>{title}</button></th>'
    return f'<th scope="col"{kind}{hint}>{title}</th>'


def _row(columns: list[Column], row: list[Cell]) -> str:
    cells = []
    for i, (column, cell) in enumerate(zip(columns, row)):
        kind = ' class="number"' if column.is_number else ""
        value = "" if cell.value is None else f' data-value="{escape(str(cell.value))}"'
        tag = 'th scope="row"' if i == 0 else "td"
        cells.append(f"<{tag}{kind}{value}>{cell.html}</{tag.split()[0]}>")
    return "".join(cells)


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Build a list of names and values. The values are HTML."""
    return (
        "<dl>"
        + "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in pairs)
        + "</dl>"
    )


def tiles(entries: Iterable[tuple[str, str, str]]) -> str:
    """Build the tiles at the top of the page, each with a name, a value and a note."""
    return (
        '<dl class="tiles">'
        + "".join(
            f'<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><dd class="note">{escape(note)}</dd></div>'
            for name, value, note in entries
        )
        + "</dl>"
    )


def copyable(words: str, name: str) -> str:
    """Build a text with a button that copies it.

    Args:
        name: name of the text for screen readers.
    """
    return (
        f'<div class="copyable"><pre tabindex="0">{escape(words)}</pre><button type="button" class="copy" '
        f'aria-label="Copy {escape(name)}">Copy</button></div>'
    )


def swatch(number: int) -> str:
    """Build the mark of a curve: its colour, dashed from the eighth curve on."""
    dashed = " dashed" if number >= NUM_COLOURS else ""
    return f'<i class="swatch{dashed}" data-colour="{number % NUM_COLOURS}"></i>'
