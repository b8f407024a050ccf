import json

from reproduce import STUDIES
from reproduce.page import write_page


def test_the_page_begins_with_all_verdicts_and_the_way_to_each_study(smoke):
    page = (smoke.out / "index.html").read_text()
    studies = [json.loads(path.read_text())["claims"] for path in smoke.out.glob("*.json")]
    own = [claim["paper"].startswith("(not in") for claims in studies for claim in claims]
    first = page.partition("<section")[0]
    assert f"<p>of the paper {own.count(False)} claims: " in first
    assert f"; of ours {own.count(True)} claims: " in first
    for name in STUDIES:
        assert f"href='#{name}'" in first
        assert f"<section id='{name}'" in page


def test_files_that_are_not_a_studys_or_are_torn_do_not_spoil_the_page(smoke, tmp_path):
    for name in ("natural-noise", "mnist-noise"):
        for kind in ("json", "png"):
            source = smoke.out / f"{name}.{kind}"
            (tmp_path / source.name).write_bytes(source.read_bytes())
    (tmp_path / "notes.json").write_text("[]")
    (tmp_path / "mnist-noise.json").write_text('{"study": "mn')
    page = write_page(tmp_path, STUDIES).read_text()
    assert "id='natural-noise'" in page
    assert "mnist-noise</h2><p>Its files are damaged" in page


def test_one_page_shows_every_study(smoke):
    page = (smoke.out / "index.html").read_text()
    for study in STUDIES.values():
        assert f"id='{study.name}'" in page
        assert f"src='{study.name}.png'" in page
    assert "src='http" not in page
