"""Running means of an epoch: they live on the device, and are read only when somebody looks."""

import torch
from torch import Tensor

from bayesmooth.lab.distributed import Team


class Meter:
    """Sums of loss and hits over the examples seen since the epoch began."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Count a batch whose mean loss is `loss`."""
        hits = (logits.argmax(-1) == labels).sum()
        self.sums += torch.stack(
            [loss.detach().double() * len(labels), hits, hits.new_tensor(len(labels))]
        )

    def join(self, team: Team) -> None:
        """Bring the counts of all processes together in the first one."""
        team.sum_([self.sums])
        if not team.writes:
            self.sums.zero_()

    def clear(self) -> None:
        """Begin again at zero."""
        self.sums.zero_()

    def numbers(self) -> dict[str, float]:
        """Mean loss and accuracy; empty before the first batch."""
        loss, hits, count = self.sums.tolist()
        return {"loss": loss / count, "accuracy": hits / count} if count else {}
