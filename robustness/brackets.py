"""Brackets: which inputs attacks broke, which are proved, and which neither tells of.

An attack stands in the bracket of a proof only if all that it may make lies in the set that the
proof is about: its budget bounds the same, by no more.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from robustness.results import AttackResult, ModelResult, ProofResult
from robustness.spec import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """One set of changes, with what is known of each input.

    Attributes:
        cell: the proof and its budget.
        proof: what it found.
        attacks: those inside the set.
        clean: (N,) bool, right on the unchanged input, which lies in the set, too.
    """

    cell: Cell
    proof: ProofResult
    attacks: list[tuple[Cell, AttackResult]]
    clean: np.ndarray

    @property
    def methods(self) -> tuple[str, ...]:
        """Those of the proof, which `ProofResult.method` points into."""
        return getattr(self.cell.attack, "methods", ())

    @property
    def broken(self) -> np.ndarray:
        """Where something in the set misleads the PyTorch model or the served one, (N,) bool."""
        return np.logical_or.reduce([~self.clean, *(misled(one) for _, one in self.attacks)])

    @property
    def proved(self) -> np.ndarray:
        """Where nothing in the set can, (N,) bool: what is broken is not proved."""
        return self.proof.holds & ~self.broken

    @property
    def open(self) -> np.ndarray:
        """Where neither is known, (N,) bool."""
        return ~self.proof.holds & ~self.broken

    @property
    def contradicted(self) -> np.ndarray:
        """Where the proof says that nothing can, and something does, (N,) bool."""
        return self.proof.holds & self.broken


def misled(found: AttackResult) -> np.ndarray:
    """Where an attack misled the PyTorch model or the served one, (N,) bool."""
    return np.maximum(found.robust, found.confirmed) > 0


def brackets(result: ModelResult) -> Iterator[Bracket]:
    """One for each budget of each proof of a model, in the order of the spec."""
    attacks = result.of(AttackResult)
    for cell, proof in result.of(ProofResult):
        inside = [(other, found) for other, found in attacks if _lies_inside(other, cell)]
        yield Bracket(cell=cell, proof=proof, attacks=inside, clean=result.clean.rank == 0)


def _lies_inside(attack: Cell, proof: Cell) -> bool:
    """Whether all that an attack may make lies in the set that a proof is about."""
    ours, theirs = ((one.attack.changes, one.budget.kind) for one in (proof, attack))
    return ours == theirs and attack.budget.value <= proof.budget.value


def proved_rank(result: ModelResult) -> np.ndarray | None:
    """0 where an input is proved at the largest budget of each proof, else 1, (N,); None without.

    Of proofs of one kind the largest budget counts.
    """
    largest: dict[tuple[str, str], Bracket] = {}
    for one in brackets(result):
        kind = one.cell.attack.label, one.cell.budget.kind
        known = largest.get(kind, one)
        if one.cell.budget.value >= known.cell.budget.value:
            largest[kind] = one
    if not largest:
        return None
    return 1 - np.logical_and.reduce([one.proved for one in largest.values()]).astype(np.int64)
