"""The report in a real browser, through the eyes and keys of its reader."""

import csv
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesmooth import audit
from bayesmooth.audit.decisions import clean, read_decisions
from bayesmooth.audit.findings import Findings
from bayesmooth.audit.rates import NoiseRate, estimate_reviewed_rate
from bayesmooth.audit.report import render
from bayesmooth.audit.scores import MISLABELLED, QUADRANTS
from bayesmooth.audit.similar import Similar
from bayesmooth.audit.table import Audit
from bayesmooth.audit.tags import split_tags
from bayesmooth.audit.thumbnails import make_thumbnails
from bayesmooth.data.examples import Problem

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
from selenium.webdriver.chrome.options import Options  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")

Make = Callable[..., Audit]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--window-size=1400,1000",
)  # fmt: skip


class Reader:
    """What a reader does with a report."""

    def __init__(self, driver: Any, folder: Path, make: Make) -> None:
        self.driver, self.folder, self.make = driver, folder, make

    def open(self, name: str, **changes: Any) -> None:
        path = self.folder / f"{name}.html"
        shown = {
            key: changes.pop(key)
            for key in ("title", "texts", "thumbnails", "small")
            if key in changes
        }
        path.write_text(render(self.make(**changes), **shown), "utf-8")
        self.driver.get(path.as_uri())

    def phone(self) -> None:
        self.screen(390, 844, deviceScaleFactor=2, mobile=True)

    def screen(self, width: int, height: int, **more: Any) -> None:
        metrics = {
            "width": width,
            "height": height,
            "deviceScaleFactor": 1,
            "mobile": False,
            **more,
        }
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def show(self, what: str) -> None:
        self.click(f"#shows [data-show='{what}']")

    def seen(self, selector: str) -> int:
        """How many such elements are wholly in the window."""
        script = """return [...document.querySelectorAll(arguments[0])].filter((node) => {
            const box = node.getBoundingClientRect();
            return box.width && box.top >= 0 && box.left >= 0 && box.bottom <= innerHeight && box.right <= innerWidth;
        }).length"""
        return self.js(script, selector)

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.js("return document.querySelector(arguments[0]).textContent", selector)

    def click(self, selector: str) -> None:
        element = self.find(selector)
        self.js("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def press(self, *keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(*keys)

    def choose(self, selector: str, label: str) -> None:
        script = """const [select, label] = arguments;
            select.value = [...select.options].find((option) => option.textContent === label).value;
            select.dispatchEvent(new Event('change'));"""
        self.js(script, self.find(selector), label)

    def errors(self) -> list[Any]:
        return [entry for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def download(self) -> Path:
        target = self.folder / "decisions.csv"
        target.unlink(missing_ok=True)
        self.click("#save")
        self.until(lambda: target.exists() and target.stat().st_size > 0)
        return target

    @staticmethod
    def until(condition: Callable[[], bool]) -> None:
        """Wait for what the page does a moment later; ten seconds are for a busy machine."""
        for _ in range(200):
            if condition():
                return
            time.sleep(0.05)
        raise AssertionError("it never happened")


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("browser")
    options = Options()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"download.default_directory": str(folder)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(DRIVER, log_output=subprocess.DEVNULL)
    browser = webdriver.Chrome(options=options, service=service)
    browser.folder = folder
    yield browser
    browser.quit()


@pytest.fixture
def reader(driver: Any, made_up: Make) -> Iterator[Reader]:
    reader = Reader(driver, driver.folder, made_up)
    reader.errors()  # what an earlier test left
    yield reader
    assert reader.errors() == []
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    reader.js("try { localStorage.clear() } catch {}")


def wrong_examples(data: Audit) -> np.ndarray:
    """The contradicted labels, most suspicious first: what the page lists when it opens."""
    members = np.flatnonzero(data.quadrant >= 2)
    return members[np.argsort(-data.disagreement[members], kind="stable")]


def test_page_states_the_claim_and_draws_every_part(reader: Reader) -> None:
    images = np.random.default_rng(0).integers(0, 255, (300, 16, 16), dtype=np.uint8)
    reader.open("parts", thumbnails=make_thumbnails(images, range(300)))
    assert reader.text("h1") == reader.make().headline
    assert len(reader.driver.find_elements(By.CSS_SELECTOR, "#matrix td button")) == 16
    assert len(reader.driver.find_elements(By.CSS_SELECTOR, "#list [role=option]")) > 5
    painted = """const canvas = document.querySelector(arguments[0]);
        const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        return new Set(new Uint32Array(pixels.buffer)).size"""
    assert reader.js(painted, "#scatter") > 20
    reader.until(lambda: reader.js(painted, "#detail canvas.thumb") > 20)


@pytest.mark.parametrize("content", ["pictures", "texts", "rows", "nothing"])
def test_worst_ten_are_in_sight_before_any_click(reader: Reader, content: str) -> None:
    images = np.random.default_rng(0).integers(0, 255, (300, 16, 16), dtype=np.uint8)
    shown = {
        "pictures": {"thumbnails": make_thumbnails(images, range(300))},
        "texts": {"texts": ["a text of several words that goes on for a while " * 5] * 300},
        "rows": {"texts": [{"age": 30, "city": "Lima", "job": "none", "more": 1}] * 300},
        "nothing": {},
    }[content]
    reader.open(f"first-{content}", **shown)
    assert reader.seen("#list .item") >= 10
    assert reader.seen("#detail .action") == 5
    listed = "return [...document.querySelectorAll('#list .item')].map((item) => item.id)"
    expected = [f"item-{i}" for i in wrong_examples(reader.make())[:10]]
    assert reader.js(listed)[:10] == expected


LONG_NAMES = (
    "balance_not_updated_after_bank_transfer",
    "card_payment_wrong_exchange_rate",
    "cat",
    "beneficiary_not_allowed",
)


@pytest.mark.parametrize("content", ["pictures", "texts", "rows"])
def test_evidence_and_buttons_are_in_sight_on_a_laptop(reader: Reader, content: str) -> None:
    """At 1400 × 750: the example, its nearest with either label, three classes, five buttons; and no jargon."""
    photos = np.random.default_rng(0).integers(0, 255, (300, 30, 40), dtype=np.uint8)
    near = similar_to_the_next(reader.make())
    shown = {
        "pictures": {
            "thumbnails": make_thumbnails(photos, wrong_examples(reader.make())),
            "small": make_thumbnails(photos, near.given[0], 16),
        },
        "texts": {"texts": [f"text {i} which goes on for a while " * 6 for i in range(300)]},
        "rows": {"texts": [{f"column_{k}": i * k for k in range(20)} for i in range(300)]},
    }[content]
    reader.screen(1400, 750)
    shares = np.tile([0.1, 0.5, 0.05, 0.35], (300, 1))
    reader.open(
        f"laptop-{content}", similar=near, class_names=LONG_NAMES, probabilities=shares, **shown
    )
    assert reader.seen("#detail .action") == 5
    assert reader.seen("#detail .bar") == 3
    assert reader.seen(".compare thead th" if content == "rows" else ".neighbour") == (
        3 if content == "rows" else 6
    )
    assert not any(word in reader.find("body").text for word in ("Disagreement 0", "rank "))
    assert reader.js("return document.documentElement.scrollWidth") <= 1400
    first = wrong_examples(reader.make())[0]
    if content == "texts":
        assert reader.text(".near.given .neighbour").startswith(f"text {near.given[0][0]} ")
        reader.click(".near.given .neighbour")
        assert f"id {near.given[0][0]}" in reader.text(".where")
    if content == "rows":
        cells = "return [...document.querySelectorAll('.compare tbody tr')].pop().textContent"
        beside = [19 * int(i) for i in (first, *near.given[0], *near.suggested[0])]
        assert reader.js(cells) == "column_19" + "".join(map(str, beside))


def similar_to_the_next(data: Audit) -> Similar:
    """Neighbours that are easy to name: positions 8, 9 and 10 have the label, 11, 12 and 13 the suggested one."""
    index = wrong_examples(data)
    return Similar(
        index, np.tile([8, 9, 10], (len(index), 1)), np.tile([11, 12, 13], (len(index), 1))
    )


def test_unusual_values_for_the_class_are_marked_and_come_first(reader: Reader) -> None:
    rows: list[dict[str, Any]] = [
        {"plain": 1, "size": 10 + i % 7, "city": "Lima" if i % 8 else "Rome"} for i in range(300)
    ]
    first = int(wrong_examples(reader.make())[0])
    rows[first] |= {"size": 99, "city": "Oslo"}
    reader.open("unusual", texts=rows)
    marked = "return [...document.querySelectorAll('.compare td.unusual')].map((cell) => cell.textContent)"
    assert reader.js(marked) == ["99", "Oslo"]
    name = reader.make().class_names[reader.make().given[first]]
    assert reader.find(".compare td.unusual").get_attribute("title") == (
        f"Usual for “{name}”: 10 to 21"
    )
    assert reader.text(".compare tbody th") == "size"


def test_picture_is_enlarged_by_a_click_with_its_proportions(reader: Reader) -> None:
    wide = np.random.default_rng(0).integers(0, 255, (300, 24, 48), dtype=np.uint8)
    reader.open("zoom", thumbnails=make_thumbnails(wide, range(300)))
    before = reader.find(".stage canvas").size
    assert before["width"] > 1.9 * before["height"]
    reader.click(".stage .zoom")
    assert reader.find("#zoom canvas").size["width"] > 1.5 * before["width"]
    reader.find("#zoom canvas").click()
    assert not reader.find("#zoom").is_displayed()


def test_many_are_accepted_at_once_and_taken_back_at_once(reader: Reader) -> None:
    data = reader.make()
    reader.open("bulk")
    reader.press("k")
    reader.click("#bulk-button")
    pair = (data.given == 1) & (data.suggested == 2)
    kept = np.arange(300) == wrong_examples(data)[0]
    chosen = pair & ~kept & (data.suggested_probability >= 0.8)
    share = "arguments[0].value = 80; arguments[0].dispatchEvent(new Event('input'))"
    reader.js("document.querySelector('#bulk-pair').value = 1 * 4 + 2")
    reader.js(share, reader.find("#bulk-share"))
    reader.find("#bulk-run").click()
    decided = read_decisions(reader.download())
    assert {row.id for row in decided if row.decision == "relabel"} == set(
        map(str, np.flatnonzero(chosen))
    )
    assert len(decided) == chosen.sum() + 1 > 2
    reader.driver.refresh()
    reader.press("u")
    assert reader.text("#progress-text") == "1 of 30 reviewed"
    assert reader.text("#hits") == ""  # what was accepted in bulk was not looked at


def test_hit_rate_and_estimate_follow_the_decisions(reader: Reader) -> None:
    reader.open("hits")
    reader.press(*"rrrrk")
    assert reader.text("#hits") == "Of the last 5 you looked at, 4 were wrong."
    reader.press(*"r" * 15)
    assert reader.text("#hits").startswith("Of the last 20 you looked at, 19 were wrong. By your")
    reader.press(*"k" * 10)
    assert "10 were wrong" in reader.text("#hits")
    assert_rate_is_pythons(reader, reader.make(), {*range(30)} - {4, *range(20, 30)})
    reader.show("all")
    reader.press(Keys.END, *[key for _ in range(25) for key in (*[Keys.ARROW_LEFT] * 7, "s", "k")])
    assert_rate_is_pythons(reader, reader.make(), {*range(30)} - {4, *range(20, 30)})
    reader.open("hopeless")
    reader.press(*"k" * 20)
    assert reader.text("#hits").endswith("Looking further hardly pays.")


def assert_rate_is_pythons(reader: Reader, data: Audit, wrong_ranks: set[int]) -> None:
    """What the page says after the same decisions as `estimate_reviewed_rate`."""
    rows = {row.id: row.decision for row in read_decisions(reader.download())}
    decided = [rows.get(name, "skip") for name in data.ids]
    judged = np.array([np.nan if d == "skip" else d == "relabel" for d in decided])
    assert np.nansum(judged) == len(wrong_ranks)
    rate = estimate_reviewed_rate(data.disagreement, judged)
    said = (
        reader.text("#hits")
        .replace("\u00a0", " ")
        .replace("< 0.1", "0")
        .split("By your decisions, ")[1]
    )
    low, high = (float(part.strip(" %")) for part in said.split(" of all")[0].split(" to "))
    assert (low, high) == pytest.approx((100 * rate.low, 100 * rate.high), abs=0.51)


def test_problems_of_the_data_are_listed(reader: Reader) -> None:
    found = Findings(rare_class=np.zeros(300, bool))
    problem = Problem("empty", "2 texts are empty", ("4", "7"))
    reader.open("problems", findings=replace(found, problems=(problem,)))
    assert reader.text("#problems summary") == "The data has 1 problem beside its labels"
    assert reader.text("#problems p") == "2 texts are empty 4, 7"


def test_chips_and_selects_and_search_filter_the_list(reader: Reader) -> None:
    data = reader.make(ids=tuple(f"image-{i:03d}" for i in range(300)))
    reader.open("filters", ids=data.ids)
    assert reader.text("#count") == f"{data.contradicted.sum()} of 300 examples: contradicted"
    reader.show(QUADRANTS[MISLABELLED])
    flagged = int((data.quadrant == MISLABELLED).sum())
    name = QUADRANTS[MISLABELLED]
    assert reader.text("#count") == f"{flagged} of 300 examples: {name}"
    reader.choose("#filter-given", "class 1")
    both = int(((data.quadrant == MISLABELLED) & (data.given == 1)).sum())
    assert reader.text("#count").startswith(f"{both} of 300")
    reader.click("#clear")
    assert reader.text("#count") == f"{flagged} of 300 examples: {name}"
    reader.show("all")
    assert reader.text("#count") == "All 300 examples"
    reader.press("/")
    reader.find("#search").send_keys("image-12")
    reader.until(lambda: reader.text("#count").startswith("10 of 300"))
    reader.find("#search").send_keys("zzz")
    reader.until(lambda: reader.find("#empty").is_displayed())
    assert not reader.find("#detail").is_displayed()


def test_findings_are_filters_and_copies_with_different_labels_come_first(reader: Reader) -> None:
    first, score, other = np.full(300, -1), np.zeros(300), np.full(300, "", object)
    first[[10, 14, 20, 21]] = [10, 10, 20, 20]  # 20 and 21 are of different classes
    score[[50, 51]] = 1.5, 2.5
    other[60] = "test-9"
    found = Findings(
        rare_class=np.arange(300) % 4 == 3,
        duplicate_of=first,
        conflicting=np.isin(np.arange(300), [20, 21]),
        outlier_score=score,
        in_other_split=other,
        label_in_other_split=np.where(other == "", "", "cat"),
    )
    reader.open("findings", findings=found)
    listed = "return [...document.querySelectorAll('#list .item')].map((item) => Number(item.id.slice(5)))"
    reader.show("duplicates")
    assert reader.js(listed) == [20, 21, 10, 14]
    assert "different labels" in reader.text(".notes")
    reader.click(".copy")
    assert reader.text(".where b") == "2"
    reader.show("conflicts")
    assert reader.js(listed) == [20, 21]
    reader.show("outliers")
    assert reader.js(listed) == [51, 50]
    assert "2.5 times as far" in reader.text(".notes")
    reader.show("leaks")
    assert reader.js(listed) == [60]
    assert "id test-9, labelled “cat”" in reader.text(".notes")
    reader.show("rare")
    assert reader.text("#count") == "75 of 300 examples: rare classes"
    assert "75 examples of “class 3”" in reader.text(".notes")


def test_names_of_classes_are_never_cut_on_cards(reader: Reader) -> None:
    images = np.random.default_rng(0).integers(0, 255, (300, 16, 16), dtype=np.uint8)
    names = ("cat", "a class with quite a long name", "balance_not_updated_after_deposit", "x")
    cut = """const low = (node) => node.getBoundingClientRect().bottom;
        return [...document.querySelectorAll('.card-item')].filter((card) => card.scrollHeight > card.clientHeight
            || [...card.querySelectorAll('.verdict-line, .verdict-line *')].some((node) =>
                (node.clientWidth && node.scrollWidth > node.clientWidth + 1) || low(node) > low(card))).length"""
    for phone in (False, True):
        if phone:
            reader.phone()
        for name, shown in {
            "pictures": {"thumbnails": make_thumbnails(images, range(300))},
            "texts": {"texts": ["some text"] * 300},
        }.items():
            reader.open(f"names-{name}", class_names=names, **shown)
            assert reader.js("return document.querySelectorAll('.card-item').length") > 5
            assert reader.js(cut) == 0, (phone, name)


def test_header_shows_the_interval_the_warning_and_the_notes(reader: Reader) -> None:
    reader.open("plain")
    assert "At least 6.0 % of the labels are wrong" not in reader.text("#lead")
    assert not reader.find("#warning").is_displayed()
    assert not reader.find("#remarks").is_displayed()
    summary = {
        "noise_rate": 0.07,
        "noise_rate_words": str(NoiseRate(0.07, 0.06)),
        "warning": "The input is probably wrong.",
        "notes": ["column 'Unnamed: 0' is left out"],
    }
    reader.open("warned", summary=summary)
    assert reader.find("#remarks").text == "Column 'Unnamed: 0' is left out."
    assert "At least 6.0 % of the labels are wrong, about 7.0 %" in reader.text("#lead")
    assert reader.find("#warning").text == summary["warning"]


def test_matrix_cell_shows_its_examples_by_mouse_and_by_keyboard(reader: Reader) -> None:
    reader.open("matrix")
    data = reader.make()
    expected = int(((data.given == 1) & (data.suggested == 2)).sum())
    reader.click("#matrix button[data-row='1'][data-column='2']")
    assert reader.text("#count").startswith(f"{expected} of 300 examples: labelled “class 1”")
    assert reader.text(".bar.given b") == "class 1"
    assert reader.text(".bar.suggested b") == "class 2"
    reader.press(Keys.ENTER)
    assert reader.text("#count").endswith("examples: contradicted")
    reader.press(Keys.ARROW_UP, *[Keys.ARROW_DOWN] * 3, *[Keys.ARROW_LEFT] * 2, Keys.ENTER)
    assert reader.text("#count").endswith("labelled “class 3”, looks like “class 0”")


def test_keyboard_review_downloads_a_csv_that_clean_applies(reader: Reader, tmp_path: Path) -> None:
    ids = tuple(f'=HYPERLINK("a,{i}")\n"' for i in range(300))
    data = reader.make(ids=ids)
    reader.open("review", ids=ids)
    reader.press("k", "r", "a", "s", "1", "c")
    reader.press("class 3", Keys.ENTER)
    assert reader.text("#progress-text").startswith("6 of ")
    first = wrong_examples(data)[:6]
    kinds = ["keep", "relabel", "ambiguous", "skip", "relabel", "relabel"]
    targets = [None, data.suggested[first[1]], None, None, 0, 3]
    rows = {row.id: row for row in read_decisions(reader.download())}
    assert set(rows) == {ids[i] for i in first}
    # To a spreadsheet they are text.
    assert "\"'=HYPERLINK" in (reader.folder / "decisions.csv").read_text()
    for i, kind, target in zip(first, kinds, targets, strict=True):
        kept = target == data.given[i]
        assert rows[ids[i]].given == data.class_names[data.given[i]]
        assert rows[ids[i]].decision == ("keep" if kept else kind)
        assert rows[ids[i]].new_label == (
            "" if kept or target is None else data.class_names[target]
        )
    assert_clean_applies(data, reader.folder / "decisions.csv", tmp_path)


def assert_clean_applies(data: Audit, decisions: Path, folder: Path) -> None:
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label"])
        names = [data.class_names[label] for label in data.given]
        writer.writerows(zip(data.ids or (), names, strict=True))
    result = clean(folder / "labels.csv", decisions, folder / "clean.csv")
    relabelled = [row for row in read_decisions(decisions) if row.decision == "relabel"]
    assert len(result.relabelled) == len(relabelled) > 0


def test_undo_takes_back_one_step_and_returns_to_it(reader: Reader) -> None:
    reader.open("undo")
    reader.press("r", "k", "u")
    assert reader.text("#progress-text").startswith("1 of ")
    assert reader.text(".where b") == "2"
    reader.press("u", "u")
    assert reader.text("#progress-text").startswith("0 of ")
    assert reader.text(".where b") == "1"
    assert reader.js("return document.querySelector('#undo').disabled")


def test_arrows_move_and_the_keys_sleep_while_one_types(reader: Reader) -> None:
    reader.open("arrows")
    reader.show("all")
    reader.click("#view-table")
    reader.js("document.querySelector('#list').focus()")
    reader.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_UP)
    assert reader.text(".where b") == "2"
    reader.press(Keys.END)
    assert reader.text(".where b") == "300"
    assert (
        reader.js("return document.querySelector('[aria-selected=true]').dataset.position") == "299"
    )
    reader.press("/")
    reader.find("#search").send_keys("kkrr")
    assert reader.js("return document.querySelector('#save').disabled")


def test_decisions_outlive_a_reload_and_stay_with_their_audit(reader: Reader) -> None:
    reader.open("reload")
    reader.press("r", "a")
    reader.driver.refresh()
    assert reader.text("#progress-text") == "2 of 30 reviewed"
    assert reader.text(".where b") == "3"  # the first that is undecided
    reader.press("u")
    assert reader.text("#progress-text") == "1 of 30 reviewed"
    assert reader.text(".where b") == "2"
    reader.open("another", count=299)
    assert reader.text("#progress-text") == "0 of 30 reviewed"


def test_downloaded_decisions_load_again(reader: Reader) -> None:
    reader.open("load")
    reader.press("r", "k", "a")
    saved = reader.download()
    kept = saved.rename(saved.with_name("kept.csv"))
    kept.write_text(kept.read_text() + '"nobody","class 0","keep",""\n')
    reader.js("localStorage.clear()")
    reader.driver.refresh()
    assert reader.text("#progress-text") == "0 of 30 reviewed"
    reader.find("#file").send_keys(str(kept))
    reader.until(lambda: reader.text("#progress-text") == "3 of 30 reviewed")
    assert reader.text("#notice") == "Loaded 3 decisions. 1 rows do not belong to this audit."
    assert reader.download().read_text() == kept.read_text().replace(
        '"nobody","class 0","keep",""\n', ""
    )


def test_page_works_where_storage_is_denied(reader: Reader) -> None:
    deny = "Object.defineProperty(window, 'localStorage', {get() { throw new Error('denied') }})"
    command = "Page.addScriptToEvaluateOnNewDocument"
    script = reader.driver.execute_cdp_cmd(command, {"source": deny})
    try:
        reader.open("denied")
        reader.press("r")
        assert reader.text("#progress-text").startswith("1 of ")
        assert "keeps nothing" in reader.text("#notice")
        assert len(read_decisions(reader.download())) == 1  # and so the page may close unasked
    finally:
        command = "Page.removeScriptToEvaluateOnNewDocument"
        reader.driver.execute_cdp_cmd(command, script)


def test_page_says_so_when_storage_is_full(reader: Reader) -> None:
    reader.open("full")
    reader.js("Storage.prototype.setItem = () => { throw new Error('full') }")
    reader.press("r", "k")
    assert reader.text("#progress-text").startswith("2 of ")
    assert "keeps nothing" in reader.text("#notice")
    assert len(read_decisions(reader.download())) == 2


def test_hostile_names_are_shown_and_not_run(reader: Reader) -> None:
    boom = "<script>window.boom = 1</script>"
    names = ("{{payload}}", boom, "</script>" + boom, "<img src=x onerror='window.boom=1'>")
    reader.open(
        "hostile", class_names=names, title="</title>" + boom, summary={boom: boom, "warning": boom},
        texts=[boom if i % 2 else {boom: boom} for i in range(300)], ids=tuple(f"{boom}{i}" for i in range(300)),
    )  # fmt: skip
    reader.click("#view-table")
    reader.click("#matrix button[data-row='1'][data-column='2']")
    assert reader.text(".bar.given b") == names[1]
    assert reader.text(".bar.suggested b") == names[2]
    assert reader.js("return window.boom === undefined")
    assert reader.js("return document.querySelectorAll('script').length") == 2
    assert reader.js("return document.querySelectorAll('img').length") == 0


def test_hover_shows_the_example_and_a_drag_selects_a_region(reader: Reader) -> None:
    ambiguity = np.linspace(0.01, 0.2, 300)
    data = reader.make(ambiguity=ambiguity, disagreement=np.linspace(-1, 1, 300))
    reader.open("pointer", ambiguity=data.ambiguity, disagreement=data.disagreement)
    reader.click("#scale-rank")  # the last example is first on both axes: the upper right corner
    canvas = reader.find("#scatter")
    reader.js("arguments[0].scrollIntoView({block: 'center'})", canvas)
    corner = canvas.size["width"] / 2 - 8, -canvas.size["height"] / 2 + 8
    mouse = webdriver.ActionChains(reader.driver)
    mouse.move_to_element_with_offset(canvas, *map(round, corner)).perform()
    assert "id 299" in reader.text("#tooltip")
    mouse.click_and_hold().move_by_offset(-60, 60).release().perform()
    assert "inside the selected region" in reader.text("#count")
    chosen = int(reader.text("#count").split(" of ")[0])
    assert 1 <= chosen < 20


def test_rank_lines_divide_as_the_quadrants_do(reader: Reader) -> None:
    """Ties with a threshold are on the side that Python put them on: here 270 at 0, not contradicted, and so none."""
    disagreement = np.r_[np.ones(30), np.zeros(270)]
    quadrant = np.r_[np.full(30, 2), np.zeros(270, int)]
    drawn = """window.lines = [];
        const { lineTo } = CanvasRenderingContext2D.prototype;
        CanvasRenderingContext2D.prototype.lineTo = function (x, y) {
          window.lines.push([x, y, this.getLineDash().length]);
          return lineTo.call(this, x, y);
        };"""
    command = "Page.addScriptToEvaluateOnNewDocument"
    script = reader.driver.execute_cdp_cmd(command, {"source": drawn})
    try:
        reader.open(
            "ties", disagreement=disagreement, ambiguity=0 * disagreement, quadrant=quadrant
        )
        reader.js("window.lines = []")
        reader.click("#scale-rank")
        lines = [line for line in reader.js("return window.lines") if line[2]]
        height = reader.find("#scatter").size["height"]
    finally:
        command = "Page.removeScriptToEvaluateOnNewDocument"
        reader.driver.execute_cdp_cmd(command, script)
    share = (height - 44 - lines[-1][1]) / (height - 14 - 44)  # the margins of map.js
    assert 300 ** (1 - share) - 1 == pytest.approx(29.5, abs=0.3)


def test_hundred_thousand_examples_scroll_with_few_nodes(reader: Reader) -> None:
    images = np.random.default_rng(0).integers(0, 255, (500, 28, 28), dtype=np.uint8)
    pictures = make_thumbnails(images, range(500))
    reader.open("large", count=100_000, classes=10, thumbnails=pictures)
    nodes = "return document.querySelectorAll('*').length"
    assert reader.js(nodes) < 1000
    assert (reader.folder / "large.html").stat().st_size < 4e6
    reader.click("#view-table")
    reader.show("all")
    bottom = """const [done] = [arguments[0]]; const list = document.querySelector('#list');
        list.scrollTop = list.scrollHeight;
        requestAnimationFrame(() => requestAnimationFrame(() =>
            done(Math.max(...[...list.querySelectorAll('.item')].map((item) => Number(item.dataset.position))))));"""
    assert reader.driver.execute_async_script(bottom) == 99_999
    assert reader.js(nodes) < 1000
    reader.js("document.querySelector('#list').focus()")
    reader.press(Keys.HOME, "k")
    assert reader.text("#progress-text") == "1 of 100,000 reviewed"


def test_many_classes_do_not_fill_the_page_with_nodes(reader: Reader) -> None:
    reader.open("classes", count=4000, classes=1000)
    assert reader.js("return document.querySelectorAll('*').length") < 1000


def test_phone_needs_no_sideways_scroll_and_theme_can_be_switched(reader: Reader) -> None:
    reader.phone()
    reader.open("phone")
    assert reader.js("return document.documentElement.scrollWidth") <= 390
    page = "return getComputedStyle(document.body).backgroundColor"
    before = reader.js(page)
    reader.click("#theme-button")
    assert reader.js(page) != before


def test_decision_buttons_stay_in_sight_on_a_phone(reader: Reader) -> None:
    reader.phone()
    data = reader.make()
    reader.open("phone-review", texts=["a long text that fills more than the screen " * 60] * 300)
    assert reader.seen("#start") == 1
    assert not reader.find("#detail").is_displayed()
    reader.find("#start").click()
    for _ in range(3):
        assert reader.seen("#detail .action") == 5
        reader.js("document.querySelector('#detail').scrollTop = 9999")
        assert reader.seen("#detail .action") == 5
        reader.find(".action.relabel").click()
    assert reader.text(".where b") == "4"
    reader.find(".close").click()
    assert not reader.find("#detail").is_displayed()
    reader.find(f"#item-{wrong_examples(data)[1]}").click()
    assert reader.seen("#detail .action") == 5
    assert reader.text(".where b") == "2"


def test_text_has_the_contrast_of_level_aa_in_both_themes(reader: Reader) -> None:
    reader.open("contrast")
    for theme in ("light", "dark"):
        reader.js("document.documentElement.dataset.theme = arguments[0]", theme)
        for text, ground in [
            ("ink", "page"), ("ink", "card"), ("ink", "sunk"), ("ink", "tint"), ("muted", "page"),
            ("muted", "card"), ("muted", "sunk"), ("muted", "tint"), ("on-accent", "accent"), ("card", "ink"),
        ]:  # fmt: skip
            assert contrast(reader, text, ground) >= 4.5, (theme, text, ground)
        assert contrast(reader, "ink", "alarm") >= 4.5
        for q, name in enumerate(QUADRANTS):
            assert contrast(reader, f"q-{q}", "card") >= 3, (theme, name)


def contrast(reader: Reader, first: str, second: str) -> float:
    """The ratio of WCAG 2 between two colours of the page."""
    script = """const probe = document.body.appendChild(document.createElement('i'));
        probe.style.color = `var(--${arguments[0]})`;
        const colour = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(Number);
        probe.remove();
        return colour"""

    def luminance(name: str) -> float:
        channel = np.array(reader.js(script, name)) / 255
        linear = np.where(channel <= 0.04045, channel / 12.92, ((channel + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


TAGS = ("beach", "dog", "night")


def open_tags(reader: Reader, name: str, path: Path) -> Audit:
    """Three tags, each a direction, in columns of a CSV; two examples with wrong ones."""
    rng = np.random.default_rng(0)
    true = rng.integers(0, 2, (120, 3))
    rows = 6.0 * (2 * true - 1) + rng.normal(size=(120, 3))
    given = true.copy()
    given[7, 1] ^= 1
    given[20, [0, 2]] ^= 1
    lines = [
        ",".join(map(str, [*row, *tags])) for row, tags in zip(rows.tolist(), given, strict=True)
    ]
    path.write_text("\n".join(["x,y,z,beach,dog,night", *lines]))
    made = audit(path, labels=TAGS, quiet=True)
    reader.make = lambda: made
    reader.open(name, texts=[f"photo {i}" for i in range(120)])
    return made


def test_tags_are_accepted_and_edited_and_clean_writes_them(reader: Reader, tmp_path: Path) -> None:
    path, out = tmp_path / "photos.csv", tmp_path / "cleaned.csv"
    made = open_tags(reader, "tags", path)
    assert reader.text("h1") == made.headline
    first, second = made.order[:2]
    words = [f"+\u2009{t}" for t in split_tags(str(made.tags_to_add[first]), ";")]
    words += [f"−\u2009{t}" for t in split_tags(str(made.tags_to_remove[first]), ";")]
    assert reader.text("#list .item .changes") == "".join(words)
    assert reader.text(".action.relabel span") == "Accept " + "".join(words)
    reader.press("r", "c")
    for tag in TAGS:  # the second has none in the end, which no example had to have before
        if tag in split_tags(made.class_names[made.given[second]], ";"):
            reader.find("#chooser-input").send_keys(tag, Keys.ENTER)
            reader.find("#chooser-input").clear()
    reader.find("#chooser-input").send_keys(Keys.CONTROL, Keys.ENTER)
    assert reader.text("#progress-text").startswith("2 of ")
    reader.driver.refresh()
    assert reader.text("#progress-text").startswith("2 of ")
    decisions = reader.download()
    clean(path, decisions, out, tags=TAGS)
    before, after = (np.genfromtxt(p, delimiter=",", skip_header=1) for p in (path, out))
    wanted = before.copy()
    carried = made.tags.vocabulary.table(made.class_names).numpy()
    wanted[first, 3:], wanted[second, 3:] = carried[made.suggested[first]], 0
    np.testing.assert_array_equal(after, wanted)


def test_tags_filter_the_list_and_downloaded_sets_load_again(
    reader: Reader, tmp_path: Path
) -> None:
    made = open_tags(reader, "tag filter", tmp_path / "photos.csv")
    changes = made.tag_changes().sum(0)
    tag = int(changes.argmax())
    reader.click(f"#matrix button[data-column='{tag}']")
    assert reader.text("#count").startswith(f"{changes[tag]} of 120")
    reader.click("#clear")
    reader.choose("#filter-given", "dog")
    assert reader.text("#count").startswith(f"{int(made.tags.given[:, 1].sum())} of 120")
    reader.click("#clear")
    reader.press("r")
    saved = reader.download()
    kept = saved.rename(saved.with_name("kept tags.csv"))
    reader.js("localStorage.clear()")
    reader.driver.refresh()
    reader.find("#file").send_keys(str(kept))
    reader.until(lambda: "Loaded 1 decisions." in reader.text("#notice"))
    assert reader.download().read_text() == kept.read_text()


def test_annotators_have_a_page_and_votes_are_on_every_card(reader: Reader) -> None:
    rng = np.random.default_rng(0)
    true = np.arange(90) % 3
    rows = np.eye(3)[true] + rng.normal(size=(90, 3))
    votes = np.where(
        rng.random((90, 4)) < [0.1, 0.3, 0.4, 0.6], (true + 1)[:, None] % 3, true[:, None]
    )
    votes[::2, 3] = -1
    made = audit(embeddings=rows, votes=votes, class_names=("ant", "bee", "cow"), quiet=True)
    reader.make = lambda: made
    reader.screen(1400, 750)
    reader.open("people", texts=[f"photo {i}" for i in range(90)])
    reader.show("all")
    assert len(reader.driver.find_elements(By.CSS_SELECTOR, "#list .item .votes")) == len(
        reader.driver.find_elements(By.CSS_SELECTOR, "#list .item")
    )
    everybody = made.consensus.annotators()
    said = [(a, k) for i, a, k in zip(*vote_columns(made), strict=True) if i == made.order[0]]
    words = "".join(f"{made.consensus.votes.annotators[a]} {made.class_names[k]}" for a, k in said)
    assert reader.text("#detail .votes") == words
    reader.click("#annotators-link")
    assert reader.seen("#people tbody tr") == 4
    names = "return [...document.querySelectorAll('#people tbody th')].map((n) => n.textContent)"
    assert reader.js(names) == [one.name for one in everybody]
    listed = len(reader.driver.find_elements(By.CSS_SELECTOR, "#again .again"))
    asked = reader.driver.find_elements(By.CSS_SELECTOR, "#people button")
    assert listed == sum(int(button.text) for button in asked) > 0
    count = int(asked[0].text)
    asked[0].click()
    assert len(reader.driver.find_elements(By.CSS_SELECTOR, "#again .again")) == count


def vote_columns(made: Audit) -> tuple[list[int], list[int], list[int]]:
    votes = made.consensus.votes
    return votes.example.tolist(), votes.annotator.tolist(), votes.label.tolist()
