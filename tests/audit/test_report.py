import base64
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesmooth.audit import report
from bayesmooth.audit.report import render
from bayesmooth.audit.table import Audit
from bayesmooth.audit.thumbnails import Thumbnails
from bayesmooth.errors import InputError

Make = Callable[..., Audit]
HOSTILE = ("<script>alert(1)</script>", "</script>", "<!--<script>", "{{payload}}", "\u2028", "\ud800")


class Page(HTMLParser):
    """The tags of a page, and the text of its scripts and styles, as a browser splits them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.blocks: list[tuple[dict[str, str | None], str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.blocks.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem in ("script", "style"):
            attrs, text = self.blocks[-1]
            self.blocks[-1] = (attrs, text + data)


def payload_of(page: str) -> dict:
    (text,) = [text for attrs, text in Page(page).blocks if attrs.get("id") == "payload"]
    return json.loads(text)


def column_of(payload: dict, name: str) -> np.ndarray:
    column = payload["columns"][name]
    dtype = {"Uint8Array": "<u1", "Uint16Array": "<u2", "Float32Array": "<f4"}[column["type"]]
    return np.frombuffer(base64.b64decode(column["data"]), dtype)


def test_columns_come_back_from_the_page_as_they_went_in(made_up: Make) -> None:
    data = made_up()
    payload = payload_of(render(data))
    for name in ("given", "suggested", "quadrant"):
        np.testing.assert_array_equal(column_of(payload, name), getattr(data, name))
    for name in ("disagreement", "ambiguity"):
        np.testing.assert_array_equal(column_of(payload, name), np.float32(getattr(data, name)))
    probability = column_of(payload, "suggestedProbability") / 65535
    np.testing.assert_allclose(probability, data.suggested_probability, atol=1e-5)
    assert payload["classes"] == list(data.class_names)


def test_more_than_256_classes_keep_their_numbers(made_up: Make) -> None:
    data = made_up(count=900, classes=300)
    np.testing.assert_array_equal(column_of(payload_of(render(data)), "given"), data.given)


def test_page_fetches_nothing_and_allows_only_its_own_script_and_style(made_up: Make) -> None:
    page = Page(render(made_up()))
    for _, attrs in page.tags:
        assert "src" not in attrs
        assert attrs.get("href", "#").startswith("#")
        assert not any(name.startswith("on") or name == "style" for name in attrs)
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    executable = [text for attrs, text in page.blocks if attrs.get("type") != "application/json"]
    assert len(executable) == 2
    for text in executable:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_hostile_names_stay_data(made_up: Make) -> None:
    data = made_up(classes=len(HOSTILE), class_names=HOSTILE, summary={"</script>": "<img onerror=boom()>"})
    page = render(data, title="</title><script>\udcff", texts=["</script><script>boom()</script>"] * 300)
    harmless = Page(render(made_up(classes=len(HOSTILE))))
    assert [tag for tag, _ in Page(page).tags] == [tag for tag, _ in harmless.tags]
    assert payload_of(page)["classes"] == list(HOSTILE)
    page.encode()  # a lone surrogate is escaped, so that the file can be written


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=30))
def test_any_text_survives_the_embedding(text: str) -> None:
    embedded = report._to_json([text])
    assert json.loads(embedded) == [text]
    assert not re.search("[<>&\u2028\u2029]", embedded)
    embedded.encode()


def test_key_of_the_decisions_follows_the_content_and_not_the_date(made_up: Make) -> None:
    key = payload_of(render(made_up()))["key"]
    assert payload_of(render(made_up(), created="later"))["key"] == key
    assert payload_of(render(made_up(count=299)))["key"] != key


def test_page_says_how_many_flagged_labels_are_wrong_where_the_truth_is_known(made_up: Make) -> None:
    data = made_up()
    assert payload_of(render(data))["truth"] == ""
    known = payload_of(render(made_up(clean=data.suggested)))["truth"]
    assert known.endswith("30 of these 30 labels are wrong (100.0 %), and none was missed.")
    clean = np.where(np.arange(300) < 100, (data.given + 1) % 4, data.given)
    known = payload_of(render(made_up(clean=clean)))["truth"]
    assert "10 of these 30 labels are wrong (33.3 %), and 90 of 100 wrong" in known


def test_three_likeliest_classes_come_with_their_probabilities(made_up: Make) -> None:
    assert payload_of(render(made_up()))["label"]["likeliest"] is None
    shares = np.tile([0.1, 0.5, 0.05, 0.35], (300, 1))
    likeliest = payload_of(render(made_up(probabilities=shares)))["label"]["likeliest"]
    classes = np.frombuffer(base64.b64decode(likeliest["names"]["data"]), np.uint8)
    assert classes.reshape(300, 3)[7].tolist() == [1, 3, 0]
    packed = np.frombuffer(base64.b64decode(likeliest["shares"]["data"]), np.uint16)
    np.testing.assert_allclose(packed.reshape(300, 3)[7] / 65535, [0.5, 0.35, 0.1], atol=1e-5)


def test_table_rows_share_their_keys(made_up: Make) -> None:
    rows = [{"age": np.int64(30), "city": "Lima"}, {"age": float("nan")}, None] + ["text"] * 297
    texts = payload_of(render(made_up(), texts=rows))["texts"]
    assert texts["keys"] == ["age", "city"]
    assert texts["rows"][:4] == [[30, "Lima"], ["nan", None], None, "text"]


def test_positions_are_not_written_out_as_ids(made_up: Make) -> None:
    assert payload_of(render(made_up()))["ids"] is None
    ids = tuple(f"img/{i}.png" for i in range(300))
    assert payload_of(render(made_up(ids=ids)))["ids"] == list(ids)


def test_page_states_its_size(made_up: Make) -> None:
    page = render(made_up())
    stated = re.search(r"This file is (\d+) kB", page)
    assert stated
    assert int(stated[1]) == pytest.approx(len(page.encode()) / 1e3, abs=2)


def test_hundred_thousand_examples_fit_in_a_few_megabytes(made_up: Make) -> None:
    assert len(render(made_up(count=100_000))) < 2.5e6


def test_texts_and_thumbnails_that_are_not_of_these_examples_are_refused(made_up: Make) -> None:
    with pytest.raises(InputError, match="texts: has 1 entries"):
        render(made_up(), texts=["one"])
    tiles = Thumbnails(np.array([300]), 8, 1, 1, "image/png", (b"",), np.array([[8, 8]]))
    with pytest.raises(InputError, match="positions below 300"):
        render(made_up(), thumbnails=tiles)


def test_scripts_leave_nothing_from_data_as_markup() -> None:
    for name in report.SCRIPTS:
        text = report._part(name)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text), name


def test_text_has_the_contrast_of_level_aa_in_both_themes() -> None:
    colours = dict(re.findall(r"--([\w-]+): light-dark\((.+)\);", report._part("style.css")))
    grounds = ("page", "card", "sunk", "tint")
    pairs = [(text, ground, 4.5) for text in ("ink", "muted") for ground in grounds]
    pairs += [("on-accent", "accent", 4.5), ("card", "ink", 4.5), ("card", "removed", 4.5)]
    pairs += [("ink", "alarm", 4.5), ("accent", "card", 4.5)]
    pairs += [(f"q-{q}", "card", 3) for q in range(len(report.QUADRANTS))]
    for first, second, least in pairs:
        for theme in (0, 1):
            both = (colours[name].split(", ")[theme] for name in (first, second))
            low, high = sorted(map(luminance, both))
            assert (high + 0.05) / (low + 0.05) >= least, (first, second, theme)


def luminance(colour: str) -> float:
    """That of WCAG 2, of a colour as six hexadecimal digits."""
    channel = np.array(list(bytes.fromhex(colour.removeprefix("#")))) / 255
    linear = np.where(channel <= 0.04045, channel / 12.92, ((channel + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])
