"""Past evaluations in a real browser: listed, filtered, cancelled, deleted."""

import pytest
from selenium.webdriver.common.keys import Keys

from tests.service.page import Page, needs_browser

pytestmark = [needs_browser, pytest.mark.slow]
# Every list that the page asks for from now on holds one evaluation.
ONE_AT_A_TIME = """
const { fetch } = window;
window.fetch = (address, ...rest) => fetch(address.replace("limit=20", "limit=1"), ...rest);
location.hash = "#/evaluations";
"""


def test_list_names_what_was_tried_and_what_is_left(page: Page, places: dict[str, str]) -> None:
    page.open("#/evaluations")
    row = f".past:has([href='{places['texts']}'])"
    assert "2 texts · Typos at edits 2" in page.text(f"{row} .past-detail")
    page.says(f"{row} .past-outcome", "→")
    page.one("#history-filters button:nth-child(4)").click()  # succeeded
    page.until(lambda: bool(page.all(row)), "not listed")
    page.one("#history-filters button:nth-child(5)").click()  # failed
    page.says("#history", "No evaluation is failed.")


@pytest.mark.usefixtures("places")
def test_older_ones_come_by_the_cursor(page: Page) -> None:
    page.run(ONE_AT_A_TIME)
    page.one("#older").click()
    page.until(lambda: len(page.all(".past")) == 2, "no older one")
    shown = [row.get_attribute("data-id") for row in page.all(".past")]
    assert len(set(shown)) == 2


def test_evaluation_is_cancelled_and_deleted(page: Page) -> None:
    page.take_samples()
    page.adjust()
    page.set_field("[name=pgd-steps]", "1000")
    page.set_field("[name=other-eps]", "0.01 0.02 0.03 0.04")
    page.start()
    page.one(".progress button").click()
    page.says("#evaluation", "was cancelled", seconds=60)
    place = page.place()
    page.one("nav [data-view=evaluations]").click()
    row = f".past:has([href='{place}'])"
    assert page.text(f"{row} .status") == "cancelled"
    page.one(f"{row} button").send_keys(Keys.ENTER)
    page.one(f"{row} button").send_keys(Keys.ENTER)
    page.until(lambda: not page.all(row), "not deleted")
    page.open(place)
    assert "deleted" in page.text("#evaluation .error")
