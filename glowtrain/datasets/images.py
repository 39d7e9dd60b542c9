"""Folders of images as arrays, a folder for each class: ``DIR/CLASS/*.png``. Files are read by Pillow (the extra
``images``)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from glowtrain.datasets.stored import ExampleArray, StoredArray
from glowtrain.errors import DataError, check_extra
from glowtrain.types import Array

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")

MODES = {1: "L", 3: "RGB"}
"""What Pillow calls pixels of so many channels."""

IN_MEMORY = 1 << 30
"""Bytes of images, in f32, that are decoded once and kept; more are decoded again in each epoch."""

GREY = ("1", "L", "LA")
COLOURED = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")

Size = int | tuple[int, int]


def class_names(directory: Path) -> tuple[str, ...]:
    """The names of the folders in a directory that hold images, in order; hidden ones are left out."""
    try:
        folders = [each.name for each in directory.iterdir() if each.is_dir() and not each.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{directory}: cannot be read: {error.strerror or error}") from error
    return tuple(sorted(name for name in folders if image_files(directory / name)))


def read_images(
    directory: Path, classes: Sequence[str], size: Size | None = None, channels: int | None = None
) -> dict[str, ExampleArray]:
    """``x`` f32[n, channels, height, width] in [0, 1] of the images in folders that are called as ``classes``, in the
    order of their names, and ``y`` i64[n], the number of the class.

    ``size``, one number or (height, width): to which each image is stretched, by Pillow's bilinear filter; without it
    all must have one size. ``channels``: 1 (grey) or 3 (red, green, blue); by default 1 where all images are grey.
    Transparency is left out, and what a camera says of the way up is followed. Raises :class:`DataError` that names the
    file, :class:`MissingExtraError` without Pillow.
    """
    files = [(path, number) for number, name in enumerate(classes) for path in image_files(directory / name)]
    if not files:
        raise DataError(f"{directory}: there are no images; they are expected in a folder for each class, CLASS/*.png")
    x = read_files([path for path, _ in files], size, channels)
    return {"x": x, "y": np.array([number for _, number in files], np.int64)}


def read_files(files: Sequence[Path], size: Size | None = None, channels: int | None = None) -> ExampleArray:
    """``x`` of :func:`read_images`, of files of images: in memory, unless it would take more than :data:`IN_MEMORY`."""
    check_extra("reading images", "Pillow", "PIL", "images")
    extents = _extents(size)
    if channels is None:
        channels = 1 if all(_mode(path) in GREY for path in files) else 3
    if channels not in MODES:
        raise DataError(f"images have 1 channel (grey) or 3 (red, green, blue), not {channels!r}")
    images = ImageFiles(files, extents, channels)
    return images if len(images) * images.example_bytes > IN_MEMORY else images.read(np.arange(len(images)))


class ImageFiles(StoredArray):
    """Images in files, of one size, that are decoded when they are needed."""

    dtype = np.dtype(np.float32)

    def __init__(self, files: Sequence[Path], extents: tuple[int, int] | None, channels: int) -> None:
        self.files, self.extents, self.channels = files, extents, channels
        self.shape = (len(files), *_pixels(files[0], extents, channels).shape)

    def read(self, numbers: Array) -> Array:
        x = np.empty((len(numbers), *self.shape[1:]), np.float32)
        for index, path in enumerate(self.files[number] for number in numbers):
            pixels = _pixels(path, self.extents, self.channels)
            if pixels.shape != self.shape[1:]:
                found, expected = ("x".join(map(str, shape[-2:])) for shape in (pixels.shape, self.shape))
                raise DataError(
                    f"{path} is {found}, but {self.files[0]} is {expected}: give the size that all are to have "
                    "(size=(height, width), --image-size HxW)"
                )
            np.divide(pixels, np.float32(255), out=x[index])
        return x


def image_files(folder: Path) -> list[Path]:
    """The images in a folder and in those below."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())


def _extents(size: Any) -> tuple[int, int] | None:
    """Height and width. Raises :class:`DataError` for what are none."""
    if size is None:
        return None
    both = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(both) != 2 or not all(isinstance(extent, (int, np.integer)) and extent > 0 for extent in both):
        raise DataError(f"the size of images is a number of pixels, or (height, width), not {size!r}")
    return both


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """An image, of which the header is read. Whatever is wrong with its file is a :class:`DataError`."""
    try:
        with importlib.import_module("PIL.Image").open(path) as image:
            yield image
    except DataError:
        raise
    except Exception as error:  # Pillow's readers raise whatever a broken file leads them to
        raise DataError(f"{path}: cannot be read as an image: {str(error) or type(error).__name__}") from error


def _mode(path: Path) -> str:
    """How Pillow says that pixels are stored. Raises :class:`DataError` for such of more than 8 bits."""
    with _opened(path) as image:
        mode = str(image.mode)
    if mode not in GREY + COLOURED:
        raise DataError(f"{path}: pixels of mode {mode!r}, which are not of 8 bits: save it as an 8-bit image")
    return mode


def _pixels(path: Path, extents: tuple[int, int] | None, channels: int) -> Array:
    """An image as u8[channels, height, width]."""
    _mode(path)
    with _opened(path) as image:
        upright = importlib.import_module("PIL.ImageOps").exif_transpose(image).convert(MODES[channels])
        if extents is not None and upright.size != extents[::-1]:
            upright = upright.resize(extents[::-1], importlib.import_module("PIL.Image").Resampling.BILINEAR)
        pixels = np.asarray(upright, np.uint8)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
