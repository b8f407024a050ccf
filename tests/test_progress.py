import io
import sys

import pytest

from bayesmooth import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test turns."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def stderr(monkeypatch):
    def use(stream):
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return use


def test_piped_progress_is_a_line_every_half_minute_with_the_time_left(clock, stderr):
    out = stderr(io.StringIO())
    for _ in progress.track(range(100), description="reading"):
        clock[0] += 10
    lines = out.getvalue().splitlines()
    assert len(lines) == 100 * 10 // 30
    assert lines[0] == "reading 3/100 · 16 min left"
    assert lines[-1] == "reading 99/100 · 10 s left"


def test_the_time_left_does_not_count_work_done_before(clock, stderr):
    out = stderr(io.StringIO())
    with progress.bar(100, done=50) as bar:
        clock[0] = 60.0
        bar.update(75, "epoch 3/4", lambda: {"loss": "0.5"})
    assert out.getvalue() == "epoch 3/4 75/100 · loss 0.5 · 60 s left\n"


def test_quiet_is_silent_and_never_computes_the_figures(stderr):
    out = stderr(Terminal())
    with progress.bar(3, quiet=True) as bar:
        bar.update(1, "x", lambda: 1 / 0)
        bar.line("done")
    assert out.getvalue() == ""


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252"])
def test_a_bar_fits_in_forty_columns_of_any_terminal(encoding, stderr, clock, monkeypatch):
    class Narrow(io.TextIOWrapper):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "40")
    out = stderr(Narrow(io.BytesIO(), encoding=encoding, errors="replace"))
    with progress.bar(1000, description="embedding") as bar:
        clock[0] = 10.0
        bar.update(1000, numbers=lambda: {"accuracy": "81.2 %", "loss": "0.512"})
    out.flush()
    lines = out.buffer.getvalue().decode(encoding).split("\r")
    assert any("1000/1000" in line for line in lines)
    assert max(map(len, lines)) < 40


@pytest.mark.parametrize("place", [Terminal, io.StringIO])
def test_a_terminal_or_a_notebook_gets_one_line_that_is_written_over_and_leaves_nothing(
    place, stderr, clock, monkeypatch
):
    if place is io.StringIO:
        monkeypatch.setitem(sys.modules, "ipykernel", sys)
    out = stderr(place())
    with progress.bar(100, description="embedding") as bar:
        clock[0] = 10.0
        bar.update(10)
        clock[0] = 20.0
        bar.update(20)
        bar.line("a line that stays")
        bar.update(30)  # too early
        clock[0] = 30.0
        bar.update(40)
    drawn = [part.strip() for part in out.getvalue().split("\r") if part.strip()]
    assert drawn[:2] == ["embedding 10/100 · 2 min left", "embedding 20/100 · 80 s left"]
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().endswith(" \r")  # nothing is left of the last one
    assert "a line that stays\n" in out.getvalue()
