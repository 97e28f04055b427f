import ast
from pathlib import Path

from benchmarks.support.mutants import draw
from service.settings import ROOT

SOURCE = '''"""Docs."""
import logging
LIMIT = 5
def within(x: "list[int] | None", *, strict: bool = True) -> bool:
    """Docs."""
    logging.warning("%s > %s", x, LIMIT)
    if x is None:
        raise ValueError(f"x must be a number, got {x + 1}")
    return len(x) < LIMIT
'''


def test_a_statement_is_broken_where_it_computes(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "bounds.py").write_text(SOURCE)
    drawn = (draw(tmp_path, count=9, seed=str(seed), packages=["core"]) for seed in range(40))
    found = {str(mutant) for mutants in drawn for mutant in mutants}
    assert found == {
        "core/bounds.py:3  5  ->  0",
        "core/bounds.py:7  x is None  ->  (x is not None)",
        "core/bounds.py:7  x is None  ->  not (x is None)",
        'core/bounds.py:8  raise ValueError(f"x must be a number, got {x + 1}")  ->  pass',
        "core/bounds.py:9  len(x) < LIMIT  ->  (len(x) >= LIMIT)",
        "core/bounds.py:9  len(x) < LIMIT  ->  (len(x) <= LIMIT)",
    }


def test_drawn_mutants_are_of_all_packages_and_can_be_compiled() -> None:
    packages = ["core", "data", "runtimes"]
    mutants = draw(ROOT, count=40, seed="0", packages=packages)
    assert mutants == draw(ROOT, count=40, seed="0", packages=packages)
    assert len(set(map(str, mutants))) == 40
    assert {mutant.path.split("/")[0] for mutant in mutants} == set(packages)
    for mutant in mutants:
        source = (ROOT / mutant.path).read_bytes()
        broken = ast.dump(ast.parse(mutant.apply(source)))
        assert broken != ast.dump(ast.parse(source)), str(mutant)
