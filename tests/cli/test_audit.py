"""The commands `audit` and `clean`, as a terminal runs them."""

import io
import sys

import numpy as np
import pytest

from bayesmooth import cli


@pytest.fixture
def table(tmp_path):
    """Two clear classes whose names no old terminal can show, and one wrong label."""
    rows = np.random.default_rng(0).normal(size=(40, 3)) + 9 * (np.arange(40)[:, None] % 2)
    names = np.array(["żółw", "猫"])[np.arange(40) % 2]
    names[7] = "żółw"
    lines = [f"{name},{','.join(map(str, row))}" for name, row in zip(names, rows, strict=True)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["label,a,b,c", *lines]), encoding="utf-8")
    return path


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_what_a_terminal_cannot_show_is_replaced_and_everything_is_saved(
    encoding, table, tmp_path, monkeypatch
):
    screen = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", screen)
    assert cli.main(["audit", str(table), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert (tmp_path / "out" / "audit.html").exists()
    screen.flush()
    assert b"   1  7" in screen.buffer.getvalue()


def test_the_audit_is_saved_before_anything_is_printed(table, tmp_path, monkeypatch):
    monkeypatch.setattr("bayesmooth.cli.audit._print", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["audit", str(table), "--out", str(tmp_path / "out"), "--quiet"])
    assert (tmp_path / "out" / "audit.csv").exists()
