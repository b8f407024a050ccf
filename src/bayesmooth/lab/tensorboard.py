"""TensorBoard as a listener of a run."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bayesmooth.optional import require


@contextmanager
def tensorboard(directory: Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A listener for `train` that writes every figure of every epoch; `tensorboard --logdir runs` shows them."""
    require("tensorboard", extra="tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer: list[Any] = []  # made with the first figure: a run begins in an empty directory

    def listen(record: Mapping[str, Any]) -> None:
        if not writer:
            writer.append(SummaryWriter(str(directory)))
        for name, value in record.items():
            if name != "epoch":
                writer[0].add_scalar(name.replace(".", "/"), value, record["epoch"])

    try:
        yield listen
    finally:
        for open_one in writer:
            open_one.close()
