"""The picture of the report in the docs, `python -m benchmarks.report_picture`: needs chromium and MNIST."""

import argparse
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import bayesmooth
from bayesmooth.data import corrupt, load
from bayesmooth.optional import require

WIDTH, HEIGHT = 1280, 900


def main() -> None:
    """Audit 10,000 digits, one label in twenty flipped on purpose, and photograph the report."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report_picture", description=__doc__
    )
    parser.add_argument("--out", type=Path, default=Path("docs/report.png"))
    parser.add_argument(
        "--data-dir", type=Path, help="where MNIST is (default: $BAYESMOOTH_DATA, ./data)"
    )
    parser.add_argument("--examples", type=int, default=10_000)
    arguments = parser.parse_args()
    digits = load("mnist", data_dir=arguments.data_dir).subset(range(arguments.examples))
    audited = bayesmooth.audit(corrupt(digits, "symmetric", rate=0.05)[0])
    with tempfile.TemporaryDirectory() as folder:
        photograph(audited.save(folder, title="MNIST"), arguments.out)
    print(arguments.out)


def photograph(page: Path, out: Path, width: int = WIDTH, height: int = HEIGHT) -> None:
    """The first screen of a page as a PNG."""
    webdriver = require("selenium.webdriver", extra="dev")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("chromium-browser") or ""
    for flag in ("--headless", "--no-sandbox", "--hide-scrollbars", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    service = webdriver.ChromeService(shutil.which("chromedriver"), log_output=subprocess.DEVNULL)
    browser = webdriver.Chrome(options=options, service=service)
    try:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(page.resolve().as_uri())
        time.sleep(1)  # the thumbnails are decoded after the page has loaded
        browser.save_screenshot(str(out))
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
