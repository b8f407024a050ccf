import re

import pytest

from bayesmooth.cli import main
from reproduce import STUDIES
from reproduce.study import SCALES, TEXTS


@pytest.mark.parametrize("scale", [pytest.param(s, marks=[pytest.mark.slow] * (s == "full")) for s in SCALES])
def test_studies_lists_what_each_shows_and_its_runs(scale, capsys):
    assert main(["studies", "--scale", scale]) == 0
    said = capsys.readouterr().out
    for name in SCALES[scale].studies or STUDIES:
        assert re.search(rf"^{name} +{re.escape(TEXTS[name]['title'])}: ", said, re.M)
    assert re.search(r"all: \d+ runs$", said, re.M)


def test_reproduce_says_where_it_wrote(tmp_path, capsys):
    out, places = tmp_path / "results", ["--out", str(tmp_path / "results")]
    places += ["--runs", str(tmp_path / "runs")]
    assert main(["reproduce", "sigmoid-noise", "--scale", "smoke", *places, "--quiet"]) == 0
    said = capsys.readouterr().out
    assert str(out / "sigmoid-noise") in said
    assert str(out / "index.html") in said
    assert {file.suffix for file in out.iterdir()} == {".png", ".csv", ".json", ".html"}


def test_the_time_of_a_day_is_measured_and_told_before_it_starts(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(SCALES, "day", SCALES["smoke"])
    places = ["--out", str(tmp_path / "results"), "--runs", str(tmp_path / "runs"), "--quiet"]
    told = []
    monkeypatch.setattr("reproduce.commands.run_study", lambda job, where: told.append(capsys.readouterr().out) or [])
    assert main(["reproduce", "data-dependent", "--scale", "day", *places]) == 0
    assert re.search(r"a training step here: .*ivon \d+ ms", told[0])
    assert re.search(r"\d+ runs: about \d.* with 1 at a time", told[0])


def test_an_unknown_study_is_refused(capsys):
    assert main(["reproduce", "fig99"]) == 2
    assert "study 'fig99': must be all, or one of" in capsys.readouterr().err


def test_a_study_that_cannot_run_does_not_stop_the_others(tmp_path, capsys, monkeypatch):
    chosen = {name: STUDIES[name] for name in ("natural-noise", "sigmoid-noise")}
    monkeypatch.setattr("reproduce.commands.STUDIES", chosen)
    places = ["--out", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    wrong = ["--set", "train.seed=7"]  # which sigmoid-noise, without a run, has no use for
    assert main(["reproduce", "all", "--scale", "smoke", "--quiet", *places, *wrong]) == 1
    said = capsys.readouterr()
    assert "natural-noise: --set train.seed=7" in said.err
    assert (tmp_path / "results" / "sigmoid-noise.png").exists()


def test_a_wrong_option_is_told_once_and_not_by_every_study(capsys):
    assert main(["reproduce", "all", "--jobs", "0"]) == 2
    assert capsys.readouterr().err.splitlines() == ["bayesmooth: --jobs 0: must be > 0; leave it out for the default"]


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (["--seeds", "-1"], "--seeds -1: must be ≥ 1"),
        (["--noises", "none"], "--noises none: no run of data-dependent has it"),
    ],
)
def test_a_part_that_does_not_exist_is_refused(part, says, tmp_path, capsys):
    assert main(["reproduce", "data-dependent", "--out", str(tmp_path), *part]) == 2
    assert says in capsys.readouterr().err


def test_studies_without_the_wanted_noise_are_left_out(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr("reproduce.commands.run_study", lambda job, _: started.append(job) or [])
    line = ["reproduce", "all", "--scale", "overnight", "--noises", "0.4", "--out", str(tmp_path)]
    assert main(line) == 0
    assert [job.study.name for job in started] == ["data-dependent"]
