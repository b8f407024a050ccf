"""The commands `audit` and `clean`, as a terminal runs them."""

import io
import os
import sys

import numpy as np
import pytest

from bayesmooth import audit, cli
from bayesmooth.data import open_source
from bayesmooth.errors import InputError


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
def test_what_a_terminal_cannot_show_is_replaced_and_everything_is_saved(encoding, table, tmp_path, monkeypatch):
    screen = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", screen)
    assert cli.main(["audit", str(table), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert (tmp_path / "out" / "audit.html").exists()
    screen.flush()
    assert b"   1  9-" in screen.buffer.getvalue()


def test_the_audit_is_saved_before_anything_is_printed(table, tmp_path, monkeypatch):
    monkeypatch.setattr("bayesmooth.cli.audit._print", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["audit", str(table), "--out", str(tmp_path / "out"), "--quiet"])
    assert (tmp_path / "out" / "audit.csv").exists()


@pytest.mark.filterwarnings("default:Nothing can be told")
def test_the_terminal_shows_the_headline_and_no_more_than_the_labels_that_look_wrong(table, tmp_path, capsys):
    assert cli.main(["audit", str(table), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert "1 of 40 looks wrong" in shown
    assert [line.split()[0] for line in shown.splitlines() if line.startswith("  ")] == ["1"]
    y = np.arange(120) % 2
    rows = (1.4 * y - 0.7)[:, None] + np.random.default_rng(43).normal(size=(120, 2))
    rows[:20], y[:20] = rows[20:40], 1 - y[20:40]  # copies with other labels, of which one may be right
    np.savez(tmp_path / "copies.npz", embeddings=rows.astype(np.float32), labels=y)
    assert (
        cli.main(["audit", str(tmp_path / "copies.npz"), "--out", str(tmp_path / "c"), "--top", "99", "--quiet"]) == 0
    )
    changes = [line for line in capsys.readouterr().out.splitlines() if " → " in line]
    assert not any("0 → 0" in line or "1 → 1" in line for line in changes)
    lines = table.read_text("utf-8").splitlines()
    shuffled = [f"{lines[i % 7 + 1].split(',')[0]},{line.partition(',')[2]}" for i, line in enumerate(lines[1:])]
    table.write_text("\n".join([lines[0], *shuffled]), encoding="utf-8")
    assert cli.main(["audit", str(table), "--out", str(tmp_path / "nothing"), "--quiet"]) == 0
    shown, warned = capsys.readouterr()
    assert "warning: Nothing can be told of these labels:" in warned
    assert not [line for line in shown.splitlines() if line.startswith("  ")]


def test_an_audit_never_overwrites_what_it_audits(table, tmp_path, monkeypatch, capsys):
    mine = table.rename(tmp_path / "audit.csv")
    before = mine.read_bytes()
    (tmp_path / "linked").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    for source, out in (("audit.csv", "."), (mine, tmp_path / "linked")):
        assert cli.main(["audit", str(source), "--out", str(out), "--quiet"]) == 2
        assert "would be overwritten" in capsys.readouterr().err
    with pytest.raises(InputError, match="would be overwritten"):
        audit("audit.csv", quiet=True).save(".")
    assert mine.read_bytes() == before


@pytest.mark.parametrize("line", [("audit", "{table}"), ("clean", "{table}", "{decisions}")])
def test_ctrl_c_ends_in_one_line_and_leaves_nothing(line, table, tmp_path, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", stop)  # at the last moment
    decisions = tmp_path / "decisions.csv"
    decisions.write_text("id,given,decision,new_label\n")
    words = [word.format(table=table, decisions=decisions) for word in line]
    assert cli.main([*words, "--out", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "bayesmooth: interrupted"
    assert not list(tmp_path.rglob("*.tmp"))
    assert not [path for path in tmp_path.rglob("out*") if path.is_file()]


def test_clean_says_what_changed_and_a_wrong_decision_is_one_line(table, tmp_path, capsys):
    decisions = tmp_path / "decisions.csv"
    row = f"{open_source(table).ids[7]},żółw,relabel,猫\n"
    decisions.write_text(f"id,given,decision,new_label\n{row}", encoding="utf-8")
    out = tmp_path / "out.csv"
    assert cli.main(["clean", str(table), str(decisions), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"1 of 40 labels changed\n{out}\n"
    assert cli.main(["clean", str(out), str(decisions), "--out", str(tmp_path / "more.csv")]) == 2
    assert "but the decision was made on 'żółw'" in capsys.readouterr().err


def test_a_typo_after_an_audit_is_one_line(table, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["audit", str(table), "--quiet"]) == 0  # writes audit/
    for name in ("typo/", "ty\npo.csv"):
        assert cli.main(["audit", name, "--quiet"]) == 2
        assert "no such file" in capsys.readouterr().err


def test_a_file_whose_name_is_not_utf8_is_audited_and_saved(table, tmp_path):
    odd = tmp_path / os.fsdecode(b"caf\xe9.csv")
    try:
        table.rename(odd)
    except OSError:
        pytest.skip("this file system has no such names")
    title = ["--title", os.fsdecode(b"caf\xe9")]
    assert cli.main(["audit", str(odd), "--out", str(tmp_path / "out"), "--quiet", *title]) == 0
    assert "caf" in (tmp_path / "out" / "audit.html").read_text("utf-8")
