import os

import pytest

# The models of the tests are tiny: more threads only wait for each other. Set before torch loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect, by name, the tests that need the data folder when there is none."""
    if os.environ.get("ASSAY_DATA"):
        return
    without = [item for item in items if item.get_closest_marker("data")]
    if without:
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in without]
