"""The examples run, on small files and with the plain encoder."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYESMOOTH_CACHE", str(tmp_path / "cache"))


def run(name: str, *arguments: object) -> str:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, arguments), "--encoder", "plain"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_every_example_has_a_test():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"audit_folder", "report_picture"}


def test_a_folder_with_known_errors_is_audited(data_dir):
    shown = run("audit_folder", data_dir, "--images", 200)
    assert float(shown.split("precision ")[1].split(",")[0]) > 0.2  # against .1 by chance


@pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")), reason="needs chromium and chromedriver"
)
def test_the_first_screen_of_a_report_is_photographed(tmp_path, data_dir):
    out = tmp_path / "report.png"
    run("report_picture", data_dir, out, "--images", 100)
    picture = np.asarray(Image.open(out))
    assert picture.shape[:2] == (750, 1400)
    assert len(np.unique(picture[500:].reshape(-1, picture.shape[2]), axis=0)) > 1000  # the photos
