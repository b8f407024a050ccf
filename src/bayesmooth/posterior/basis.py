"""An orthogonal basis for each side of a weight matrix."""

from typing import NamedTuple

import torch
from torch import Tensor


class Basis(NamedTuple):
    """Q_L and Q_R, each None where it is the identity; a convolution is read as out × in·k·k.

    >>> turn = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> Basis(left=turn).leave(torch.tensor([[1.0], [2.0]]))
    tensor([[2.],
            [1.]])
    """

    left: Tensor | None = None
    right: Tensor | None = None

    @property
    def is_identity(self) -> bool:
        """Whether neither side is turned."""
        return self.left is None and self.right is None

    def enter(self, weight: Tensor) -> Tensor:
        """Q_Lᵀ W Q_R."""
        return self._turn(weight, None if self.left is None else self.left.mT, self.right)

    def leave(self, weight: Tensor) -> Tensor:
        """Q_L W Q_Rᵀ."""
        return self._turn(weight, self.left, None if self.right is None else self.right.mT)

    def to(self, like: Tensor) -> "Basis":
        """A copy in the dtype and on the device of a tensor, row by row as a file has it: strides change last bits."""
        plain = torch.contiguous_format
        left, right = (
            None if q is None else q.to(like.device, like.dtype, copy=True, memory_format=plain)
            for q in self
        )
        return Basis(left, right)

    def _turn(self, weight: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
        if self.is_identity:
            return weight
        matrix = weight.reshape(len(weight), -1)
        matrix = matrix if left is None else left @ matrix
        return (matrix if right is None else matrix @ right).reshape(weight.shape)
