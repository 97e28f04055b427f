import os

import pytest

# The models of the tests are tiny: more threads only wait for each other. Set before torch loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect, by name, what needs the data folder without one, and what is slow unless asked."""
    without_data = not os.environ.get("ASSAY_DATA")
    unasked = not config.option.markexpr
    deselected = [
        item
        for item in items
        if (without_data and item.get_closest_marker("data"))
        or (unasked and item.get_closest_marker("slow"))
    ]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in deselected]
