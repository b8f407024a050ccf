"""The report in a real browser, through the eyes and keys of its reader."""

import csv
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesmooth import audit, audit_votes
from bayesmooth.audit.decisions import Decision, clean, read_decisions
from bayesmooth.audit.findings import Findings
from bayesmooth.audit.neighbours import Similar
from bayesmooth.audit.table import MISLABELLED, QUADRANTS, Audit
from bayesmooth.cli import main
from bayesmooth.data import Source
from bayesmooth.data.labels import split_tags
from bayesmooth.data.source import Kind, Note
from bayesmooth.progress import format_percent
from tests.audit.browser import Reader, import_selenium
from tests.audit.conftest import make_tags

Keys = import_selenium("common.keys").Keys
PICTURES = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (300, 1, 16, 20), dtype=np.uint8))
pytestmark = pytest.mark.slow


def wrong_examples(data: Audit) -> np.ndarray:
    """The contradicted labels, most suspicious first: what the page lists when it opens."""
    members = np.flatnonzero(data.quadrant >= 2)
    return members[np.argsort(-data.disagreement[members], kind="stable")]


def similar_to_the_next(data: Audit) -> Similar:
    """Neighbours that are easy to name: positions 8, 9 and 10 have the label, 11, 12 and 13 the suggested one."""
    index = wrong_examples(data)
    near = (np.tile(some, (len(index), 1)) for some in ([8, 9, 10], [11, 12, 13]))
    return Similar(index, *near)


@pytest.mark.parametrize("content", ["pictures", "texts", "rows", "nothing"])
def test_worst_ten_are_in_sight_before_any_click(reader: Reader, content: str) -> None:
    shown = {
        "pictures": {"pictures": PICTURES},
        "texts": {"texts": ["a text of several words that goes on for a while " * 5] * 300},
        "rows": {"texts": [{"age": 30, "city": "Lima", "job": "none", "more": 1}] * 300},
        "nothing": {},
    }[content]
    reader.open(f"first-{content}", **shown)
    assert reader.text("h1") == reader.make().headline
    assert reader.seen("#list .item") >= 10
    assert reader.seen("#detail .action") == 5
    assert reader.listed()[:10] == wrong_examples(reader.make())[:10].tolist()
    if content == "pictures":
        painted = """const context = document.createElement('canvas').getContext('2d');
            context.drawImage(document.querySelector('#detail img.thumb'), 0, 0);
            return new Set(new Uint32Array(context.getImageData(0, 0, 20, 16).data.buffer)).size"""
        reader.until(lambda: reader.js(painted) > 20)
        size = reader.find(".stage img").size
        assert size["width"] > 1.2 * size["height"]  # as wide as it is
        reader.click(".stage .zoom")
        assert reader.find("#zoom img").size["width"] > 1.5 * size["width"]


LONG_NAMES = ("balance_not_updated_after_transfer", "card_payment_wrong_rate", "cat", "not_allowed")


@pytest.mark.parametrize("content", ["pictures", "texts", "rows"])
@pytest.mark.parametrize("size", [(1366, 768), (1440, 900)])
def test_evidence_and_buttons_are_in_sight_on_a_laptop(reader: Reader, content: str, size: tuple[int, int]) -> None:
    """The example, its nearest with either label, three classes, five buttons; nothing cut, and no jargon."""
    near = similar_to_the_next(reader.make())
    row = {f"a_rather_long_column_{k}": f"value-{k}-that-is-long" for k in range(10)}
    shown = {
        "pictures": {"pictures": PICTURES},
        "texts": {"texts": [f"text {i} which goes on for a while " * 6 for i in range(300)]},
        "rows": {"texts": [{**row, "last": i} for i in range(300)]},
    }[content]
    reader.screen(*size)
    shares = np.tile([0.1, 0.5, 0.05, 0.35], (300, 1))
    reader.open(f"laptop-{content}", similar=near, class_names=LONG_NAMES, probabilities=shares, **shown)
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


def test_header_shows_the_rate_the_warning_the_notes_and_all_problems(reader: Reader) -> None:
    reader.open("plain")
    for part in ("#warning", "#remarks", "#problems"):
        assert not reader.find(part).is_displayed()
    few = Note(Kind.EMPTY_TEXT, "2 texts are empty", ("4", "7"))
    many = Note(Kind.UNREADABLE, "9 pictures cannot be read", tuple(map(str, range(20, 29))))
    rate, warning = "At least 6.0 % of the labels are wrong.", "The input is probably wrong."
    summary = {"noise_rate_words": rate, "warning": warning, "notes": ["column 'x' is left out"]}
    reader.open("warned", summary=summary, findings=Findings(problems=(few, many)))
    assert reader.find("#remarks").text == "Column 'x' is left out."
    assert reader.text("#lead").startswith(rate)
    assert reader.find("#warning").text == warning
    assert reader.text("#problems summary") == "The data has 2 problems beside its labels"
    reader.click("#problems summary")
    assert reader.text("#problems p") == "2 texts are empty 4, 7"
    assert reader.text("#problems details summary").endswith("20, 21, 22, 23, 24 and 4 more")
    reader.click("#problems details summary")
    assert reader.find("#problems details p").text == ", ".join(many.ids)


def test_chips_and_selects_and_search_filter_the_list(reader: Reader) -> None:
    data = reader.make(ids=tuple(f"image-{i:03d}" for i in range(300)))
    reader.open("filters", ids=data.ids)
    assert reader.text("#count") == f"{data.contradicted.sum()} of 300 examples: look wrong"
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
    assert reader.text("#count").endswith("examples: look wrong")
    reader.press(Keys.ARROW_UP, *[Keys.ARROW_DOWN] * 3, *[Keys.ARROW_LEFT] * 2, Keys.ENTER)
    assert reader.text("#count").endswith("labelled “class 3”, looks like “class 0”")


def test_large_audits_stay_small_pages(reader: Reader) -> None:
    reader.open("large", count=100_000, classes=10, pictures=torch.zeros(100_000, 1, 2, 2, dtype=torch.uint8))
    assert (reader.folder / "large.html").stat().st_size < 4e6
    reader.show("all")
    reader.click("#page-after")
    assert reader.text("#pager-words") == "61 to 120 of 100,000"
    reader.find("#list").send_keys(Keys.END)
    assert reader.text(".where b") == "100,000"
    assert reader.count("*") < 1800
    reader.press(Keys.HOME, "k")
    assert reader.text("#progress-text") == "1 of 100,000 reviewed"
    reader.open("classes", count=4000, classes=1000)
    assert reader.count("*") < 1800


def test_keyboard_review_downloads_a_csv_that_clean_applies(reader: Reader, tmp_path: Path) -> None:
    ids = tuple(f'=HYPERLINK("a,{i}")\n"' for i in range(300))
    data = reader.make(ids=ids)
    reader.open("review", ids=ids)
    reader.press("k", "r", "x", "s", "1", "c")
    reader.press("class 3", Keys.ENTER)
    assert reader.text("#progress-text").startswith("6 of ")
    first, names = wrong_examples(data)[:6], data.class_names
    kinds = ("keep", "relabel", "remove", "skip", "relabel", "relabel")
    to = ("", names[data.suggested[first[1]]], "", "", "class 0", "class 3")
    labels = [names[k] for k in data.given]
    decided = [Decision(ids[i], labels[i], *how) for i, *how in zip(first, kinds, to, strict=True)]
    decided = [replace(d, decision="keep", new_label="") if d.given == d.new_label else d for d in decided]
    saved = reader.download()
    assert sorted(read_decisions(saved), key=str) == sorted(decided, key=str)
    assert "\"'=HYPERLINK" in saved.read_text()  # to a spreadsheet they are text
    with (tmp_path / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "label"), *zip(ids, labels, strict=True)])
    clean(tmp_path / "labels.csv", saved, tmp_path / "clean.csv")
    with (tmp_path / "clean.csv").open(newline="", encoding="utf-8") as file:
        cleaned = dict(csv.reader(file))
    wanted = dict(zip(ids, labels, strict=True)) | {d.id: d.new_label or d.given for d in decided}
    del wanted[ids[first[2]]]
    assert cleaned == {"id": "label", **wanted}


def test_class_that_nobody_has_used_can_be_chosen_unless_classes_are_named(reader: Reader, tmp_path: Path) -> None:
    reader.open("new class")
    reader.press("c", "tapir")
    assert reader.texts("#chooser-list [role=option] span") == ["tapir", "new class"]
    reader.press(Keys.ENTER)
    reader.press("c")
    reader.press("tap", Keys.ENTER)  # from now on it is one of them
    rows = read_decisions(reader.download())
    assert [row.new_label for row in rows] == ["tapir", "tapir"]
    (tmp_path / "pets.csv").write_text("label,x\n" + "0,1\n1,9\n" * 30)
    made = audit(tmp_path / "pets.csv", class_names=("cat", "dog"), quiet=True)
    reader.make = lambda: made
    reader.open("named")
    assert reader.text(".where").endswith("row 3")  # it has no id
    reader.press("c", "tapir", Keys.ENTER)
    assert reader.find("#chooser-none").text == "No class contains “tapir”."


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


def test_page_says_when_all_are_reviewed(reader: Reader) -> None:
    reader.open("all")
    reader.press(*"k" * 29)
    assert not reader.find("#notice").is_displayed()
    reader.press("k")
    assert reader.text("#notice").startswith("Done: everything in this list is reviewed.")


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
        "bayesmooth clean 'my flowers.csv' decisions.csv --out 'my flowers-cleaned.csv' --label species --id plant"
    )
    saved.rename(tmp_path / "decisions.csv")
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)[1:]) == 0
    assert "p7" in (tmp_path / "my flowers-cleaned.csv").read_text()
    assert reader.download().name == "decisions-2.csv"


def test_arrows_move_and_the_keys_sleep_while_one_types(reader: Reader) -> None:
    reader.open("arrows")
    reader.show("all")
    reader.find("#list").send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_UP)
    assert reader.text(".where b") == "2"
    reader.press(Keys.END)
    assert reader.text(".where b") == "300"
    assert reader.find("[aria-selected=true]").get_attribute("data-position") == "299"
    reader.press("/")
    reader.find("#search").send_keys("kkrr")
    assert not reader.find("#save").is_enabled()


def test_decisions_outlive_a_reload_are_undone_and_stay_with_their_audit(reader: Reader) -> None:
    reader.open("reload")
    reader.press("r", "s")
    reader.driver.refresh()
    assert reader.text("#progress-text") == "2 of 30 reviewed"
    assert reader.text(".where b") == "3"  # the first that is undecided
    for left in (1, 0, 0):
        reader.press("u")
        assert reader.text("#progress-text") == f"{left} of 30 reviewed"
        assert reader.text(".where b") == str(left + 1)
    assert not reader.find("#undo").is_enabled()
    reader.press("r")
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
    # as an editor may write it: without quotes, and perhaps without a last line end
    first, *rows = saved.replace('"', "").splitlines()
    rows.sort(key=lambda row: row.endswith(","))
    reader.load("\n".join([first, "nobody,class 0,keep,", *rows]) + end)
    assert reader.text("#progress-text") == "3 of 30 reviewed"
    assert reader.text("#notice") == "Loaded 3 decisions. 1 row does not belong to this audit."
    assert reader.download().read_text() == saved


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
        texts=[{boom: boom, "text": boom}] * 300, ids=tuple(f"{boom}{i}" for i in range(300)),
    )  # fmt: skip
    reader.click("#matrix button[data-row='1'][data-column='2']")
    assert reader.text(".bar.given b") == names[1]
    assert reader.text(".bar.suggested b") == names[2]
    reader.press("c", boom + "2", Keys.ENTER)
    assert reader.js("return window.boom === undefined")
    assert reader.count("script") == 2
    assert reader.count("img") == 0


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


TAGS = ("beach", "dog", "night")


def open_tags(reader: Reader, path: Path) -> Audit:
    """Three tags, each a direction, in columns of a CSV; two examples with wrong ones."""
    rows, given, _ = make_tags(120)
    lines = [",".join(map(str, [*x, *tags])) for x, tags in zip(rows.tolist(), given, strict=True)]
    path.write_text("\n".join(["x,y,z,beach,dog,night", *lines]))
    made = audit(path, tags=TAGS, quiet=True)
    reader.make = lambda: made
    reader.open("tags")
    return made


def test_tags_are_accepted_and_edited_and_clean_writes_them(reader: Reader, tmp_path: Path) -> None:
    path, out = tmp_path / "photos.csv", tmp_path / "cleaned.csv"
    made = open_tags(reader, path)
    first, second = made.order[:2]
    words = [f"+\u2009{t}" for t in split_tags(made.columns()["tags_to_add"][first], ";")]
    words += [f"−\u2009{t}" for t in split_tags(made.columns()["tags_to_remove"][first], ";")]
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
    saved = reader.download()
    assert reader.text("#notice code").endswith("--tags beach,dog,night")
    reader.js("localStorage.clear()")
    reader.driver.refresh()
    reader.load(saved.read_text())
    assert reader.text("#notice") == "Loaded 2 decisions."
    assert reader.text("#progress-text").startswith("2 of ")
    clean(path, saved, out, tags=TAGS)
    before, after = (np.genfromtxt(p, delimiter=",", skip_header=1) for p in (path, out))
    wanted = before.copy()
    carried = made.tags.vocabulary.table(made.class_names).numpy()
    wanted[first, 3:], wanted[second, 3:] = carried[made.suggested[first]], 0
    np.testing.assert_array_equal(after, wanted)
    changes = made.count_changes().sum(0)
    tag = int(changes.argmax())
    reader.click(f"#matrix button[data-column='{tag}']")
    assert reader.text("#count").startswith(f"{changes[tag]} of 120")
    reader.click("#clear")
    reader.choose("#filter-given", "dog")
    assert reader.text("#count").startswith(f"{int(made.tags.given[:, 1].sum())} of 120")


def test_annotators_have_a_page_and_votes_are_on_every_card(reader: Reader) -> None:
    rng = np.random.default_rng(0)
    true = np.arange(90) % 3
    rows = np.eye(3)[true] + rng.normal(size=(90, 3))
    wrong = rng.random((90, 4)) < [0.1, 0.3, 0.4, 0.6]
    votes = np.where(wrong, (true + 1)[:, None] % 3, true[:, None])
    votes[::2, 3] = -1
    made = audit_votes(rows, votes, class_names=("ant", "bee", "cow"), quiet=True)
    reader.make = lambda: made
    reader.open("people")
    reader.show("all")
    assert reader.count("#list .item .votes") == reader.count("#list .item") == 60
    first, ballots = made.order[0], made.consensus.votes
    cast = zip(ballots.example.tolist(), ballots.annotator.tolist(), ballots.label.tolist(), strict=True)
    words = [f"{ballots.annotators[a]} {made.class_names[k]}" for i, a, k in cast if i == first]
    assert reader.texts("#detail .votes span") == words
    reader.click("#annotators-link")
    assert reader.texts("#people tbody th") == [one["annotator"] for one in made.summary["annotators"]]
    assert reader.count("#again .again") > 0
    reader.click("#again .again")
    assert reader.seen("#detail .votes") == 1


@pytest.fixture
def sampled(noisy_clouds: Callable[..., Source]) -> Audit:
    """An audit of 300 examples whose queue of 60 somebody asked for."""
    return audit(noisy_clouds(0.2, 300), budget=60, quiet=True)


def judged(made: Audit, some: np.ndarray) -> dict[int, bool]:
    """Whether these labels are wrong."""
    return {int(i): bool(made.given[i] != made.clean[i]) for i in some}


def test_the_sample_tells_the_share_of_wrong_labels_that_python_tells(
    reader: Reader, sampled: Audit, tmp_path: Path
) -> None:
    reader.make = lambda **_: sampled
    reader.open("sample")
    queue, review = sampled.review.queue, sampled.review
    assert reader.listed() == queue.tolist()
    assert "→" not in "".join(reader.texts("#list .item"))  # nothing tells suspicious from drawn
    assert not reader.find("#rate").is_displayed()
    known = judged(sampled, queue[:-1])
    names = sampled.class_names
    lines = [
        f"{i},{names[sampled.given[i]]},{'relabel' if wrong else 'keep'},{names[sampled.clean[i]] if wrong else ''}"
        for i, wrong in known.items()
    ]
    head = "id,given,decision,new_label\n"
    reader.load(head + "\n".join(lines))
    assert not reader.find("#rate").is_displayed()  # the interval is meant for one look, at the end
    reader.show("contradicted")
    reader.show("queue")
    assert reader.text(".where b") == "60"  # the first that is undecided
    reader.press("s")
    assert reader.seen("#rate b") == 1
    told = [float(x) for x in reader.find("#rate b").get_attribute("data-rate").split()]
    rate = review.decide(known).rate()
    assert told == pytest.approx(rate[:3], abs=1e-6)
    words = "{} ({} to {}) of all".format(*map(format_percent, rate[:3]))
    assert reader.text("#rate").replace("\xa0", " ").startswith(words)  # as the terminal writes it
    assert f"from {rate.draws} reviewed labels" in reader.text("#rate")
    reader.show("all")
    items = reader.driver.find_elements("css selector", "#list .item")
    chances = {int(item.get_attribute("id")[5:]): item.get_attribute("data-chance") for item in items}
    for i, chance in chances.items():
        assert float(chance) == pytest.approx(review.decide(known).chance[i], abs=1e-6)
    saved = read_decisions(reader.download())
    assert {row.id: float(row.drawn) for row in saved} == {str(i): review.drawn[i] for i in queue}
    again = audit(sampled.examples, decisions=next(reader.folder.glob("decisions*.csv")), quiet=True)
    assert again.summary["error_rate"]["estimate"] == pytest.approx(told[0], abs=1e-6)
    by_class, reader.make = reader.texts("#rate td"), lambda **_: again
    reader.open("sample-again")  # its labels are corrected, and the rates are of those before
    assert reader.texts("#rate td") == by_class
    assert len(by_class) == len(again.summary["error_rates"]) > 1


def test_a_second_report_has_the_decisions_of_the_first_and_those_on_a_list_tell_no_share(
    reader: Reader, sampled: Audit
) -> None:
    reader.make = lambda **_: sampled
    reader.open("round-one")
    reader.show("contradicted")
    reader.press(*"rkrkrkrkrkrkrks")
    first = set(read_decisions(saved := reader.download()))
    assert {row.drawn for row in first} == {""}  # the reader chose them: they are no sample
    again = audit(sampled.examples, decisions=saved, budget=60, quiet=True)
    assert "error_rate" not in again.summary
    reader.make = lambda **_: again
    reader.open("round-two")
    reader.show("all")
    assert reader.listed() == again.order[:60].tolist()  # what was decided comes last
    reader.press(Keys.END, "k")  # its label as it is now; then comes the first that is undecided, after a skipped one
    assert reader.text(".where b") == "2"
    reader.press("k")
    new = set(read_decisions(reader.download())) - first
    assert [row.id for row in new] == [again.ids[again.order[1]]]  # one file has all, on the labels of the data


def test_every_tenth_decision_ranks_the_rest_anew(reader: Reader, sampled: Audit) -> None:
    reader.make = lambda **_: sampled
    reader.open("tenth")
    reader.show("all")
    top = sampled.order[:10]
    assert reader.listed()[:10] == top.tolist()
    reader.press(Keys.HOME)
    for _ in top[:9]:
        reader.press("k")
    assert "No. " in reader.text("#list .item:nth-child(20)")
    reader.press("k")
    chance = sampled.review.decide(dict.fromkeys(map(int, top), False)).chance
    rest = [i for i in np.argsort(-chance, kind="stable").tolist() if i not in set(top.tolist())]
    assert reader.listed() == [*top.tolist(), *rest[:50]]
    assert reader.text(".where b") == "11"
    assert "% wrong" in reader.text("#list .item:nth-child(20)")
    reader.click("#undo")
    assert reader.listed()[:10] == top.tolist()
    assert "No. " in reader.text("#list .item:nth-child(20)")
