"""A folder of pictures with known errors, audited with several encoders: how much each one finds.

    pip install 'bayesmooth[audit]'
    python examples/audit_folder.py ~/data

writes the first test images of CIFAR-10 to one folder per class, a tenth of them to a wrong one, and prints the average
precision with which the audit finds these.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from sklearn.metrics import average_precision_score

import bayesmooth
from bayesmooth.data import corrupt, load


def main() -> None:
    """Write the folder, audit it, compare with the truth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--images", type=int, default=1500)
    parser.add_argument("--encoder", nargs="+", default=["efficientnet", "plain"])
    arguments = parser.parse_args()
    clean = load("cifar10", "test", arguments.data_dir).subset(range(arguments.images))
    noisy, _ = corrupt(clean, "symmetric", rate=0.1, seed=0)
    with TemporaryDirectory() as top:
        wrong = {}
        for number, picture in enumerate(clean.inputs):
            name = f"{noisy.class_names[noisy.labels[number]]}/{number:05d}.png"
            wrong[name] = bool(noisy.labels[number] != clean.labels[number])
            Path(top, name).parent.mkdir(exist_ok=True)
            Image.fromarray(picture.permute(1, 2, 0).numpy()).save(Path(top, name))
        for encoder in arguments.encoder:
            audit = bayesmooth.audit(top, encoder=encoder)
            truth = [wrong[name] for name in audit.ids]
            found = average_precision_score(truth, audit.disagreement)
            print(f"{encoder:14} average precision {found:.3f}, {audit.summary['seconds']} s")


if __name__ == "__main__":
    main()
