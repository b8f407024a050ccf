"""A browser, and what a reader does in it with a report."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from bayesmooth.audit.report import render
from bayesmooth.audit.table import Audit

REQUIRED = os.environ.get("CI") == "true"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--window-size=1400,1000",
)  # fmt: skip


def import_selenium(part: str = "") -> Any:
    """What drives the browser. Without it, or without the browser, tests are skipped; with CI=true they fail."""
    name = f"selenium.webdriver.{part}".rstrip(".")
    return import_module(name) if REQUIRED else pytest.importorskip(name, reason="needs selenium")


class Reader:
    """What a reader does with a report."""

    def __init__(self, driver: Any, folder: Path, make: Callable[..., Audit]) -> None:
        self.driver, self.folder, self.make = driver, folder, make

    def open(self, name: str, title: str = "", **changes: Any) -> None:
        path = self.folder / f"{name}.html"
        path.write_text(render(self.make(**changes), title=title), "utf-8")
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
        return self.driver.find_element("css selector", selector)

    def count(self, selector: str) -> int:
        return len(self.driver.find_elements("css selector", selector))

    def text(self, selector: str) -> str:
        return self.js("return document.querySelector(arguments[0]).textContent", selector)

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)"
        return self.js(script, selector)

    def listed(self) -> list[int]:
        script = "return [...document.querySelectorAll('#list .item')].map((item) => Number(item.id.slice(5)))"
        return self.js(script)

    def click(self, selector: str) -> None:
        element = self.find(selector)
        self.js("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def press(self, *keys: str) -> None:
        """Type as on a keyboard: whatever has the focus gets the keys."""
        import_selenium("common.action_chains").ActionChains(self.driver).send_keys(*keys).perform()

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
    webdriver = import_selenium()
    if not (CHROMIUM and DRIVER):
        missing = "chromium and chromedriver are not installed"
        pytest.fail(missing) if REQUIRED else pytest.skip(missing)
    folder = tmp_path_factory.mktemp("browser")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"download.default_directory": str(folder)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(DRIVER, log_output=subprocess.DEVNULL)
    browser = webdriver.Chrome(options=options, service=service)
    browser.folder = folder
    yield browser
    browser.quit()


@pytest.fixture
def reader(driver: Any, made_up: Callable[..., Audit]) -> Iterator[Reader]:
    reader = Reader(driver, driver.folder, made_up)
    reader.errors()  # what an earlier test left
    yield reader
    assert reader.errors() == []
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    reader.js("try { localStorage.clear() } catch {}")
