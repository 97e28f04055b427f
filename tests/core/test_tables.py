from core.names import nearest, sentence
from core.tables import markdown_table, table


def test_a_markdown_table_has_a_line_below_its_head() -> None:
    assert markdown_table(("a", "b"), [(1, "x")]) == "| a | b |\n|---|---|\n| 1 | x |"


def test_the_nearest_name_is_named_or_all_of_them() -> None:
    assert nearest("pgb", ["pgd", "square"]) == "did you mean 'pgd'?"
    assert nearest("eps", ["epss"], prefix="train.") == "did you mean 'train.epss'?"
    assert nearest("xyz", ["pgd", "square"]) == "known: pgd, square"
    assert nearest("apgd", ["pgd", "apgd-ce", "apgd-t"]) == "did you mean 'apgd-ce' or 'apgd-t'?"


def test_a_sentence_has_one_mark_at_its_end() -> None:
    assert [sentence(text) for text in ("no", "no.", "really?")] == ["no.", "no.", "really?"]


def test_columns_are_aligned_under_their_heads() -> None:
    assert table(("name", "n"), [("a", 5), ("long name", 12)]).splitlines() == [
        "name        n",
        "a           5",
        "long name  12",
    ]
    assert table(("", ""), [("a", "x")], left=2) == "a  x"
