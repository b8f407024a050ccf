"""The page: what it carries, what it may do, its pictures; and what a notebook shows."""

import base64
import hashlib
import io
import json
import re
import sys
import types
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesmooth.audit import audit, report
from bayesmooth.audit.findings import Findings
from bayesmooth.audit.report import choose_pictures, encode_pictures, render
from bayesmooth.audit.table import Audit
from bayesmooth.data import Labels, Source, open_source

Image = pytest.importorskip("PIL.Image", reason="needs pillow, the extra data")
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
    many = made_up(count=900, classes=300)
    np.testing.assert_array_equal(column_of(payload_of(render(many)), "given"), many.given)


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
    texts, summary = ["</script><script>boom()</script>"] * 300, {"</script>": "<img onerror=boom()>"}
    data = made_up(classes=len(HOSTILE), class_names=HOSTILE, summary=summary, texts=texts)
    page = render(data, title="</title><script>\udcff")
    harmless = Page(render(made_up(classes=len(HOSTILE))))
    assert [tag for tag, _ in Page(page).tags] == [tag for tag, _ in harmless.tags]
    assert payload_of(page)["classes"] == list(HOSTILE)
    page.encode()  # a lone surrogate is escaped, so that the file can be written


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=30))
def test_any_text_survives_the_embedding(text: str) -> None:
    embedded = report.to_json([text])
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


def test_texts_are_carried_as_columns_the_worst_first_and_positions_are_no_ids(
    made_up: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_up(texts=[{"age": 30, "city": "Lima"}] * 300)
    payload = payload_of(render(made))
    assert payload["ids"] is None
    assert payload["texts"] == {"keys": ["age", "city"], "rows": [["30", "Lima"]] * 300}
    ids = tuple(f"img/{i}.png" for i in range(300))
    monkeypatch.setattr(report, "TEXTS", 4 * 7 + 1)
    payload = payload_of(render(made_up(texts=["long"] * 300, ids=ids)))
    assert payload["ids"] == list(ids)
    kept = {i for i, text in enumerate(payload["texts"]["rows"]) if text}
    assert kept == set(made.order[:7].tolist())


def test_page_states_its_size_which_is_a_few_megabytes_at_most(made_up: Make) -> None:
    page = render(made_up())
    stated = re.search(r"This file is (\d+) kB", page)
    assert stated
    assert int(stated[1]) == pytest.approx(len(page.encode()) / 1e3, abs=2)
    assert len(render(made_up(count=100_000))) < 2.5e6


def test_scripts_leave_nothing_from_data_as_markup() -> None:
    for name in report.SCRIPTS:
        text = read_part(name)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text), name


def test_text_has_the_contrast_of_level_aa_in_both_themes() -> None:
    colours = dict(re.findall(r"--([\w-]+): light-dark\((.+)\);", read_part("style.css")))
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


def read_part(name: str) -> str:
    return (files("bayesmooth.audit.report") / name).read_text("utf-8")


def luminance(colour: str) -> float:
    """That of WCAG 2, of a colour as six hexadecimal digits."""
    channel = np.array(list(bytes.fromhex(colour.removeprefix("#")))) / 255
    linear = np.where(channel <= 0.04045, channel / 12.92, ((channel + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def decode(picture: tuple[int, int, int, str]) -> np.ndarray:
    """The pixels of a picture as the page has it."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(picture[3]))).convert("RGB")).astype(int)


def flat_images(count: int, side: int = 16) -> torch.Tensor:
    """Images of one grey each, which every encoder keeps nearly."""
    greys = torch.linspace(0, 255, count).to(torch.uint8)
    return greys[:, None, None, None].repeat(1, 1, side, side)


def test_each_picture_shows_its_example_in_grey_colours_or_reals() -> None:
    images, index = flat_images(300), list(range(300))[::-1]
    for same in (images, images / 255.0, images.expand(-1, 3, -1, -1)):
        shown = encode_pictures(same, index)
        assert [picture[0] for picture in shown] == index
        for i in (0, 17, 299):
            assert abs(decode(shown[i]) - int(images[index[i], 0, 0, 0])).mean() < 4


def test_large_images_shrink_with_their_proportions_and_small_ones_stay() -> None:
    wide = torch.full((1, 1, 100, 400), 255, dtype=torch.uint8)
    (shown,) = encode_pictures(wide, [0], size=96)
    assert shown[1:3] == (96, 24)
    assert (decode(shown) > 250).all()
    assert encode_pictures(flat_images(3, side=8), range(3), size=96)[0][1:3] == (8, 8)


def test_budget_ends_the_pictures() -> None:
    noise = torch.randint(0, 255, (90, 1, 100, 100), dtype=torch.uint8)
    every = encode_pictures(noise, range(90))
    part = encode_pictures(noise, range(90), budget=sum(len(base64.b64decode(picture[3])) for picture in every) // 2)
    assert 0 < len(part) < len(every) == 90
    assert part == every[: len(part)]
    assert len(encode_pictures(noise, range(90), budget=1)) == 1


def test_pictures_are_those_of_the_worst_labels_what_was_found_and_the_sample(made_up: Make, tmp_path: Path) -> None:
    greys = np.linspace(0, 255, 40).astype(np.uint8)
    for i, grey in enumerate(greys):
        Image.fromarray(np.full((20, 20), grey)).save(tmp_path / f"{i}.png")
    content = {"embeddings": np.random.default_rng(0).normal(size=(40, 4)), "labels": np.arange(40) % 4}
    np.savez(tmp_path / "pets.npz", **content, images=np.array([f"{i}.png" for i in range(40)]))
    first = np.where(np.arange(40) < 38, -1, 38)
    found = Findings(duplicate_of=first, conflicting=first >= 0, outlier_score=np.zeros(40))
    made = made_up(40, examples=open_source(tmp_path / "pets.npz"), findings=found)
    (drawn,) = choose_pictures(made, 10)
    assert [picture[0] for picture in drawn] == [*made.order[:10], 38, 39]
    for picture in drawn:
        assert abs(decode(picture) - int(greys[picture[0]])).mean() < 4
    labels = Labels(torch.arange(60) % 3, tuple("abc"))
    rows = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)) + 3 * labels.numbers[:, None]
    made = audit(Source(rows, labels, pictures=flat_images(60)), budget=20, quiet=True)
    large, small = ({picture[0] for picture in some} for some in choose_pictures(made, 1))
    assert {*made.review.queue.tolist()} <= large
    assert small
    assert not large & small


def test_report_of_a_folder_names_pictures_below_it_only(tmp_path: Path) -> None:
    for name, grey in (("dark", 20), ("light", 220)):
        (tmp_path / name).mkdir()
        for i in range(6):
            Image.fromarray(np.full((40, 60, 3), grey + i, np.uint8)).save(tmp_path / name / f"{i}.png")
    page = render(audit(tmp_path, encoder="plain", cache=tmp_path / "cache", quiet=True), thumbnails=5)
    assert '"dark/0.png"' in page
    assert str(tmp_path) not in page
    assert ',60,40,"' in page  # whole pictures, not squares cut out of them


def test_a_notebook_shows_the_ten_worst_and_the_report_inline(made_up: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    names, summary = ("<b>", "bee", "cow", "dog"), {"warning": "look at the input"}
    shown = made_up(class_names=names, summary=summary)._repr_markdown_()
    assert all(f"| {i} | " in shown for i in made_up().order[:10])
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown
    assert "- **look at the input**" in shown
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    made_up().show()
    assert opened.pop().startswith("file://")
    ipython = types.SimpleNamespace(display=types.SimpleNamespace(display=opened.append, HTML=str))
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    made_up().show()
    assert opened[0].startswith('<iframe srcdoc="&lt;!doctype html&gt;')
