"""Tables for the command line and for Markdown."""

from collections.abc import Iterable, Sequence

Row = Sequence[object]


def table(head: Row, rows: Sequence[Row], *, left: int = 1) -> str:
    """Columns under their heads.

    Args:
        head: of the columns; where all are empty there is no such line.
        rows: as many cells each.
        left: how many columns, from the first on, are aligned to the left; the others are to the
            right.
    """
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    written = [
        "  ".join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join(line for line in written if line)


def markdown_table(head: Row, rows: Iterable[Row]) -> str:
    """A table in Markdown; cells must be free of `|` and line breaks."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines)
