"""LRA ListOps: nested list operations over digits, sampled exactly and evaluated independently.

A node at depth 1 to 9 is an operator with probability 1/4, else a digit; at depth 10 it is a digit.
An operator (MIN, MAX, MED, SM; uniform) has 2 to 10 arguments (uniform). MED is the median, for an
even number of arguments the mean of the two middle values, cut to an integer; SM is the sum mod 10.
Trees of more than 500 and fewer than 2000 tokens are kept.

Source: Nangia and Bowman 2018; Tay et al. 2021 (Long Range Arena) for the sizes.
"""

from dataclasses import dataclass

import numpy as np

from data.token_set import Ragged

MAX_DEPTH = 10
MIN_ARGS, MAX_ARGS = 2, 10
OPERATOR_PROBABILITY = 0.25
SHORTEST, LONGEST = 501, 1999
TOKENS = [*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]"]
"""Token texts in order of id; the next id, 15, is padding."""
PAD = len(TOKENS)
_IDS = {token: index for index, token in enumerate(TOKENS)}
_MIN, _MAX, _MED, _SM, _CLOSE = range(10, 15)
_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class _Level:
    """All nodes of one depth, of many trees; children of a node lie together on the next level.

    Attributes:
        ids: (M,) token of each node, a digit or an operator.
        args: (operators,) number of arguments of each operator.
    """

    ids: np.ndarray
    args: np.ndarray

    @property
    def operators(self) -> np.ndarray:
        """Which nodes are operators: (M,) bool."""
        return self.ids >= _MIN

    @property
    def starts(self) -> np.ndarray:
        """Where the arguments of each operator begin on the next level: (operators,)."""
        return self.args.cumsum() - self.args


def sample_trees(rng: np.random.Generator, count: int) -> tuple[Ragged, np.ndarray]:
    """Draw trees and keep those of an accepted length.

    Args:
        rng: source of all draws.
        count: trees to draw; about 8 % are kept.

    Returns:
        The tokens of the kept trees, uint8, and their values, (kept,) int64.
    """
    levels = _grow(rng, count)
    lengths, values = _fold(levels)
    kept = (lengths[0] >= SHORTEST) & (lengths[0] <= LONGEST)
    return _write(levels, lengths, kept), values[0][kept]


def draw_block(number: int) -> tuple[Ragged, np.ndarray]:
    """Draw one block of the set; every tree is evaluated independently.

    Raises:
        ValueError: a tree's value is not what its tokens say.
    """
    trees, values = sample_trees(np.random.default_rng([0, number]), _BLOCK)
    for index, value in enumerate(values.tolist()):
        verify(trees[index], value)
    return trees, values


def verify(tokens: np.ndarray, value: int) -> None:
    """Evaluate one tree again.

    Raises:
        ValueError: it has another value, or is no tree.
    """
    found = evaluate(tokens)
    if found != value:
        raise ValueError(f"a tree labeled {value} has the value {found}")


def evaluate(tokens: np.ndarray) -> int:
    """Evaluate one tree from its tokens alone, by a stack; knows nothing of how it was drawn.

    Args:
        tokens: (length,) ids.

    Raises:
        ValueError: the tokens are not one complete tree, or an operator of it has fewer or more
            arguments than the task allows.
    """
    stack: list[int] = []
    for token in tokens.tolist():
        if token != _CLOSE:
            stack.append(token)
            continue
        arguments: list[int] = []
        while stack and stack[-1] < _MIN:
            arguments.append(stack.pop())
        if not stack:
            raise ValueError("tokens must be one tree, got a closing bracket too many")
        if not MIN_ARGS <= len(arguments) <= MAX_ARGS:
            raise ValueError(
                f"tokens must be one tree with {MIN_ARGS} to {MAX_ARGS} arguments each, "
                f"got an operator with {len(arguments)}"
            )
        stack.append(_apply(stack.pop(), arguments))
    if len(stack) != 1 or stack[0] >= _MIN:
        raise ValueError(f"tokens must be one tree, {len(stack)} entries were left over")
    return stack[0]


def written(tokens: np.ndarray) -> str:
    """One tree as a text, such as "[MAX 4 [MIN 2 3 ] ]"."""
    return " ".join(TOKENS[token] for token in tokens.tolist())


def value_of(text: str) -> int | None:
    """The value of an expression as `written`, whatever blanks lie between its tokens.

    Returns:
        0 to 9, or None where the text is no expression of the task: another word, brackets that
        do not match, or an operator with fewer than 2 or more than 10 arguments.
    """
    try:
        return evaluate(np.array([_IDS[word] for word in text.split()], np.int64))
    except (KeyError, ValueError):
        return None


def _apply(operator: int, arguments: list[int]) -> int:
    if operator == _MIN:
        return min(arguments)
    if operator == _MAX:
        return max(arguments)
    if operator == _SM:
        return sum(arguments) % 10
    middle = len(arguments) // 2
    ordered = sorted(arguments)
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


def _grow(rng: np.random.Generator, count: int) -> list[_Level]:
    """Draw all trees level by level; the draws are independent, so their order is free."""
    levels: list[_Level] = []
    while count and len(levels) < MAX_DEPTH:
        inner = rng.random(count) <= OPERATOR_PROBABILITY
        if len(levels) == MAX_DEPTH - 1:
            inner[:] = False
        ids = np.where(inner, rng.integers(_MIN, _CLOSE, count), rng.integers(0, 10, count))
        args = rng.integers(MIN_ARGS, MAX_ARGS + 1, np.count_nonzero(inner))
        levels.append(_Level(ids, args))
        count = int(args.sum())
    return levels


def _fold(levels: list[_Level]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Length in tokens and value of every node, from the deepest level up."""
    lengths = [np.ones_like(level.ids) for level in levels]
    values = [level.ids.copy() for level in levels]
    for depth in reversed(range(len(levels) - 1)):
        level = levels[depth]
        if not len(level.args):
            continue
        inner = level.operators
        lengths[depth][inner] = 2 + np.add.reduceat(lengths[depth + 1], level.starts)
        values[depth][inner] = _values(level, values[depth + 1])
    return lengths, values


def _values(level: _Level, arguments: np.ndarray) -> np.ndarray:
    """Value of each operator of a level, given the values of all its arguments."""
    starts, operators = level.starts, level.ids[level.operators]
    owner = np.repeat(np.arange(len(starts)), level.args)
    ordered = arguments[np.lexsort((arguments, owner))]
    middle = ordered[starts + (level.args - 1) // 2] + ordered[starts + level.args // 2]
    choices = {
        _MIN: np.minimum.reduceat(arguments, starts),
        _MAX: np.maximum.reduceat(arguments, starts),
        _MED: middle // 2,
        _SM: np.add.reduceat(arguments, starts) % 10,
    }
    return np.select([operators == operator for operator in choices], list(choices.values()))


def _write(levels: list[_Level], lengths: list[np.ndarray], kept: np.ndarray) -> Ragged:
    """Put every node of the kept trees at its place; what stays free are closing brackets."""
    offsets = np.concatenate(([0], lengths[0][kept].cumsum()))
    tokens = np.full(offsets[-1], _CLOSE, np.uint8)
    places = np.full(len(kept), -1)
    places[kept] = offsets[:-1]
    for depth, level in enumerate(levels):
        tokens[places[places >= 0]] = level.ids[places >= 0]
        if not len(level.args):
            break
        before = lengths[depth + 1].cumsum() - lengths[depth + 1]
        siblings = before - np.repeat(before[level.starts], level.args)
        parents = np.repeat(places[level.operators], level.args)
        places = np.where(parents < 0, -1, parents + 1 + siblings)
    return Ragged(values=tokens, offsets=offsets)
