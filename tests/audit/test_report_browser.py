"""The report in a real browser, through the eyes and keys of its reader."""

import csv
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesmooth import audit
from bayesmooth.audit.decisions import clean, read_decisions
from bayesmooth.audit.findings import Findings
from bayesmooth.audit.report import render
from bayesmooth.audit.scores import MISLABELLED, QUADRANTS
from bayesmooth.audit.similar import Similar
from bayesmooth.audit.table import Audit
from bayesmooth.audit.tags import split_tags
from bayesmooth.audit.thumbnails import make_thumbnails
from bayesmooth.cli import main
from bayesmooth.data.examples import Problem

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
from selenium.webdriver.chrome.options import Options  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")

Make = Callable[..., Audit]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--window-size=1400,1000",
)  # fmt: skip
PICTURES = np.random.default_rng(0).integers(0, 255, (300, 16, 16), dtype=np.uint8)


class Reader:
    """What a reader does with a report."""

    def __init__(self, driver: Any, folder: Path, make: Make) -> None:
        self.driver, self.folder, self.make = driver, folder, make

    def open(self, name: str, **changes: Any) -> None:
        path = self.folder / f"{name}.html"
        parts = ("title", "texts", "thumbnails", "small")
        shown = {key: changes.pop(key) for key in parts if key in changes}
        path.write_text(render(self.make(**changes), **shown), "utf-8")
        self.driver.get(path.as_uri())

    def phone(self) -> None:
        self.screen(390, 844, deviceScaleFactor=2, mobile=True)

    def screen(self, width: int, height: int, **more: Any) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**metrics, **more})

    def show(self, what: str) -> None:
        self.click(f"#shows [data-show='{what}']")

    def seen(self, selector: str) -> int:
        """How many such elements are wholly in the window."""
        script = """return [...document.querySelectorAll(arguments[0])].filter((node) => {
            const box = node.getBoundingClientRect();
            return box.width && box.top >= 0 && box.left >= 0 && box.bottom <= innerHeight && box.right <= innerWidth;
        }).length"""
        return self.js(script, selector)

    def cut(self, selector: str) -> list[str]:
        """What such elements do not show whole."""
        script = """return [...document.querySelectorAll(arguments[0])].filter((node) => node.clientWidth
            && (node.scrollWidth > node.clientWidth + 1 || node.scrollHeight > node.clientHeight + 1)
        ).map((node) => node.textContent)"""
        return self.js(script, selector)

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def count(self, selector: str) -> int:
        return len(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def text(self, selector: str) -> str:
        return self.js("return document.querySelector(arguments[0]).textContent", selector)

    def texts(self, selector: str) -> list[str]:
        script = (
            "return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)"
        )
        return self.js(script, selector)

    def listed(self) -> list[int]:
        script = "return [...document.querySelectorAll('#list .item')].map((item) => Number(item.id.slice(5)))"
        return self.js(script)

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
        for old in self.folder.glob("decisions*.csv"):
            old.unlink()
        self.click("#save")
        self.until(lambda: any(p.stat().st_size for p in self.folder.glob("decisions*.csv")))
        return next(self.folder.glob("decisions*.csv"))

    def load(self, text: str) -> None:
        path = self.folder / "loaded.csv"
        path.write_text(text)
        self.find("#file").send_keys(str(path))
        self.until(lambda: self.find("#notice").is_displayed())

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
    if not (CHROMIUM and DRIVER):
        missing = "chromium and chromedriver are not installed"
        pytest.fail(missing) if os.environ.get("CI") == "true" else pytest.skip(missing)
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


def similar_to_the_next(data: Audit) -> Similar:
    """Neighbours that are easy to name: positions 8, 9 and 10 have the label, 11, 12 and 13 the suggested one."""
    index = wrong_examples(data)
    near = (np.tile(some, (len(index), 1)) for some in ([8, 9, 10], [11, 12, 13]))
    return Similar(index, *near)


# ---- What a visitor sees ----


@pytest.mark.parametrize("content", ["pictures", "texts", "rows", "nothing"])
def test_worst_ten_are_in_sight_before_any_click(reader: Reader, content: str) -> None:
    shown = {
        "pictures": {"thumbnails": make_thumbnails(PICTURES, range(300))},
        "texts": {"texts": ["a text of several words that goes on for a while " * 5] * 300},
        "rows": {"texts": [{"age": 30, "city": "Lima", "job": "none", "more": 1}] * 300},
        "nothing": {},
    }[content]
    reader.open(f"first-{content}", **shown)
    assert reader.text("h1") == reader.make().headline
    assert reader.seen("#list .item") >= 10
    assert reader.seen("#detail .action") == 5
    assert reader.listed()[:10] == wrong_examples(reader.make())[:10].tolist()
    assert reader.count("#matrix td button") == 16
    if content == "pictures":
        painted = """const canvas = document.querySelector('#detail canvas.thumb');
            const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            return new Set(new Uint32Array(pixels.buffer)).size"""
        reader.until(lambda: reader.js(painted) > 20)


LONG_NAMES = (
    "balance_not_updated_after_bank_transfer", "card_payment_wrong_exchange_rate", "cat", "beneficiary_not_allowed",
)  # fmt: skip


@pytest.mark.parametrize("content", ["pictures", "texts", "rows"])
@pytest.mark.parametrize("size", [(1366, 768), (1440, 900)])
def test_evidence_and_buttons_are_in_sight_on_a_laptop(
    reader: Reader, content: str, size: tuple[int, int]
) -> None:
    """The example, its nearest with either label, three classes, five buttons; nothing cut, and no jargon."""
    near = similar_to_the_next(reader.make())
    row = {f"a_rather_long_column_{k}": f"value-{k}-that-is-long" for k in range(10)}
    shown = {
        "pictures": {
            "thumbnails": make_thumbnails(PICTURES, wrong_examples(reader.make())),
            "small": make_thumbnails(PICTURES, near.given[0], 16),
        },
        "texts": {"texts": [f"text {i} which goes on for a while " * 6 for i in range(300)]},
        "rows": {"texts": [{**row, "last": i} for i in range(300)]},
    }[content]
    reader.screen(*size)
    shares = np.tile([0.1, 0.5, 0.05, 0.35], (300, 1))
    reader.open(
        f"laptop-{content}", similar=near, class_names=LONG_NAMES, probabilities=shares, **shown
    )
    assert reader.seen("#detail .action") == 5
    assert reader.seen("#detail .bar") == 3
    beside = ".compare thead th" if content == "rows" else ".neighbour"
    assert reader.seen(beside) == (3 if content == "rows" else 6)
    assert not any(word in reader.find("body").text for word in ("Disagreement 0", "rank "))
    assert reader.js("return document.documentElement.scrollWidth") <= size[0]
    reader.press("r", "x")
    assert reader.texts(".badge") == ["Relabelled", "Removed"]
    assert reader.cut(".badge, .action, .item .verdict-line, .where") == []
    if content == "texts":
        assert reader.text(".near.given .neighbour").startswith(f"text {near.given[0][0]} ")
        reader.click(".near.given .neighbour")
        assert f"id {near.given[0][0]}" in reader.text(".where")
    if content == "rows":
        third = int(wrong_examples(reader.make())[2])
        values = [third, *near.given[0], *near.suggested[0]]
        assert reader.texts(".compare tbody tr")[-1] == "last" + "".join(map(str, values))
        right = """return Math.max(...[...document.querySelectorAll('.compare td')].map(
            (cell) => cell.getBoundingClientRect().right))"""
        assert reader.js(right) <= size[0]  # the rows of the suggested class too


def test_unusual_values_for_the_class_are_marked_and_come_first(reader: Reader) -> None:
    rows: list[dict[str, Any]] = [
        {"plain": 1, "size": 10 + i % 7, "city": "Lima" if i % 8 else "Rome"} for i in range(300)
    ]
    data = reader.make()
    first = int(wrong_examples(data)[0])
    rows[first] |= {"size": 99, "city": "Oslo"}
    reader.open("unusual", texts=rows)
    assert reader.texts(".compare td.unusual") == ["99", "Oslo"]
    assert reader.find(".compare td.unusual").get_attribute("title") == (
        f"Usual for “{data.class_names[data.given[first]]}”: 10 to 21"
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


def test_header_shows_the_rate_the_warning_and_the_notes(reader: Reader) -> None:
    reader.open("plain")
    assert not reader.find("#warning").is_displayed()
    assert not reader.find("#remarks").is_displayed()
    summary = {
        "noise_rate_words": "At least 6.0 % of the labels are wrong.",
        "warning": "The input is probably wrong.",
        "notes": ["column 'Unnamed: 0' is left out"],
    }
    reader.open("warned", summary=summary)
    assert reader.find("#remarks").text == "Column 'Unnamed: 0' is left out."
    assert reader.text("#lead").startswith(summary["noise_rate_words"])
    assert reader.find("#warning").text == summary["warning"]


def test_problems_name_all_their_examples(reader: Reader) -> None:
    few = Problem("empty", "2 texts are empty", ("4", "7"))
    many = Problem("unreadable", "9 pictures cannot be read", tuple(map(str, range(20, 29))))
    reader.open("problems", findings=Findings(problems=(few, many)))
    assert reader.text("#problems summary") == "The data has 2 problems beside its labels"
    reader.click("#problems summary")
    assert reader.text("#problems p") == "2 texts are empty 4, 7"
    assert reader.text("#problems details summary").endswith("20, 21, 22, 23, 24 and 4 more")
    reader.click("#problems details summary")
    assert reader.find("#problems details p").text == ", ".join(many.ids)


# ---- Narrowing the list ----


def test_chips_and_selects_and_search_filter_the_list(reader: Reader) -> None:
    data = reader.make(ids=tuple(f"image-{i:03d}" for i in range(300)))
    reader.open("filters", ids=data.ids)
    assert reader.text("#count") == f"{data.contradicted.sum()} of 300 examples: contradicted"
    name = QUADRANTS[MISLABELLED]
    flagged = data.quadrant == MISLABELLED
    reader.show(name)
    assert reader.text("#count") == f"{flagged.sum()} of 300 examples: {name}"
    reader.choose("#filter-given", "class 1")
    assert reader.text("#count").startswith(f"{(flagged & (data.given == 1)).sum()} of 300")
    reader.click("#clear")
    assert reader.text("#count") == f"{flagged.sum()} of 300 examples: {name}"
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
    reader.show("duplicates")
    assert reader.listed() == [20, 21, 10, 14]
    assert "different labels" in reader.text(".notes")
    reader.click(".copy")
    assert reader.text(".where b") == "2"
    for name, examples, words in [
        ("conflicts", [20, 21], "different labels"),
        ("outliers", [51, 50], "2.5 times as far"),
        ("leaks", [60], "id test-9, labelled “cat”"),
    ]:
        reader.show(name)
        assert reader.listed() == examples
        assert words in reader.text(".notes")
    reader.show("rare")
    assert reader.text("#count") == "75 of 300 examples: rare classes"
    assert "75 examples of “class 3”" in reader.text(".notes")


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


def test_large_audits_stay_small_pages(reader: Reader) -> None:
    pictures = make_thumbnails(PICTURES, range(300))
    reader.open("large", count=100_000, classes=10, thumbnails=pictures)
    nodes = "return document.querySelectorAll('*').length"
    assert (reader.folder / "large.html").stat().st_size < 4e6
    reader.show("all")
    assert reader.text("#pager-words") == "1 to 120 of 100,000"
    reader.click("#page-after")
    assert reader.text("#pager-words") == "121 to 240 of 100,000"
    reader.js("document.querySelector('#list').focus()")
    reader.press(Keys.END)
    assert reader.text(".where b") == "100,000"
    assert reader.js(nodes) < 2500
    reader.press(Keys.HOME, "k")
    assert reader.text("#progress-text") == "1 of 100,000 reviewed"
    reader.open("classes", count=4000, classes=1000)
    assert reader.js(nodes) < 2500


# ---- Decisions ----


def test_keyboard_review_downloads_a_csv_that_clean_applies(reader: Reader, tmp_path: Path) -> None:
    ids = tuple(f'=HYPERLINK("a,{i}")\n"' for i in range(300))
    data = reader.make(ids=ids)
    reader.open("review", ids=ids)
    reader.press("k", "r", "x", "s", "1", "c")
    reader.press("class 3", Keys.ENTER)
    assert reader.text("#progress-text").startswith("6 of ")
    first = wrong_examples(data)[:6]
    kinds = ["keep", "relabel", "remove", "skip", "relabel", "relabel"]
    targets = [None, data.suggested[first[1]], None, None, 0, 3]
    saved = reader.download()
    rows = {row.id: row for row in read_decisions(saved)}
    assert set(rows) == {ids[i] for i in first}
    assert "\"'=HYPERLINK" in saved.read_text()  # to a spreadsheet they are text
    for i, kind, target in zip(first, kinds, targets, strict=True):
        kept = target == data.given[i]
        new = "" if kept or target is None else data.class_names[target]
        row = rows[ids[i]]
        expected = (data.class_names[data.given[i]], "keep" if kept else kind, new)
        assert (row.given, row.decision, row.new_label) == expected
    with (tmp_path / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        names = [data.class_names[k] for k in data.given]
        csv.writer(file).writerows([("id", "label"), *zip(ids, names, strict=True)])
    clean(tmp_path / "labels.csv", saved, tmp_path / "clean.csv")
    with (tmp_path / "clean.csv").open(newline="", encoding="utf-8") as file:
        cleaned = dict(csv.reader(file))
    changed = {i: rows[ids[i]] for i in first}
    for i, row in changed.items():
        assert cleaned.get(ids[i]) == (
            None if row.decision == "remove" else row.new_label or row.given
        )
    assert len(cleaned) == 300  # and its header, without the one that was removed


def test_class_that_nobody_has_used_can_be_chosen(reader: Reader) -> None:
    reader.open("new class")
    reader.press("c", "tapir")
    assert reader.texts("#chooser-list [role=option] span") == ["tapir", "new class"]
    reader.press(Keys.ENTER)
    reader.press("c")
    reader.press("tap", Keys.ENTER)  # from now on it is one of them
    rows = read_decisions(reader.download())
    assert [row.new_label for row in rows] == ["tapir", "tapir"]


def test_spellings_of_a_label_are_merged_by_one_click(reader: Reader) -> None:
    data = reader.make(class_names=("cat", "dog", "Cat ", "cow"))
    given = np.where((data.given == 2) & (np.arange(300) > 20), 0, data.given)
    reader.open("spellings", class_names=data.class_names, given=given)
    assert reader.text("#problems p").startswith("Are “Cat ” and “cat” the same?")
    reader.click("#problems button")
    rows = read_decisions(reader.download())
    assert {row.id: row.new_label for row in rows} == {
        str(i): "cat" for i in np.flatnonzero(given == 2)
    }
    reader.press("u")
    assert reader.js("return document.querySelector('#save').disabled")


def test_suggestions_of_a_list_are_accepted_and_taken_back_at_once(reader: Reader) -> None:
    data = reader.make()
    reader.open("bulk")
    reader.press("k")
    reader.click("#matrix button[data-row='1'][data-column='2']")
    reader.click("#filter-button")
    reader.click("#accept-all")
    pair = (data.given == 1) & (data.suggested == 2)
    chosen = set(map(str, np.flatnonzero(pair))) - {str(wrong_examples(data)[0])}
    decided = read_decisions(reader.download())
    assert {row.id for row in decided if row.decision == "relabel"} == chosen
    reader.driver.refresh()
    reader.press("u")
    assert reader.text("#progress-text") == "1 of 30 reviewed"
    assert reader.text("#hits") == ""  # what was accepted at once was not looked at


def test_page_says_how_often_labels_were_wrong_and_when_all_are_reviewed(reader: Reader) -> None:
    reader.open("hits")
    reader.press(*"rrrrk")
    assert reader.text("#hits") == "Of the last 5 you looked at, 4 were wrong."
    reader.press(*"k" * 24)
    assert reader.text("#hits").endswith("0 were wrong. Looking further hardly pays.")
    assert not reader.find("#notice").is_displayed()
    reader.press("k")
    assert reader.text("#notice").startswith("Done: all 30 in this list are reviewed.")


def test_download_shows_the_command_that_applies_it(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "my flowers.csv"
    rng = np.random.default_rng(0)
    kind = np.arange(60) % 2
    x = 6.0 * kind + rng.normal(size=60)
    kind[7] ^= 1
    lines = [f"p{i},{x[i]},{'ab'[k]}" for i, k in enumerate(kind)]
    path.write_text("\n".join(["plant,width,species", *lines]))
    made = audit(path, label="species", id="plant", quiet=True)
    reader.make = lambda: made
    reader.open("command")
    reader.press("r")
    saved = reader.download()
    command = reader.text("#notice code")
    assert command == (
        "bayesmooth clean 'my flowers.csv' decisions.csv --out 'my flowers-cleaned.csv' "
        "--label species --id plant"
    )
    saved.rename(tmp_path / "decisions.csv")
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)[1:]) == 0
    assert "p7" in (tmp_path / "my flowers-cleaned.csv").read_text()
    assert reader.download().name == "decisions-2.csv"


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
    reader.click("#view-lines")
    reader.js("document.querySelector('#list').focus()")
    reader.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_UP)
    assert reader.text(".where b") == "2"
    reader.press(Keys.END)
    assert reader.text(".where b") == "300"
    assert reader.find("[aria-selected=true]").get_attribute("data-position") == "299"
    reader.press("/")
    reader.find("#search").send_keys("kkrr")
    assert reader.js("return document.querySelector('#save').disabled")


def test_decisions_outlive_a_reload_and_stay_with_their_audit(reader: Reader) -> None:
    reader.open("reload")
    reader.press("r", "s")
    reader.driver.refresh()
    assert reader.text("#progress-text") == "2 of 30 reviewed"
    assert reader.text(".where b") == "3"  # the first that is undecided
    reader.press("u")
    assert reader.text("#progress-text") == "1 of 30 reviewed"
    assert reader.text(".where b") == "2"
    reader.open("another", count=299)
    assert reader.text("#progress-text") == "0 of 30 reviewed"


def test_two_tabs_of_a_report_share_their_decisions(reader: Reader) -> None:
    reader.open("tabs")
    first = reader.driver.current_window_handle
    page = reader.driver.current_url
    reader.driver.switch_to.new_window("tab")
    try:
        reader.driver.get(page)
        second = reader.driver.current_window_handle
        reader.driver.switch_to.window(first)
        reader.press(*"kkkkk")
        reader.driver.switch_to.window(second)
        reader.until(lambda: reader.text("#progress-text") == "5 of 30 reviewed")
        reader.press(Keys.END, "r")
        assert reader.text("#progress-text") == "6 of 30 reviewed"
    finally:
        reader.driver.close()
        reader.driver.switch_to.window(first)
    reader.until(lambda: reader.text("#progress-text") == "6 of 30 reviewed")
    assert len(read_decisions(reader.download())) == 6


@pytest.mark.parametrize("end", ["\n", "", "\r\n"])
def test_downloaded_decisions_load_again(reader: Reader, end: str) -> None:
    reader.open("load")
    reader.press("r", "k", "x")
    saved = reader.download().read_text()
    reader.js("localStorage.clear()")
    reader.driver.refresh()
    assert reader.text("#progress-text") == "0 of 30 reviewed"
    # by hand, in a spreadsheet: without quotes, and perhaps without a last line end
    reader.load(saved.replace('"', "") + "nobody,class 0,keep," + end)
    assert reader.text("#progress-text") == "3 of 30 reviewed"
    assert reader.text("#notice") == "Loaded 3 decisions. 1 row does not belong to this audit."
    assert reader.download().read_text() == saved
    lines = [line.replace('"', "") for line in saved.splitlines()]
    reader.js("localStorage.clear()")
    reader.driver.refresh()
    reader.load(
        "\n".join([lines[0], *sorted(lines[1:], key=lambda line: "relabel" not in line)]) + end
    )
    assert reader.text("#notice") == "Loaded 3 decisions."


@pytest.mark.parametrize(
    "broken",
    [
        "Object.defineProperty(window, 'localStorage', {get() { throw new Error('denied') }})",
        "Storage.prototype.setItem = () => { throw new Error('full') }",
    ],
)
def test_page_works_where_storage_is_denied_or_full(reader: Reader, broken: str) -> None:
    command = "Page.addScriptToEvaluateOnNewDocument"
    script = reader.driver.execute_cdp_cmd(command, {"source": broken})
    try:
        reader.open("storage")
        reader.press("r", "k")
        assert reader.text("#progress-text").startswith("2 of ")
        assert "keeps nothing" in reader.text("#notice")
        assert len(read_decisions(reader.download())) == 2  # and so the page may close unasked
    finally:
        reader.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


def test_hostile_names_are_shown_and_not_run(reader: Reader) -> None:
    boom = "<script>window.boom = 1</script>"
    names = ("{{payload}}", boom, "</script>" + boom, "<img src=x onerror='window.boom=1'>")
    reader.open(
        "hostile", class_names=names, title="</title>" + boom, summary={boom: boom, "warning": boom},
        texts=[boom if i % 2 else {boom: boom} for i in range(300)], ids=tuple(f"{boom}{i}" for i in range(300)),
    )  # fmt: skip
    reader.click("#view-lines")
    reader.click("#matrix button[data-row='1'][data-column='2']")
    assert reader.text(".bar.given b") == names[1]
    assert reader.text(".bar.suggested b") == names[2]
    reader.press("c", boom + "2", Keys.ENTER)
    assert reader.js("return window.boom === undefined")
    assert reader.count("script") == 2
    assert reader.count("img") == 0


# ---- A phone, and contrast ----


def test_decision_buttons_stay_in_sight_on_a_phone(reader: Reader) -> None:
    reader.phone()
    data = reader.make()
    reader.open("phone-review", texts=["a long text that fills more than the screen " * 60] * 300)
    assert reader.js("return document.documentElement.scrollWidth") <= 390
    assert reader.cut(".item .verdict-line") == []
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
    reader.click(f"#item-{wrong_examples(data)[1]}")
    assert reader.seen("#detail .action") == 5
    assert reader.text(".where b") == "2"


def test_text_has_the_contrast_of_level_aa_in_both_themes(reader: Reader) -> None:
    reader.open("contrast")
    grounds = ("page", "card", "sunk", "tint")
    pairs = [(text, ground) for text in ("ink", "muted") for ground in grounds]
    pairs += [("on-accent", "accent"), ("card", "ink"), ("card", "removed"), ("ink", "alarm")]
    for theme in ("light", "dark"):
        reader.js("document.documentElement.style.colorScheme = arguments[0]", theme)
        for text, ground in pairs:
            assert contrast(reader, text, ground) >= 4.5, (theme, text, ground)
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


# ---- Tags and votes ----

TAGS = ("beach", "dog", "night")


def open_tags(reader: Reader, name: str, path: Path) -> Audit:
    """Three tags, each a direction, in columns of a CSV; two examples with wrong ones."""
    rng = np.random.default_rng(0)
    true = rng.integers(0, 2, (120, 3))
    rows = 6.0 * (2 * true - 1) + rng.normal(size=(120, 3))
    given = true.copy()
    given[7, 1] ^= 1
    given[20, [0, 2]] ^= 1
    lines = [",".join(map(str, [*x, *tags])) for x, tags in zip(rows.tolist(), given, strict=True)]
    path.write_text("\n".join(["x,y,z,beach,dog,night", *lines]))
    made = audit(path, labels=TAGS, quiet=True)
    reader.make = lambda: made
    reader.open(name, texts=[f"photo {i}" for i in range(120)])
    return made


def test_tags_are_accepted_and_edited_and_clean_writes_them(reader: Reader, tmp_path: Path) -> None:
    path, out = tmp_path / "photos.csv", tmp_path / "cleaned.csv"
    made = open_tags(reader, "tags", path)
    first, second = made.order[:2]
    words = [f"+\u2009{t}" for t in split_tags(str(made.tags_to_add[first]), ";")]
    words += [f"−\u2009{t}" for t in split_tags(str(made.tags_to_remove[first]), ";")]
    assert reader.text("#list .item .verdict-line") == "".join(words)
    assert reader.text(".action.relabel span") == "Accept " + "".join(words)
    reader.press("r", "c")
    reader.press("unicorn", Keys.ENTER)
    assert reader.find("#chooser-none").text == "No tag contains “unicorn”."
    for tag in TAGS:  # the second has none in the end, which no example had to have before
        reader.find("#chooser-input").clear()
        if tag in split_tags(made.class_names[made.given[second]], ";"):
            reader.find("#chooser-input").send_keys(tag, Keys.ENTER)
    reader.find("#chooser-input").send_keys(Keys.CONTROL, Keys.ENTER)
    reader.driver.refresh()
    assert reader.text("#progress-text").startswith("2 of ")
    saved = reader.download()
    assert reader.text("#notice code").endswith("--labels beach,dog,night")
    clean(path, saved, out, tags=TAGS)
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
    saved = reader.download().read_text()
    reader.js("localStorage.clear()")
    reader.driver.refresh()
    reader.load(saved)
    assert reader.text("#notice") == "Loaded 1 decision."
    assert reader.download().read_text() == saved


def test_annotators_have_a_page_and_votes_are_on_every_card(reader: Reader) -> None:
    rng = np.random.default_rng(0)
    true = np.arange(90) % 3
    rows = np.eye(3)[true] + rng.normal(size=(90, 3))
    wrong = rng.random((90, 4)) < [0.1, 0.3, 0.4, 0.6]
    votes = np.where(wrong, (true + 1)[:, None] % 3, true[:, None])
    votes[::2, 3] = -1
    made = audit(embeddings=rows, votes=votes, class_names=("ant", "bee", "cow"), quiet=True)
    reader.make = lambda: made
    reader.open("people", texts=[f"photo {i}" for i in range(90)])
    reader.show("all")
    assert reader.count("#list .item .votes") == reader.count("#list .item") == 90
    first, ballots = made.order[0], made.consensus.votes
    cast = zip(
        ballots.example.tolist(), ballots.annotator.tolist(), ballots.label.tolist(), strict=True
    )
    words = [f"{ballots.annotators[a]} {made.class_names[k]}" for i, a, k in cast if i == first]
    assert reader.texts("#detail .votes span") == words
    reader.click("#annotators-link")
    assert reader.texts("#people tbody th") == [one.name for one in made.consensus.annotators()]
    asked = reader.driver.find_elements(By.CSS_SELECTOR, "#people button")
    assert reader.count("#again .again") == sum(int(button.text) for button in asked) > 0
    some = int(asked[0].text)
    asked[0].click()
    assert reader.count("#again .again") == some
