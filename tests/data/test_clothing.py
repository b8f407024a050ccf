import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.data import AUGMENTATIONS, batches, load
from bayesmooth.data.clothing import parse_keys, parse_labels
from bayesmooth.data.files import read_lines
from bayesmooth.errors import InputError


@pytest.fixture
def clothing_dir(tmp_path):
    """Three pictures in the layout of Clothing1M, its lists in `annotations`, names in the root."""
    image = pytest.importorskip("PIL.Image")
    keys = [f"images/{i}/{i}{i}/{i},{i}.jpg" for i in range(3)]
    root = tmp_path / "clothing1m"
    (root / "annotations").mkdir(parents=True)
    for i, key in enumerate(keys):
        (root / key).parent.mkdir(parents=True)
        image.new("RGB", (300 + i, 280), (80 * i,) * 3).save(root / key)
    (root / "category_names_eng.txt").write_text("\n".join(f"kind {k}" for k in range(14)) + "\n")
    lists = {
        "noisy_label_kv": [f"{key} {i}" for i, key in enumerate(keys)],
        "clean_label_kv": [f"{key} 13" for key in keys],
        "noisy_train_key_list": [keys[2], keys[0]],
        "clean_train_key_list": keys,
        "clean_val_key_list": keys[:1],
        "clean_test_key_list": keys[1:2],
    }
    for name, lines in lists.items():
        (root / "annotations" / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_key_lists_choose_and_label_lists_label(clothing_dir):
    train = load("clothing1m", "train", clothing_dir)
    assert train.labels.tolist() == [2, 0]
    assert train.ids == ("images/2/22/2,2.jpg", "images/0/00/0,0.jpg")
    assert train.class_names[13] == "kind 13"
    for split, count in (("clean_train", 3), ("valid", 1), ("test", 1)):
        assert load("clothing1m", split, clothing_dir).labels.tolist() == [13] * count


def test_train_pictures_are_256_for_the_crop_to_224_and_test_pictures_its_middle(clothing_dir):
    train = load("clothing1m", "train", clothing_dir)
    assert train.inputs[torch.tensor([0])].shape == (1, 3, 256, 256)
    assert load("clothing1m", "test", clothing_dir).input_shape == (3, 224, 224)
    _, inputs, _ = next(batches(train, 2, seed=0, augment=AUGMENTATIONS["crop224_flip"]))
    assert inputs.shape == (2, 3, 224, 224)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "noisy_train_key_list",
            b"images/9.jpg\n",
            r"line 1: 'images/9.jpg' has no label in noisy_l",
        ),
        (
            "noisy_train_key_list",
            b"\nimages/../../x.jpg",
            "line 2: .* leads out of the set's folder",
        ),
        ("noisy_train_key_list", b"/etc/passwd", "line 1: .* leads out"),
        ("noisy_train_key_list", b"", "no paths in it"),
        ("noisy_train_key_list", b"a.jpg\n\xff\xfe", "line 2: not UTF-8"),
        ("noisy_label_kv", b"images/0/00/0,0.jpg 14", "line 1: .* from 0 to 13"),
        ("noisy_label_kv", b"a.jpg 3\nb.jpg", "line 2: 'b.jpg': must be `path label`"),
        ("noisy_label_kv", b"a.jpg -1", "line 1"),
        ("noisy_label_kv", b"a.jpg 1e0", "line 1"),
    ],
)
def test_a_wrong_line_is_named(clothing_dir, file, content, message):
    path = clothing_dir / "clothing1m" / "annotations" / f"{file}.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load("clothing1m", "train", clothing_dir)
    assert str(path) in str(caught.value)


LINES = st.text("im/. 0129\n\t\x00ü", max_size=40).map(str.encode) | st.binary(max_size=40)


@given(LINES)
def test_any_bytes_are_lists_or_an_input_error(tmp_path_factory, result_or_input_error, data):
    path = tmp_path_factory.getbasetemp() / "list.txt"
    path.write_bytes(data)
    result_or_input_error("list.txt", lambda: parse_keys(read_lines(path), str(path)))
    result_or_input_error("list.txt", lambda: parse_labels(read_lines(path), str(path), 14))
