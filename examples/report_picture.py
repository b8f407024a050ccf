"""The picture of the report in the docs: the first screen of an audit of CIFAR-10N, as one person labelled it.

    pip install 'bayesmooth[audit]' selenium
    python examples/report_picture.py ~/data docs/report.png

Needs chromium and its driver.
"""

import argparse
import shutil
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from selenium import webdriver

import bayesmooth
from bayesmooth.data import load

SCREEN = {"width": 1400, "height": 750, "deviceScaleFactor": 1, "mobile": False}


def photograph(page: Path, out: Path) -> None:
    """The first screen of a page as a PNG."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("chromium-browser") or ""
    for flag in ("--headless", "--no-sandbox", "--hide-scrollbars", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    service = webdriver.ChromeService(shutil.which("chromedriver"), log_output=subprocess.DEVNULL)
    with webdriver.Chrome(options=options, service=service) as browser:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", SCREEN)
        browser.get(page.resolve().as_uri())
        time.sleep(1)  # the thumbnails are decoded after the page has loaded
        browser.save_screenshot(str(out))


def main() -> None:
    """Write a folder of photos, audit it, photograph the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--encoder", help="plain, or the name or path of a model")
    arguments = parser.parse_args()
    photos = load("cifar10n", "train", arguments.data_dir, labels="random1")
    with TemporaryDirectory() as top:
        folder = Path(top, "photos")
        for number, picture in enumerate(photos.inputs[: arguments.images]):
            file = folder / photos.class_names[photos.labels[number]] / f"{number:05}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture.permute(1, 2, 0).numpy()).save(file)
        audited = bayesmooth.audit(folder, encoder=arguments.encoder)
        photograph(audited.save(Path(top, "audit"), title="Photos"), arguments.out)
    print(arguments.out)


if __name__ == "__main__":
    main()
