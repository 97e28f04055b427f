"""What came of checking a report."""

from dataclasses import dataclass, field

_SHOWN = 20


class Refuted(Exception):
    """Something that a report rests on is not as it says; the message tells what."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What scoring a report's stored inputs again says of it.

    Attributes:
        models: the models and the runtimes that scored again.
        inputs: how many inputs were scored again.
        flags: how many flags were compared.
        flips: flags that differ where a logit's last bits decide: precision explains them.
        refuted: what is not as the report says.
        notes: what was not checked, and what differs without harm.
    """

    models: list[str] = field(default_factory=list[str])
    inputs: int = 0
    flags: int = 0
    flips: list[str] = field(default_factory=list[str])
    refuted: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    @property
    def confirmed(self) -> bool:
        """Whether nothing was refuted."""
        return not self.refuted

    def lines(self) -> list[str]:
        """The outcome as text for a terminal."""
        head = f"{self.flags:,} flags of {self.inputs:,} inputs, scored again by "
        lines = [head + "; ".join(self.models)]
        lines += [f"note: {note}" for note in self.notes]
        lines += _listed("flipped by precision alone", self.flips)
        lines += _listed("REFUTED", self.refuted)
        lines.append("REFUTED" if self.refuted else "CONFIRMED")
        return [_printable(line) for line in lines]


def _printable(line: str) -> str:
    """A line in which nothing that a report names can move the cursor or hide a line."""
    return "".join(char if char.isprintable() else "\ufffd" for char in line)


def _listed(head: str, found: list[str]) -> list[str]:
    lines = [f"{head}: {text}" for text in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"{head}: and {len(found) - _SHOWN:,} more")
    return lines
