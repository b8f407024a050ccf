"""The settings: refused before anything is read, and the same in Python and on the command line."""

import inspect
from argparse import ArgumentParser
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from bayesmooth.audit import audit
from bayesmooth.audit.settings import Settings
from bayesmooth.cli.audit import add_audit
from bayesmooth.data import Columns
from bayesmooth.errors import InputError

NAMES = [*fields(Settings), *(field for field in fields(Columns) if field.name != "tags")]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("folds", 2.5, "folds=2.5: must be a whole number from 2"),
        ("folds", 1, "folds=1: must be a whole number from 2"),
        ("samples", True, "samples=True: must be a whole number"),
        ("batch_size", 0, "must be a whole number from 1"),
        ("seed", 2**70, "must be a whole number from 0 to 9223372036854775807"),
        ("seed", "0", "seed='0': must be a whole number"),
        ("out_of_sample", "magic", "must be one of none, loo, folds"),
        ("cluster", "dask", "must be one of None, ray"),
        ("features", "width", "must be a list of names"),
        ("class_names", "cat,dog", "must be a list of names"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_with_its_rule(
    name: str, value: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        audit("nowhere.csv", **{name: value})


def test_the_signature_of_audit_has_the_defaults_of_the_settings() -> None:
    parameters = inspect.signature(audit).parameters
    for field in NAMES:
        assert parameters[field.name].default == field.default, field.name


def test_the_command_line_offers_every_setting_and_gives_none_a_default_of_its_own() -> None:
    parser = ArgumentParser()
    add_audit(parser)
    offered = {action.dest for action in parser._actions}
    settings = {field.name for field in NAMES}
    assert settings - offered == {"batch_size"}
    assert not settings & set(vars(parser.parse_args(["x.csv"])))


@pytest.mark.parametrize("seed", [np.int64(3), 2**63 - 1])
def test_any_whole_number_in_range_is_a_seed(seed: Any) -> None:
    x = torch.cat([torch.zeros(9, 2), torch.ones(9, 2)])
    y = torch.arange(18) // 9
    made = audit(embeddings=x, labels=y, seed=seed, out_of_sample="folds", folds=2, quiet=True)
    assert made.counts["clear"] == 18
