"""The examples run, on small files and with the plain encoder."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayesmooth.audit import audit

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYESMOOTH_CACHE", str(tmp_path / "cache"))


def run(name: str, *arguments: object) -> str:
    command = [
        sys.executable,
        str(EXAMPLES / f"{name}.py"),
        *map(str, arguments),
        "--encoder",
        "plain",
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_every_example_has_a_test():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        "audit_folder",
        "embed_cifar10",
        "embed_sentiment",
        "gallery",
        "report_picture",
    }


def test_the_gallery_has_four_reports_of_which_one_shows_the_leak(tmp_path):
    printed = run("gallery", tmp_path)
    assert printed.count("MB, Audit(") == 4
    pages = {path.stem: path.read_text("utf-8") for path in tmp_path.glob("*.html")}
    assert set(pages) == {"photos", "texts", "table", "leak"}
    assert sum(map(len, pages.values())) < 3_000_000


def test_texts_become_a_table_that_the_audit_reads(tmp_path):
    for source in ("tweets", "amazonReviewSnippets"):
        rows = [(i, "good" if i % 2 else "bad") for i in range(20)]
        sign = {"good": 1, "bad": -1}
        truth = [f"{i}\t{sign[word]}.5\tso {word}, café" for i, word in rows]
        ratings = [f"{i}\t{sign[w]}.5\t.1\t[{-sign[w] if i == 4 else sign[w]}, 1]" for i, w in rows]
        for name, lines in (("GroundTruth", truth), ("anonDataRatings", ratings)):
            file = tmp_path / f"{source}_{name}.txt"
            file.write_text("\n".join(lines) + "\n", encoding="latin-1")
    assert "TF-IDF" in run("embed_sentiment", tmp_path, tmp_path / "out.npz")
    made = audit(str(tmp_path / "out.npz"), quiet=True)
    assert len(made) == 40
    assert {row["id"] for row in made.top(2)} == {"4", "24"}
    assert (made.given != made.clean).sum() == 2


def test_pictures_become_embeddings(tmp_path, data_dir):
    out = tmp_path / "out.npz"
    run("embed_cifar10", out, "--images", 60, "--data-dir", data_dir)
    assert np.load(out)["embeddings"].shape == (60, 224)


def test_a_folder_with_known_errors_is_audited(data_dir):
    shown = run("audit_folder", data_dir, "--images", 200)
    assert float(shown.split("precision ")[1].split(",")[0]) > 0.2  # against .1 by chance


@pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="needs chromium and chromedriver",
)
def test_the_first_screen_of_a_report_is_photographed(tmp_path, data_dir):
    out = tmp_path / "report.png"
    run("report_picture", data_dir, out, "--images", 100)
    picture = np.asarray(Image.open(out))
    assert picture.shape[:2] == (750, 1400)
    assert len(np.unique(picture[500:].reshape(-1, picture.shape[2]), axis=0)) > 1000  # the photos
