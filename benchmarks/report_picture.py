"""The picture of the report in the docs; needs chromium and CIFAR-10N.

BAYESMOOTH_DATA=folder python -m benchmarks.report_picture
"""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image

import bayesmooth
from bayesmooth.data import load
from bayesmooth.optional import require

OUT = Path("docs/report.png")
EXAMPLES = 3_000
SCREEN = {"width": 1400, "height": 750, "deviceScaleFactor": 1, "mobile": False}


def main() -> None:
    """Audit photos as one person labelled them, and photograph the report."""
    photos = load("cifar10n", "train", labels="random1")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "photos")
        pixels = photos.inputs[torch.arange(EXAMPLES)].permute(0, 2, 3, 1).numpy()
        for i, picture in enumerate(pixels):
            target = folder / photos.class_names[photos.labels[i]] / f"{i:05}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(target)
        audited = bayesmooth.audit(folder)
        photograph(audited.save(Path(place, "audit"), title="Photos"), OUT)
    print(OUT)


def photograph(page: Path, out: Path) -> None:
    """The first screen of a page as a PNG."""
    webdriver = require("selenium.webdriver", extra="dev")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("chromium-browser") or ""
    for flag in ("--headless", "--no-sandbox", "--hide-scrollbars", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    service = webdriver.ChromeService(shutil.which("chromedriver"), log_output=subprocess.DEVNULL)
    browser = webdriver.Chrome(options=options, service=service)
    try:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", SCREEN)
        browser.get(page.resolve().as_uri())
        time.sleep(1)  # the thumbnails are decoded after the page has loaded
        browser.save_screenshot(str(out))
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
