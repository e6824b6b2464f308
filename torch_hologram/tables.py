"""Tables of text, and of HTML for notebooks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

__all__ = ["Statistics", "html_table", "preformatted", "text_table"]

Row = Sequence[object]


def text_table(header: Row, rows: Iterable[Row]) -> str:
    """Returns columns side by side, numbers to the right; without a header there is none."""
    lines = [header, *rows] if header else list(rows)
    cells = [[str(cell) for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    text = []
    for line, shown in zip(lines, cells, strict=True):
        parts = [
            cell.rjust(width) if isinstance(value, (int, float)) else cell.ljust(width)
            for value, cell, width in zip(line, shown, widths, strict=True)
        ]
        text.append("  ".join(parts).rstrip())
    if header:
        text.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    return "\n".join(text)


def html_table(header: Row, rows: Iterable[Row], caption: str = "") -> str:
    """Returns the same as HTML."""

    from html import escape  # notebooks have it; `import torch` does without

    def line(cells: Row, tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead>{line(header, 'th')}</thead><tbody>{body}</tbody></table>"


def preformatted(text: str) -> str:
    """Returns text as HTML that keeps its lines."""
    from html import escape

    return f"<pre>{escape(text)}</pre>"


class Statistics(OrderedDict[str, int]):
    """Numbers by name. Shown as a table, where a program is asked for it interactively too."""

    def __repr__(self) -> str:
        return text_table(("entry", "value"), self.items()) if self else f"{type(self).__name__}()"

    def _repr_html_(self) -> str:
        return html_table(("entry", "value"), self.items())
