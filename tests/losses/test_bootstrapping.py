import torch

from bayesmooth.losses import Bootstrapping, CrossEntropy

Z, Y = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, -1.0]]), torch.tensor([0, 2])


def test_hard_bootstrapping_leaves_alone_what_the_model_agrees_with():
    loss, plain = (
        Bootstrapping(form="hard", reduction="none")(Z, Y),
        CrossEntropy(reduction="none")(Z, Y),
    )
    torch.testing.assert_close(loss[0], plain[0])
    assert loss[1] < plain[1]


def test_each_form_has_its_authors_share_of_the_label():
    assert (Bootstrapping().beta, Bootstrapping(form="hard").beta) == (0.95, 0.8)
