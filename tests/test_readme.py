from service.settings import ROOT, table

README = (ROOT / "README.md").read_text()


def test_readme_lists_every_setting_with_its_default() -> None:
    assert table() in README


def test_readme_names_the_commands_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in ("demo", "test", "help", "install"):
        assert f"make {command}" in README and f"\n{command}:" in makefile
