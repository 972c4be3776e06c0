import numpy as np
import pytest
from PIL import Image

from flowtempo.errors import UserError
from flowtempo.generation import save_grid, save_npz


def pixels(count, channels, side):
    return np.random.default_rng(0).integers(0, 256, (count, channels, side, side), dtype=np.uint8)


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_grid_holds_every_image_row_by_row(tmp_path, channels, mode):
    images = pixels(5, channels, 40)
    save_grid(tmp_path / "grid.png", images, columns=3)
    with Image.open(tmp_path / "grid.png") as opened:
        assert opened.mode == mode
        sheet = np.asarray(opened).reshape(opened.height, opened.width, channels)
    assert sheet.shape == (2 * 40 + 2, 3 * 40 + 4, channels)
    for index, image in enumerate(images):
        top, left = 42 * (index // 3), 42 * (index % 3)
        assert np.array_equal(sheet[top : top + 40, left : left + 40], image.transpose(1, 2, 0))
    assert (sheet[42:, 84:] == 255).all()


def test_small_images_are_enlarged_without_blur(tmp_path):
    images = pixels(4, 1, 8)
    save_grid(tmp_path / "grid.png", images)
    with Image.open(tmp_path / "grid.png") as opened:
        sheet = np.asarray(opened)
    assert sheet.shape == (66, 66)
    assert np.array_equal(sheet[:32:4, :32:4], images[0, 0])
    assert np.array_equal(sheet[3:32:4, 3:32:4], images[0, 0])


def test_npz_is_nhwc_uint8_with_labels(tmp_path):
    images = pixels(3, 3, 4)
    save_npz(tmp_path / "a.npz", images, np.array([2, 0, 1]))
    save_npz(tmp_path / "b.npz", images)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        assert file["arr_0"].dtype == np.uint8
        assert np.array_equal(file["arr_0"].transpose(0, 3, 1, 2), images)
        assert file["labels"].tolist() == [2, 0, 1]
    with np.load(tmp_path / "b.npz", allow_pickle=False) as file:
        assert file.files == ["arr_0"]


def test_wrong_images(tmp_path):
    with pytest.raises(UserError, match="2 channels"):
        save_grid(tmp_path / "grid.png", pixels(2, 2, 8))
    with pytest.raises(ValueError, match="uint8"):
        save_npz(tmp_path / "a.npz", pixels(2, 1, 8).astype(np.float32))
    assert list(tmp_path.iterdir()) == []
