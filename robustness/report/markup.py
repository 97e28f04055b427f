"""HTML and SVG as text in which nothing that a stranger named can become markup."""

import re
from html import escape

# Not allowed in XML 1.0, and of no use in a page.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_VOID = {"br", "col", "img", "meta", "link"}


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = Markup | str | int | None


def plain(text: str) -> str:
    """A text without characters that XML or UTF-8 forbid; each becomes U+FFFD."""
    return _FORBIDDEN.sub("\ufffd", text)


def join(*children: Child) -> Markup:
    """Children as one piece of markup: what is not `Markup` is escaped, None is left out."""
    return Markup("".join(_child(child) for child in children if child is not None))


def element(tag: str, *children: Child, **attributes: Child) -> Markup:
    """One element.

    Args:
        tag: its name; ours, never a stranger's.
        children: see `join`.
        attributes: a trailing "_" is dropped and "_" becomes "-"; None leaves an attribute out.
    """
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(plain(str(value)))}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Markup(f"<{tag}{named}>")
    return Markup(f"<{tag}{named}>{join(*children)}</{tag}>")


def named(text: str, **attributes: Child) -> Markup:
    """A stranger's name: its own direction of writing stays inside of it."""
    return element("bdi", text, **attributes)


def _child(child: Markup | str | int) -> str:
    return child if isinstance(child, Markup) else escape(plain(str(child)), quote=False)
