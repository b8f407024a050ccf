"""Loading state: what fits is taken at full width, what does not is refused before anything changes."""

import pytest
import torch
from torch import nn

from bayesmooth.errors import InputError
from bayesmooth.optim import BSAM, IVON, SAM
from tests.conftest import make_closure

MAKERS = {
    "ivon": lambda model: IVON(model.parameters(), 0.1, 40, seed=0),
    "bsam": lambda model: BSAM(model.parameters(), 0.1, 40, seed=0),
}
each = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
SAM_OVER_SGD = pytest.param(lambda model: SAM(model.parameters(), lr=0.1, momentum=0.9), id="sam")


def trained(make, model, steps=2):
    optimizer = make(model)
    dtype = next(model.parameters()).dtype
    inputs = torch.linspace(-1, 1, 4 * 6, dtype=dtype).view(4, 6)
    closure = make_closure(optimizer, lambda: model(inputs).square().mean())
    for _ in range(steps):
        optimizer.step(closure)
    return optimizer


@each
def test_state_of_another_shape_is_refused_and_nothing_is_lost(make):
    saved = trained(make, nn.Linear(6, 2)).state_dict()  # its strides are those of the larger layer
    model = nn.Linear(6, 20_000)
    optimizer = trained(make, model)
    before = {key: t.clone() for key, t in optimizer.state[model.weight].items() if key != "step"}
    with pytest.raises(InputError, match=r"#0.*\(2, 6\).*\(20000, 6\).*another model"):
        optimizer.load_state_dict(saved)
    for key, value in before.items():
        assert torch.equal(optimizer.state[model.weight][key], value)


@pytest.mark.parametrize("make", [*MAKERS.values(), SAM_OVER_SGD])
def test_another_optimizers_state_is_refused(make):
    model = nn.Linear(6, 2)
    saved = trained(lambda m: torch.optim.AdamW(m.parameters()), model).state_dict()
    with pytest.raises(InputError, match=r"no '.*': it is not that of (IVON|BSAM|SGD)"):
        make(model).load_state_dict(saved)


@each
@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float32])
def test_loaded_state_has_the_width_that_the_parameter_needs(make, wide, narrow):
    saved = trained(make, nn.Linear(6, 2).to(wide)).state_dict()
    model = nn.Linear(6, 2).to(narrow)
    optimizer = make(model)
    optimizer.load_state_dict(saved)
    assert optimizer.state[model.weight]["momentum"].dtype == torch.float32
    trained(lambda _: optimizer, model)
    assert bool(model.weight.isfinite().all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rho": -1}, "rho=-1: must be ≥ 0"),
        ({"s_init": 0}, "s_init=0: must be > 0"),
        ({"damping": -0.1}, "damping=-0.1: must be ≥ 0"),
        ({"seed": 1.5}, "seed=1.5"),
    ],
)
def test_bsams_own_settings_have_rules_too(options, message):
    with pytest.raises(InputError, match=message):
        BSAM(nn.Linear(2, 2).parameters(), 0.1, 40, **options)
