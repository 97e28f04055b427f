from core.names import nearest
from core.tables import markdown_table


def test_a_markdown_table_has_a_line_below_its_head() -> None:
    assert markdown_table(("a", "b"), [(1, "x")]) == "| a | b |\n|---|---|\n| 1 | x |"


def test_the_nearest_name_is_named_or_all_of_them() -> None:
    assert nearest("pgb", ["pgd", "square"]) == "did you mean 'pgd'?"
    assert nearest("eps", ["epss"], prefix="train.") == "did you mean 'train.epss'?"
    assert nearest("xyz", ["pgd", "square"]) == "known: pgd, square"
