"""The page in a real browser: inputs, evaluations, evidence, and how it looks."""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import httpx
import pytest
from selenium.webdriver.common.keys import Keys

from core.progress import roughly
from robustness.report.sentences import percent
from service.settings import ROOT
from tests.service.conftest import png
from tests.service.page import HOSTILE_NAME, Page, needs_browser

pytestmark = [needs_browser, pytest.mark.slow]
SAMPLES = ROOT / "artifacts" / "samples" / "fashion-mnist"
VIEWS = ("#/", "#/texts", "#/evaluations", "images", "unaimed", "texts", "proofs")
# Every list that the page asks for from now on holds one evaluation.
ONE_AT_A_TIME = """
const { fetch } = window;
window.fetch = (address, ...rest) => fetch(address.replace("limit=20", "limit=1"), ...rest);
location.hash = "#/evaluations";
"""
ATTENTION_SPAN = """
const c = document.querySelector('canvas.attention');
const d = c.getContext('2d').getImageData(0, 0, 224, 224).data.filter((_, i) => i % 4 === 0);
return c.width === 224 && c.height === 224 ? Math.max(...d) - Math.min(...d) : 0;
"""
FAULTS = [
    ("[name=other-eps]", "8", "Did you mean 8/255?"),
    ("[name=gate]", "400", "Enter a number from 0 to 100."),
    ("[name=seed]", "-1", "Enter a whole number from 0 on."),
    ("[name=pgd-alpha]", "wide", "Enter a number such as 0.01 or 2/255."),
    ("[name=ranks]", "0", "Enter whole numbers from 1 on"),
    ("[name=pgd-steps]", "5000", "5000 steps are more than the 1000 allowed."),  # the service's
    ("[name=pgd-alpha]", "8", "did you mean '8/255'?"),
]
MADE = [
    ("corruptions fog:3", "corrupted", "fog at severity 3"),
    ("corruptions elastic_transform:3", "corrupted", "elastic transform at severity 3"),
    ("smoothing 0.25", "noisy", "noise of sigma 0.25"),
]
# What the form must hold, of specs: all but defaults and what has no place in it.
AGAIN: list[tuple[dict[str, Any], str]] = [
    (
        {
            "name": "wide",
            "note": "two\nlines",
            "seed": 7,
            "top_k": [1, 3],
            "compare_with": "fashion-dot",
            "gate": "robust_accuracy >= 0.573",
            "attacks": [
                {"name": "fgsm", "eps": ["2/255", "0.1"]},
                {"name": "pgd", "eps": ["2/255", "0.1"], "steps": 3, "alpha": "1/255"},
                {"name": "apgd-ce", "eps": ["0.5", "3"], "norm": "L2"},
                {"name": "ddn", "eps": ["0.5"], "steps": 20},
                {"name": "sigma-zero", "eps": ["5", "40"]},
                {"name": "spsa", "eps": ["1/255"]},
                {
                    "name": "torchattacks",
                    "eps": ["3"],
                    "norm": "L0",
                    "attack": "Pixle",
                    "params": {"restarts": 2, "pixel_mapping": "random", "x_dimensions": [2, 4]},
                },
            ],
        },
        "",
    ),
    (
        {
            "seed": 0,
            "attacks": [
                {"name": "corruptions", "severities": [1, 4], "names": ["fog", "spatter"]},
                {"name": "smoothing", "sigma": ["0.3"], "samples": 20, "alpha": "0.01"},
            ],
        },
        "",
    ),
    (
        {
            "seed": 0,
            "class_map": "index",
            "gate": "clean_accuracy > 0.5",
            "attacks": [{"name": "fgsm", "eps": ["2/255"]}],
        },
        "Not in this form: gate clean_accuracy > 0.5, class_map.",
    ),
    (
        {
            "seed": 0,
            "gate": "clean_accuracy >= 0.5",
            "stop": "early",
            "attacks": [
                {"name": "typos", "edits": [1, 9], "queries": 40},
                {
                    "name": "thesaurus",
                    "edits": [2],
                    "table": {"film": ["movie", "picture"], "good": "fine"},
                },
            ],
        },
        "",
    ),
]
RUN_AGAIN = """
const [spec, done] = arguments;
Promise.all(["models", "evaluation-form"].map((one) => import(`./${one}.js`))).then(
  ([{ imageModels, textModels }, { runAgain }]) => {
    const all = [...imageModels.all, ...textModels.all];
    const models = [spec.model, spec.compare_with].filter(Boolean)
      .map((name) => all.find((model) => model.name === name));
    runAgain({ id: "x", spec, priority: "low", samples: 3, models,
      created: "2026-01-02T03:04:05Z" });
    done();
  });
"""
PLACES = {"broken": 2, "proved": 3, "open": 4}  # of the buttons, behind "all"
STATES = set(PLACES)
# The same evaluation, as if its proofs were contradicted.
CONTRADICT = """
const { fetch } = window;
window.fetch = async (address, ...rest) => {
  const answer = await fetch(address, ...rest);
  if (!String(address).endsWith("report.json")) return answer;
  const report = await answer.json();
  const [model] = report.summary.models;
  for (const one of model.brackets) one.contradictions = [{ sample: 0, finding: "<b>wrong</b>" }];
  model.attacks = [];
  return new Response(JSON.stringify(report));
};
const place = location.hash;
location.hash = "#/evaluations";
setTimeout(() => { location.hash = place; }, 300);
"""
MOVING = """
return [...document.querySelectorAll('*')].filter((node) => {
  const style = getComputedStyle(node);
  return !/^0s(, 0s)*$/.test(style.transitionDuration) || style.animationName !== 'none';
}).length
"""
ROUNDED = """
return import('./words.js').then(
  ({ percent }) => arguments[0].map(([k, n]) => percent(k / n, n)))
"""
ESTIMATED = """
return import('./words.js').then(({ roughly }) => arguments[0].map(roughly))
"""
UNNAMED = """
return [...document.querySelectorAll('input, select, textarea, button')].filter((node) =>
  !(node.labels?.length || node.textContent.trim() || node.ariaLabel
    || node.querySelector('img[alt]'))).map((node) => node.outerHTML)
"""


def inert(page: Page) -> bool:
    """Whether no name or text of a stranger has become a part of the page."""
    made = page.all("img[src='x'], main script")
    return not made and page.run("return window.hacked") is None


def predicted(page: Page, count: int, kind: str = "image") -> None:
    shown = f"#{kind}-list .bars"
    page.until(lambda: len(page.all(shown)) == count, f"no {count} predictions")


def test_pictures_are_dropped_pasted_and_classified(page: Page) -> None:
    for kind in ("drop", "paste"):
        page.give(kind, png(len(kind), size=28))
    predicted(page, 2)
    assert {card.text for card in page.all("#image-list .file")} == {"drop.png", "paste.png"}
    assert len(page.all("#image-list .card:first-child .bar")) == 3
    page.one("#image-clear").click()
    assert page.text("#image-tally") == "No images selected."


def test_attention_is_shown_and_another_model_answers_anew(page: Page) -> None:
    page.take_samples()
    assert "of 4 with a label classified correctly" in page.text("#image-tally")
    page.one("#image-explain").click()
    page.until(lambda: len(page.all("#image-list canvas.attention")) == 4, "no four maps")
    page.until(lambda: page.run(ATTENTION_SPAN) > 100, "the map is flat")
    page.one("#image-explain").click()
    assert page.all("canvas.attention") == []
    page.one(".model:nth-child(2) input").click()
    predicted(page, 4)
    rivals = [option.text for option in page.all("#image-evaluation [name=compare] option")]
    known = len(page.all("#image-models .model")) - 1  # one is remote
    assert "fashion-elliptical" in rivals and len(rivals) == known
    page.one("#image-models [value=shop]").click()
    tile = page.text("#image-models .model:has([value=shop])")
    assert "remote endpoint · scores, no gradients" in tile and "evaluated only" in tile
    assert len(page.all("#image-list .card-wait")) == 4  # which is not asked
    left = page.text("#image-evaluation .left-out")
    assert left.startswith("Not tried on shop: FGSM, PGD") and "gradients" in left
    assert page.one("[name=preset][value=queries]").is_selected()
    assert not page.all("[name=preset][value=paper]")[0].is_displayed()
    page.says("#image-evaluation .cost", "inputs sent to the endpoint, for 4.")


def test_hostile_and_broken_files_are_named_and_stay_inert(page: Page, tmp_path: Path) -> None:
    (tmp_path / HOSTILE_NAME).write_bytes(png(size=28))
    (tmp_path / "letter.png").write_text("not an image")
    files = f"{tmp_path / HOSTILE_NAME}\n{tmp_path / 'letter.png'}"
    page.all("#files")[0].send_keys(files)
    page.until(lambda: len(page.all(".bars, .card-error")) == 2, "no two answers")
    assert page.text(".file") == HOSTILE_NAME and inert(page)
    assert "taken are PNG, JPEG, WEBP" in page.text(".card-error")
    assert "Remove the images" in page.text("#image-evaluation .plan")
    assert not page.one(".start").is_enabled()
    page.one(".card:nth-child(2) .remove").send_keys(Keys.ENTER)
    assert "stability" in page.text("#image-evaluation .plan")
    page.one(".truth-select option:nth-child(2)").click()
    assert "accuracy" in page.text("#image-evaluation .plan")


def write_classes(folder: Path, classes: dict[str, int]) -> Path:
    """A folder with so many sample images in a folder for each class, and files beside them."""
    for name, count in classes.items():
        (folder / name).mkdir(parents=True)
        for index, image in enumerate(sorted((SAMPLES / name).glob("*.png"))[:count]):
            shutil.copy(image, folder / name / f"{index:05d}.png")
    (folder / "README.txt").write_text("about the images")
    (folder / ".hidden").write_text("")
    return folder


def test_a_folder_of_classes_gives_accuracy_and_outlives_a_reload(
    page: Page, tmp_path: Path
) -> None:
    page.drop(write_classes(tmp_path / "mine", {"bag": 3, "t-shirt-top": 2}))
    predicted(page, 5)
    assert "1 file left out" in page.text("#images-error")
    labels = "return [...document.querySelectorAll('.truth-select')].map(one => one.value)"
    assert page.run(labels) == ["Bag"] * 3 + ["T-shirt/top"] * 2
    assert page.text("#image-list .file") == "bag/00000.png"
    page.one(".card:nth-child(2) .truth-select [value=Coat]").click()
    page.driver.refresh()
    predicted(page, 5)
    assert page.run(labels) == ["Bag", "Coat", "Bag"] + ["T-shirt/top"] * 2
    page.one("#image-seen").click()
    seen = "#image-list img[src^='data:image/png']"
    page.until(lambda: len(page.all(seen)) == 5, "no inputs of the model")
    page.until(lambda: page.all(seen)[0].get_property("naturalWidth") == 28, "not its input")
    assert "accuracy is measured" in page.text("#image-evaluation .plan")
    page.start()
    page.finish()
    assert " of 5 images correctly" in page.text(".headline") or "all 5" in page.text(".headline")
    page.open()
    page.one("#image-clear").send_keys(Keys.ENTER)
    page.until(lambda: not page.all(".card"), "not removed")
    page.driver.refresh()
    page.one(".model")
    page.says("#image-tally", "No images selected.")


def test_labels_come_from_a_zip_a_csv_file_or_the_form(page: Page, tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "mine", {"bag": 2, "coat": 1})
    (folder / "coat").rename(folder / "warm")
    page.drop(Path(shutil.make_archive(str(folder), "zip", folder)))
    predicted(page, 3)
    assert "“warm”: not a class of fashion-elliptical" in page.text("#images-error")
    assert "1 image has no label" in page.text("#image-evaluation .plan")
    (tmp_path / "labels.csv").write_text('file,label\nwarm/00000.png,"Coat"\nnone.png,Bag\n')
    page.all("#files")[0].send_keys(str(tmp_path / "labels.csv"))
    page.says("#images-error", "1 line of the labels names no image here.")
    assert "accuracy is measured" in page.text("#image-evaluation .plan")
    page.one("#image-label-all [value=Bag]").click()
    page.one("#image-label-all button").send_keys(Keys.ENTER)
    page.says("#image-tally", "2 of 3 with a label classified correctly")


def test_refused_files_are_removed_at_once(page: Page, tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "mine", {"bag": 1})
    (folder / "bag" / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    (folder / "bag" / "drawing.svg").write_text("<svg/>")
    page.all("#folder")[0].send_keys(str(folder))
    page.until(lambda: len(page.all(".bars, .card-error")) == 3, "no three answers")
    said = {error.text for error in page.all(".card-error")}
    assert any("HEIC is not read; save it as JPEG" in one for one in said)
    assert page.text("#formats").startswith("PNG, JPEG, WEBP")
    page.one("#image-refused").send_keys(Keys.ENTER)
    predicted(page, 1)
    assert page.all(".card-error") == [] and page.one(".start").is_enabled()


def test_keyboard_alone_leads_from_samples_to_a_result(page: Page) -> None:
    page.keys(Keys.TAB)
    assert page.run("return document.activeElement.textContent") == "Skip to the content"
    page.keys(Keys.ENTER)
    page.tab_to("#browse")
    page.keys(Keys.ENTER)
    page.tab_to(".thumb")
    page.keys(Keys.SPACE, Keys.ARROW_RIGHT, Keys.SPACE, Keys.ARROW_DOWN, Keys.SPACE)
    predicted(page, 3)
    page.tab_to("#image-models input")
    page.tab_to("#image-evaluation [name=preset]")
    page.keys(Keys.ARROW_DOWN, Keys.ARROW_UP)
    assert page.run("return document.activeElement.value") == "quick"
    page.says("#image-evaluation .cost", "model evaluations")
    page.tab_to("#image-evaluation .start")
    page.keys(Keys.ENTER)
    page.finish()
    page.tab_to(".wipe input")
    page.keys(Keys.HOME)
    shown = page.run("return document.activeElement.getAttribute('aria-valuetext')")
    assert shown == "0 % adversarial"


def test_keyboard_alone_leads_from_an_evaluation_to_another(page: Page) -> None:
    page.take_samples()
    page.start()
    page.driver.refresh()  # inputs and what was started with them outlive it
    page.one("#evaluation .again")
    page.tab_to("#evaluation .again")
    page.keys(Keys.ENTER)
    page.until(lambda: page.run("return document.activeElement.matches('.again.notice')"), "focus")
    assert "Its 4 images are still selected" in page.text(".again.notice")
    page.tab_to("#image-evaluation [name=preset]")
    page.keys(Keys.SPACE)
    page.tab_to("#image-evaluation [name=pgd-alpha]")
    page.keys("x")
    page.says("#image-evaluation .fault", "Enter a number such as")
    page.keys(Keys.BACKSPACE)
    for field, value in (("seed", "7"), ("priority", "n")):
        page.tab_to(f"#image-evaluation [name={field}]")
        page.keys(value)
    page.tab_to("#image-evaluation .adjust:last-child > summary")
    page.keys(Keys.ENTER)
    page.tab_to("#image-evaluation .request summary")
    page.keys(Keys.ENTER)
    page.tab_to("#image-evaluation .request button")
    page.cdp(
        "Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"]
    )
    page.keys(Keys.ENTER)
    page.until(lambda: "Copied." in page.run("return announcer.textContent"), "not copied")
    page.tab_to("#image-evaluation .start")
    page.keys(Keys.ENTER)
    facts = "return document.querySelector('#evaluation .facts')?.textContent ?? ''"
    page.until(lambda: "seed 7" in page.run(facts), "not run again")


def test_form_takes_whatever_was_asked_before(page: Page) -> None:
    for given, left in AGAIN:
        text = given["attacks"][0]["name"] == "typos"
        spec = {"model": "imdb-transject" if text else "fashion-elliptical", **given}
        page.driver.execute_async_script(RUN_AGAIN, spec)
        form = "#text-evaluation" if text else "#image-evaluation"
        page.until(lambda form=form: bool(page.shown(f"{form} .again")), "not opened")
        said = page.text(f"{form} .again")
        assert "are not on this page" in said and said.endswith(left)
        asked = page.all(f"{form} .request pre")
        read = json.loads(asked[0].get_attribute("textContent") or "")
        if left:
            spec = {key: spec[key] for key in ("model", "seed", "attacks")}
        assert read == spec
        assert "-F priority=low" in (asked[1].get_attribute("textContent") or "")
        assert page.text(f"{form} .plan").startswith("Select some")


def test_texts_are_typed_read_and_classified(page: Page, tmp_path: Path) -> None:
    page.one("#texts-link").click()
    page.one("#text").send_keys("What a waste of time. The plot is dull.", Keys.CONTROL, Keys.ENTER)
    page.says("#text-list .bar:first-child", "neg")
    assert len(page.all("#text-list .bar")) == 2
    page.driver.execute_script(
        "arguments[0].value = '这部电影 ' + 'good '.repeat(600)", page.one("#text")
    )
    page.one("#add-text").click()
    page.says("#text-list", "Cut at 512 of 604 tokens.")
    page.driver.execute_script("arguments[0].value = '🤮🤮🤮'", page.one("#text"))
    page.one("#add-text").click()
    page.says("#text-list", "its answer says nothing about this text")
    assert len(page.all("#text-list .bar")) == 4  # none for a text of unknown words
    page.one("#text-clear").click()
    page.one("#text").send_keys(" ")
    page.one("#add-text").click()
    assert "blank" in page.text("#texts-error")
    page.one("#by-line").click()
    page.one("#text").send_keys("a good film\na bad film\n")
    page.one("#add-text").click()
    (tmp_path / "<b>.txt").write_text("<img src=x onerror=window.hacked=1> dull")
    page.all("#text-files")[0].send_keys(str(tmp_path / "<b>.txt"))
    predicted(page, 3, "text")
    assert inert(page)
    page.one("#examples").click()
    predicted(page, 11, "text")
    assert "of 8 with a label classified correctly" in page.text("#text-tally")


def test_presets_fill_the_form_and_faults_stand_at_their_field(page: Page) -> None:
    page.take_samples()
    page.says("#image-evaluation .cost", "Up to")
    quick = page.text("#image-evaluation .cost")
    page.preset("paper")
    page.until(lambda: "Up to" in (said := page.text(".cost")) and said != quick, "same cost")
    page.adjust()
    ticked = [
        box.get_attribute("value") for box in page.all("#image-evaluation [name=attack]:checked")
    ]
    assert ticked == ["fgsm", "pgd", "spsa"]
    own = page.all("#image-evaluation [name=spsa-only]")[0]
    assert own.get_attribute("value") == "1/255"
    assert page.all("[name=other-eps]")[0].get_attribute("value") == "3/255 5/255 6/255"
    for field, wrong, said in FAULTS:
        before = page.all(f"#image-evaluation {field}")[0].get_property("value")
        page.set_field(f"#image-evaluation {field}", wrong)
        page.says("#image-evaluation .fault", said)
        faults = page.all(f".row:has(> .fault):has({field})")
        assert len(page.all(".fault")) == len(faults) == 1 and not page.all(".form-error .notice")
        assert not page.one("#image-evaluation .start").is_enabled()
        assert page.one(field).get_attribute("aria-invalid") == "true"
        page.set_field(f"#image-evaluation {field}", str(before) or Keys.DELETE)
        page.until(lambda: not page.all(".fault"), "the fault stays")
        page.until(page.one("#image-evaluation .start").is_enabled, "cannot be started")
    page.preset("corruptions")
    assert [field.get_attribute("data-budget") for field in page.shown(".budget")] == ["severities"]
    page.set_field("[name=gate]", "40")
    page.says("#image-evaluation .fault", "Choose an attack first")
    page.one("[name=metric]").send_keys("clean")
    page.one("[name=stop]").send_keys("once")
    page.until(lambda: not page.all(".fault"), "a gate on clean accuracy is refused")
    assert "Stops once the gate is decided." in page.text("#image-evaluation .plan")
    page.one("[name=compare]").send_keys("fashion-dot")
    page.says("#image-evaluation .fault", "A gate is about one model")


def check_classes(page: Page, report: dict[str, Any]) -> None:
    """The table of each model's classes shows what the flags of the samples add up to."""
    labels, samples = report["data"]["labels"], report["samples"]
    for place, model in enumerate(report["summary"]["models"]):
        rows = page.all(f"[aria-label='By class: {model['name']}'] tbody tr")
        shown = {
            tuple(cell.text for cell in row.find_elements("css selector", "th, td")) for row in rows
        }
        expected = set()
        for label in {sample["label"] for sample in samples}:
            own = [sample["models"][place] for sample in samples if sample["label"] == label]
            shares = [mean(one["clean"]["correct"] for one in own)]
            for eps in model["worst"]:
                shares.append(mean(holds(one["attacks"], eps) for one in own))
            expected.add((labels[label], f"{len(own)}", *(f"{100 * one:.0f}" for one in shares)))
        assert shown == expected and len(shown) == 2


def holds(attacks: list[dict[str, Any]], eps: str) -> bool:
    """Whether a sample withstood every attack within a radius."""
    return all(one["robust"] and one["confirmed"] for one in attacks if one["eps"] == eps)


def test_evaluation_from_samples_to_evidence(page: Page) -> None:
    page.take_samples()
    assert "All labels are known" in page.text("#image-evaluation .plan")
    page.adjust()
    page.set_field("[name=pgd-steps]", "3")
    page.one("[name=compare] option:nth-child(2)").click()
    page.set_field("[name=gate]", "1")
    page.set_field("[name=called]", HOSTILE_NAME)
    page.start()
    page.finish()
    assert page.text(".own-name") == HOSTILE_NAME and inert(page)
    asked = [part.get_attribute("textContent") or "" for part in page.all(".request pre")]
    assert json.loads(asked[0])["name"] == HOSTILE_NAME and "curl -F 'spec={" in asked[1]
    compile(asked[2], "asked", "exec")
    assert " of 4 images correctly" in page.text(".headline") or "all 4" in page.text(".headline")
    assert "Gate robust_accuracy >= 0.01" in page.text(".stamps")
    attacks = "[aria-label=Attacks] .figures"
    assert len(page.all(attacks)) == 2
    assert len(page.all(f"{attacks} tbody tr")) == 2 * (1 + 2 * 2 + 2)  # clean, attacks, worst
    assert len(page.all(".wide .band")) == 2 and len(page.all(".wide .thread")) == 4
    assert len(page.all("[aria-label^=Comparison] tbody tr")) == 3
    check_classes(
        page, httpx.get(f"{page.url}/{page.place().replace('#', 'v1')}/report.json").json()
    )
    assert len(page.all(".exhibit")) == 4
    with screen(page, 390):
        page.prefer("prefers-color-scheme", "dark")
        page.run("arguments[0].scrollIntoView()", page.one("[aria-label^='By class']"))
        assert page.width() <= 390 and page.low_contrast() == []


def test_evidence_of_images(page: Page, places: dict[str, str], tmp_path: Path) -> None:
    page.open(places["images"])
    page.until(lambda: len(page.all(".exhibit")) == 2, "no samples")
    assert "corrupted" in page.text(".readings")
    names = [mark.get_attribute("title") for mark in page.all(".exhibit-line .file")]
    assert set(names) == {"0.png", HOSTILE_NAME} and inert(page)
    page.run("arguments[0].scrollIntoView({block: 'center'})", page.one(".wipe"))
    for picture in page.all(".exhibit:first-child img"):
        page.until(lambda shown=picture: shown.get_property("naturalWidth") > 0, "no picture")  # type: ignore
    clip = "return getComputedStyle(document.querySelector('.wipe-above')).clipPath"
    slider = page.all(".wipe input")[0]
    page.run("arguments[0].focus()", slider)
    page.keys(Keys.END)
    assert slider.get_attribute("aria-valuetext") == "100 % adversarial"
    uncovered = page.run(clip)
    page.keys(Keys.HOME)
    assert page.run(clip) != uncovered
    page.one("#evidence-attention").click()
    page.until(lambda: len(page.all(".maps canvas.attention")) == 4, "no two pairs of maps")
    captions = [caption.text for caption in page.all(".exhibit:first-child .maps figcaption")]
    assert captions == ["attention before", "attention after"]
    page.cdp("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.one(".take [data-form='report.html']").click()
    page.until(lambda: bool(list(tmp_path.glob("*report.html"))), "no file was saved")
    assert page.one(".downloads [data-form='samples.parquet']").is_displayed()


def test_evaluations_of_other_kinds_are_shown(page: Page, places: dict[str, str]) -> None:
    page.open(places["unaimed"])
    assert "without labels. Under common corruptions it keeps" in page.text(".headline")
    assert "fog" in page.text("[aria-label='Common corruptions']")
    assert "Provably correct" in page.text(".curve-figure")
    page.until(lambda: len(page.all(".exhibit")) == 2, "no corrupted images")
    for run, made, name in MADE:
        page.one(f".controls option[value='{run}']").click()
        assert page.text(".wipe-name") == made and page.text(".exhibit .frame .answer") == name
        assert made in (page.all(".wipe input")[0].get_attribute("aria-label") or "")
        page.run("arguments[0].scrollIntoView({block: 'center'})", page.one(".wipe"))
        for picture in page.all(".exhibit:first-child img"):
            page.until(lambda shown=picture: shown.get_property("naturalWidth") > 0, "no picture")  # type: ignore
        assert "adversarial" not in page.text(".evidence")
    page.open(places["budgets"])
    worst = "its 2 predictions under the worst attack within 16/255 or within 0.5 (l2)"
    assert worst in page.text(".headline")
    assert len(page.all(".curve-figure")) == 2 and len(page.all(".exhibit")) == 2
    page.open(places["texts"])
    assert "its 2 predictions under the worst attack with 2 edits" in page.text(".headline")
    page.until(lambda: any("<script>" in one.text for one in page.all(".changed")), "no text")
    assert inert(page)
    assert "It took all 2 texts, in a random order" in page.text(".result")
    assert "stops once its gate is decided" in page.text("#evaluation .facts")


def test_samples_are_filtered_by_what_is_proved(page: Page, places: dict[str, str]) -> None:
    path = f"{places['proofs'].replace('#', 'v1')}/report.json"
    [model] = httpx.get(f"{page.url}/{path}").json()["summary"]["models"]
    page.open(places["proofs"])
    page.one(".exhibit")
    for bracket, shown in zip(model["brackets"], page.all(".bracket"), strict=True):
        assert f"Any change {bracket['description']}" in shown.text
        for state in ("proved", "open", "broken"):
            assert f"{state} {bracket[state]} (" in shown.text
    assert "within 4/255" in page.text(".exhibit .proofs")  # of the set that holds the attack
    for bracket in model["brackets"]:
        page.one(f".controls option[value='pixel-bounds {bracket['eps']}']").click()
        for state in ("proved", "open", "broken"):
            button = f".controls .segmented button:nth-child({PLACES[state]})"
            if not bracket[state]:
                assert not page.one(button).is_enabled()
                continue
            page.one(button).send_keys(Keys.ENTER)
            said = [one.text for one in page.shown(".exhibit .proofs")]
            assert len(said) == min(bracket[state], 8)
            assert all(one.startswith(f"{state} {bracket['description']}") for one in said)
            assert state != "proved" or all("by linear relaxation (margin " in one for one in said)
    assert {state for one in model["brackets"] for state in STATES if one[state]} == STATES
    assert page.run("return document.activeElement.matches('.controls button')")
    page.run(CONTRADICT)
    page.says(".exhibit.contradicted .proofs", "<b>wrong</b>")
    assert "proof contradicted 1" in page.text(".controls")
    page.open(places["open"])
    texts = ".exhibit.lost .changed"
    page.until(lambda: "A moving film." in [one.text for one in page.all(texts)], "no text")
    assert "open with 1 piece replaced" in page.text(".exhibit .proofs")


def test_an_evaluation_of_texts_marks_the_changed_words(page: Page) -> None:
    page.open("#/texts")
    page.one("#texts .model")
    page.one("#examples").click()
    predicted(page, 8, "text")
    for number in range(8, 3, -1):
        page.one(f"#text-list .card:nth-child({number}) .remove").click()
    page.preset("hotflip")
    page.adjust()
    page.set_field("[name=hotflip-queries]", "200")
    assert page.all("#text-evaluation [name=preset]:checked") == []
    page.one("#text-evaluation [name=attack][value=thesaurus]").click()
    page.says("#text-evaluation .plan", "Enter the table of “Thesaurus”")
    page.one("#text-evaluation [name=attack][value=thesaurus]").click()
    page.says("#text-evaluation .cost", "model evaluations")
    page.start()
    page.finish()
    assert " of 3 texts correctly" in page.text(".headline") or "all 3" in page.text(".headline")
    page.until(lambda: bool(page.all(".exhibit.fallen .changed ins")), "no word is marked")
    assert page.all(".exhibit.fallen .changed del")
    assert "edits of a text" in page.text(".curve-figure")


def test_page_rounds_as_the_reports_do_and_estimates_as_the_command_line(page: Page) -> None:
    pairs = [(k, n) for n in (8, 16, 24, 32, 40, 200, 400) for k in range(n + 1)]
    assert page.run(ROUNDED, pairs) == [percent(k / n, n) for k, n in pairs]
    seconds = [*range(0, 6000, 5), *range(6000, 400_000, 900)]
    assert page.run(ESTIMATED, seconds) == [roughly(one) for one in seconds]


def test_past_evaluations_are_listed_filtered_and_continued(
    page: Page, places: dict[str, str]
) -> None:
    page.open("#/evaluations")
    failed = f".past:has([href='{places['images']}']) .past-outcome"
    assert page.text(f"{failed} .bad") == "gate failed" and len(page.all(f"{failed} span")) == 3
    row = f".past:has([href='{places['texts']}'])"
    assert "2 texts · Typos at edits 2" in page.text(f"{row} .past-detail")
    page.says(f"{row} .past-outcome", "→")
    page.set_field("#history-search", "typos")
    page.keys(Keys.ENTER)
    page.until(lambda: len(page.all(".past")) == len(page.all(row)) == 1, "not searched")
    page.set_field("#history-search", Keys.BACKSPACE)
    page.keys(Keys.ENTER)
    page.until(lambda: len(page.all(".past")) > 3, "the search stays")
    for name in ("images", "budgets"):
        page.one(f".past:has([href='{places[name]}']) .pick").click()
    page.one("#compare-link").click()
    page.until(lambda: len(page.all("#compare thead th")) == 4, "no matrix")
    assert all("seed 0" in one.text for one in page.all("#compare thead th")[1:])
    assert "FGSM within 2/255" in page.text("#compare tbody") and not page.all("#compare .notice")
    page.open("#/evaluations")
    page.one("#history-filters button:nth-child(4)").click()  # succeeded
    page.until(lambda: bool(page.all(row)), "not listed")
    page.one("#history-filters button:nth-child(5)").click()  # failed
    page.says("#history", "No evaluation is failed.")
    page.open()
    page.run(ONE_AT_A_TIME)
    page.one("#older").click()
    page.until(lambda: len(page.all(".past")) == 2, "no older one")
    assert len({row.get_attribute("data-id") for row in page.all(".past")}) == 2


def test_evaluation_is_cancelled_and_deleted(page: Page) -> None:
    page.take_samples()
    page.adjust()
    page.set_field("[name=pgd-steps]", "1000")
    page.set_field("[name=other-eps]", "0.01 0.02 0.03 0.04")
    page.start()
    page.one(".progress button").click()
    page.says("#evaluation", "was cancelled", seconds=60)
    page.one("#continue").click()
    begun = "return document.querySelector('.progress progress')?.value > 0"
    page.until(lambda: page.run(begun), "it does not begin", seconds=60)
    page.one(".progress button").click()
    page.says("#evaluation", "was cancelled after", seconds=60)
    page.one("#continue")
    place = page.place()
    page.one("nav [data-view=evaluations]").click()
    row = f".past:has([href='{place}'])"
    assert page.text(f"{row} .status") == "cancelled"
    page.one(f"{row} button").send_keys(Keys.ENTER)
    page.one(f"{row} button").send_keys(Keys.ENTER)
    page.until(lambda: not page.all(row), "not deleted")
    page.open(place)
    assert "deleted" in page.text("#evaluation .error")


@contextmanager
def screen(page: Page, width: int, *, scale: int = 1, mobile: bool = True) -> Iterator[None]:
    size = {"width": width, "height": 740, "deviceScaleFactor": scale, "mobile": mobile}
    page.cdp("Emulation.setDeviceMetricsOverride", **size)
    try:
        yield
    finally:
        page.cdp("Emulation.clearDeviceMetricsOverride")
        page.prefer()


def fill(page: Page, places: dict[str, str], place: str) -> None:
    page.open(places.get(place, place))
    if place == "#/":
        page.take_samples()
        page.adjust()
        page.says("#image-evaluation .cost", "Up to")
        assert page.run(UNNAMED) == []
        page.set_field("[name=other-eps]", "8")
        page.one("#image-evaluation .fault")
    elif place == "#/texts":
        page.one("#examples").click()
        predicted(page, 8, "text")
    else:
        page.one(".past" if place == "#/evaluations" else ".downloads")
    time.sleep(0.3)  # the curve is drawn after the layout


@pytest.mark.parametrize(("width", "scale", "mobile"), [(360, 1, True), (640, 2, False)])
def test_nothing_is_wider_than_a_phone_or_an_enlarged_window(
    page: Page, places: dict[str, str], width: int, scale: int, mobile: bool
) -> None:
    with screen(page, width, scale=scale, mobile=mobile):
        for place in VIEWS:
            fill(page, places, place)
            assert page.width() <= width, place


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_and_nothing_moves_for_those_who_ask_for_it(
    page: Page, places: dict[str, str], scheme: str
) -> None:
    page.prefer("prefers-color-scheme", scheme)
    try:
        for place in VIEWS:
            fill(page, places, place)
            assert page.low_contrast() == [], place
        paper = page.run("return getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(14, 19, 21)") == (scheme == "dark")
        page.prefer("prefers-reduced-motion", "reduce")
        assert page.run(MOVING) == 0
    finally:
        page.prefer()
