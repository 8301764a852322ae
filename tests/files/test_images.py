"""Images of all kinds are read as the same RGB; others are refused with the reason."""

import cv2
import numpy as np
import pytest
import torch
from fake_trees import EXACT

from dicl_flow.errors import InputError
from dicl_flow.estimation.inputs import image_batch
from dicl_flow.files import encode_image, read_flow, read_image, to_uint8

RGB = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)


@pytest.mark.parametrize(
    ("suffix", "pixels", "expected"),
    [
        (".png", RGB[..., ::-1], RGB),
        (".bmp", RGB[..., ::-1], RGB),
        (".ppm", RGB[..., ::-1], RGB),
        (".tiff", RGB[..., ::-1], RGB),
        (".png", RGB[..., 0], RGB[..., :1].repeat(3, 2)),  # grey
        (".png", np.dstack([RGB[..., ::-1], RGB[..., 0]]), RGB),  # transparency is dropped
        (".png", RGB[..., ::-1].astype(np.uint16) * 257, RGB.astype(np.uint16) * 257),
        (".png", RGB[..., 0].astype(np.uint16), RGB[..., :1].repeat(3, 2).astype(np.uint16)),
        (".tiff", (RGB[..., ::-1] / 255).astype(np.float32), (RGB / 255).astype(np.float32)),
    ],
)
def test_reads_what_opencv_reads_as_rgb(tmp_path, suffix, pixels, expected):
    path = tmp_path / f"image{suffix}"
    assert cv2.imwrite(str(path), np.ascontiguousarray(pixels), EXACT if suffix == ".tiff" else ())
    image = read_image(path)
    assert image.dtype == expected.dtype
    np.testing.assert_array_equal(image, expected)


def test_what_is_no_image_is_refused(tmp_path):
    path = tmp_path / "text.png"
    path.write_text("this is not a picture")
    with pytest.raises(InputError, match=r"text\.png is not an image"):
        read_image(path)


def test_encoding_round_trips_and_refuses_unknown_extensions():
    data = np.frombuffer(encode_image("x.png", RGB), np.uint8)
    np.testing.assert_array_equal(cv2.imdecode(data, cv2.IMREAD_COLOR)[..., ::-1], RGB)
    for name in ("x.xyz", "x"):
        with pytest.raises(InputError, match="unknown image extension"):
            encode_image(name, RGB)


def test_to_uint8():
    assert to_uint8(np.array([[0, 65535]], np.uint16)).tolist() == [[0, 255]]
    assert to_uint8(np.array([[-1, 0.5, 2]], np.float32)).tolist() == [[0, 128, 255]]
    assert to_uint8(RGB) is not None
    np.testing.assert_array_equal(to_uint8(RGB), RGB)


FLOAT = RGB.astype(np.float32) / 255
CHW = torch.from_numpy(RGB.transpose(2, 0, 1).copy())


@pytest.mark.parametrize(
    ("image", "is_batch"),
    [
        (RGB, False),
        (FLOAT, False),
        (FLOAT.astype(np.float64), False),
        (RGB.astype(np.uint16) * 257, False),
        (np.dstack([RGB, RGB[..., 0]]), False),
        (RGB[:, ::-1][:, ::-1], False),  # negative strides
        (CHW, False),
        (CHW.float() / 255, False),
        (CHW.half() / 255, False),
        (RGB[None], True),
        (CHW[None], True),
        ([RGB], True),
    ],
)
def test_all_kinds_of_images_mean_the_same(image, is_batch):
    batch, was_batch = image_batch(image)
    assert was_batch is is_batch
    assert batch.dtype == torch.float32
    torch.testing.assert_close(batch, CHW[None].float() / 255, atol=1e-3, rtol=0)


def test_grey_is_repeated():
    batch, _ = image_batch(RGB[..., 0])
    assert batch.shape == (1, 3, 5, 7)
    assert torch.equal(batch[:, 0], batch[:, 2])
    assert torch.equal(image_batch(CHW[:1])[0], batch)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((3, 4, 5), np.uint8), "channel-first data goes in as a torch tensor"),
        (np.zeros((4,), np.uint8), "shape"),
        (torch.zeros(5, 4, 3), "image tensor"),
        (np.zeros((0, 4, 3), np.uint8), "empty"),
        (np.zeros((4, 4, 3), np.int64), "uint8, uint16 or float"),
        (np.full((4, 4, 3), np.nan, np.float32), "NaN or infinite"),
        (np.full((4, 4, 3), 128.0), r"float images must be in \[0, 1\]"),
        (np.full((4, 4, 3), -0.5), r"float images must be in \[0, 1\]"),
        ([], "empty list"),
        ([RGB, RGB[:-1]], "must have one size"),
    ],
)
def test_unusable_images_are_explained(image, message):
    with pytest.raises(InputError, match=message):
        image_batch(image)


def test_errors_about_pixels_name_the_file(tmp_path):
    path = tmp_path / "nan.tiff"
    cv2.imwrite(str(path), np.full((4, 4, 3), np.nan, np.float32), EXACT)
    with pytest.raises(InputError, match=r"nan\.tiff: the image contains NaN"):
        image_batch(path)


def test_pixels_of_other_types_are_refused(tmp_path):
    path = tmp_path / "x.tiff"
    assert cv2.imwrite(str(path), RGB.astype(np.float64))
    with pytest.raises(InputError, match=r"x\.tiff has pixels of float64"):
        read_image(path)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".ppm", ".bmp", ".tif", ".webp"])
def test_a_truncated_image_is_refused_by_name(tmp_path, suffix):
    data, path = encode_image(f"x{suffix}", RGB), tmp_path / f"cut{suffix}"
    for end in {*range(0, len(data), 9), *range(len(data) - 9, len(data))}:
        path.write_bytes(data[:end])
        with pytest.raises(InputError, match=rf"cut\{suffix}"):
            read_image(path)


def test_a_truncated_jpeg_is_called_truncated(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 80, 3), np.uint8)
    for options in ([], [cv2.IMWRITE_JPEG_PROGRESSIVE, 1]):
        whole = cv2.imencode(".jpg", noise, options)[1].tobytes()
        preview = b"\xff\xe1" + (len(whole) + 2).to_bytes(2, "big") + whole  # it ends, too
        whole = whole[:2] + preview + whole[2:]
        (tmp_path / "cut.jpg").write_bytes(whole + b"of the camera")
        assert read_image(tmp_path / "cut.jpg").shape == noise.shape
        for length in (len(whole) * 3 // 4, len(whole) - 2):
            (tmp_path / "cut.jpg").write_bytes(whole[:length])
            with pytest.raises(InputError, match=rf"cut\.jpg: truncated file: .* {length:,} bytes"):
                read_image(tmp_path / "cut.jpg")


def test_a_truncated_png_is_called_truncated(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 80, 3), np.uint8)
    whole = cv2.imencode(".png", noise)[1].tobytes()
    for length in (20, 60, len(whole) // 2, len(whole) - 9):
        (tmp_path / "cut.png").write_bytes(whole[:length])
        with pytest.raises(InputError, match=rf"cut\.png: truncated file: .* {length:,} bytes"):
            read_image(tmp_path / "cut.png")
        with pytest.raises(InputError, match="truncated file"):
            read_flow(tmp_path / "cut.png")  # in KITTI's format
