"""Text that clients or engines wrote, made fit for a log line or an attribute."""

from __future__ import annotations

LONGEST = 128  # characters


def shown(text: str) -> str:
    """The text cut, without anything that a terminal or a log viewer would act on.

    Control characters, line ends, marks of direction and lone surrogates are written as escapes.
    """
    if len(text) > LONGEST:
        text = text[: LONGEST - 1] + "…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
