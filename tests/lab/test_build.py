import pytest
import torch

from bayesmooth.errors import InputError


def test_the_effective_sample_size_is_the_number_of_training_examples_unless_set(tiny, loop):
    groups = [
        loop(tiny(optimizer={"name": "ivon", "lr": 0.1, **given})).optimizer.param_groups[0]
        for given in ({}, {"ess": 7})
    ]
    assert [group["ess"] for group in groups] == [96, 7]


def test_a_correction_uses_the_matrix_that_the_noise_was_drawn_from(tiny, loop):
    built = loop(tiny(loss={"name": "forward_correction"}))
    matrix = torch.from_numpy(built.splits.corruption.matrix)
    torch.testing.assert_close(
        built.loss.log_columns.exp().T.double(), matrix, rtol=1e-5, atol=1e-7
    )
    with pytest.raises(InputError, match=r"\[loss\] forward_correction: needs 'transition'"):
        loop(tiny(loss={"name": "forward_correction"}, corruption={"name": "none"}))


def test_a_bad_option_is_named_with_its_section(tiny, loop):
    with pytest.raises(InputError, match=r"\[optimizer\] sam: rho=-1.0: must be ≥ 0"):
        loop(tiny(optimizer={"name": "sam", "rho": -1, "lr": 0.1}))
