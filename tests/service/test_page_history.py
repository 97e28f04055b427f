"""Past evaluations in a real browser: listed, filtered, cancelled, deleted."""

from selenium.webdriver.common.keys import Keys

from tests.service.conftest import png
from tests.service.page import Page, evaluate, needs_browser

pytestmark = needs_browser
TEXTS = {"attacks": [{"name": "typos", "edits": [1], "queries": 5}]}


def test_list_names_what_was_tried_and_what_is_left(page: Page) -> None:
    place = evaluate(page.url, TEXTS, texts=["A dull film.", "Moving and brilliantly acted."])
    page.open("#/evaluations")
    row = f".past:has([href='{place}'])"
    assert "2 texts · Typos at edits 1" in page.text(f"{row} .past-detail")
    page.says(f"{row} .past-outcome", "→")
    page.one("#history-filters button:nth-child(4)").click()  # succeeded
    page.until(lambda: bool(page.all(row)), "not listed")
    page.one("#history-filters button:nth-child(5)").click()  # failed
    page.says("#history", "None is failed.")


def test_older_ones_come_by_the_cursor(page: Page) -> None:
    spec = {"attacks": [{"name": "fgsm", "eps": ["8/255"]}]}
    image = [("images", ("a.png", png(size=28)))]
    for _ in range(21):
        evaluate(page.url, spec, files=image)
    page.open("#/evaluations")
    page.until(lambda: len(page.all(".past")) == 20, "no page of twenty")
    page.one("#older").click()
    page.until(lambda: len(page.all(".past")) > 20, "no older ones")


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
