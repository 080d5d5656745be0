"""Steps on images: what each makes of pixels, and the same random numbers wherever an image is read."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

from orca.errors import ArgumentError, DataError  # noqa: E402
from orca_classic.bigdl.feature import image  # noqa: E402
from orca_classic.bigdl.feature.image import *  # noqa: E402, F403
from orca_classic.bigdl.feature.image import (  # noqa: E402
    ImageAspectScale,
    ImageBrightness,
    ImageCenterCrop,
    ImageChannelNormalize,
    ImageColorJitter,
    ImageExpand,
    ImageFeature,
    ImageFeatureToTensor,
    ImageFiller,
    ImageFixedCrop,
    ImageHFlip,
    ImageHue,
    ImageMatToTensor,
    ImageMirror,
    ImagePixelNormalize,
    ImageRandomCrop,
    ImageRandomPreprocessing,
    ImageResize,
    ImageSaturation,
    PerImageNormalize,
    RowToImageFeature,
)
from orca_classic.bigdl.feature.preprocessing import (  # noqa: E402
    ChainedPreprocessing,
    SeqToMultipleTensors,
    SeqToTensor,
)

MAT = np.random.default_rng(2).integers(0, 256, (6, 8, 3), np.uint8)


def changed(step: Any, mat: np.ndarray = MAT) -> np.ndarray:
    (feature,) = step.apply([ImageFeature(mat)])
    return feature.mat


def test_files_are_decoded_as_bgr() -> None:
    file = io.BytesIO()
    Image.fromarray(MAT[:, :, ::-1]).save(file, "PNG")
    np.testing.assert_array_equal(image.decoded(file.getvalue()), MAT)
    assert image.decoded(file.getvalue(), 0).shape == (6, 8, 1)
    with pytest.raises(DataError, match="spam.png is no image, or a damaged one"):
        image.decoded(b"spam", name="spam.png")


def test_linear_resize_takes_the_pixels_that_opencv_takes() -> None:
    ramp = np.arange(4, dtype=np.float32).reshape(1, 4, 1) * 10
    np.testing.assert_allclose(image.resized(ramp, 1, 2)[0, :, 0], [5, 25])
    np.testing.assert_allclose(image.resized(ramp, 1, 8)[0, :, 0], [0, 2.5, 7.5, 12.5, 17.5, 22.5, 27.5, 30])
    np.testing.assert_allclose(image.resized(ramp, 1, 2, 0)[0, :, 0], [0, 20])
    assert changed(ImageResize(3, 5)).shape == (3, 5, 3) and changed(ImageResize(3, 5)).dtype == np.uint8
    with pytest.raises(ArgumentError, match="resize_mode must be 0"):
        image.resized(ramp, 1, 2, 9)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (ImageHFlip(), MAT[:, ::-1]),
        (ImageMirror(), MAT[::-1, ::-1]),
        (ImageCenterCrop(4, 2), MAT[2:4, 2:6]),
        (ImageCenterCrop(40, 2), MAT[2:4]),
        (ImageFixedCrop(0.25, 0.5, 0.75, 1.0), MAT[3:6, 2:6]),
        (ImageFixedCrop(1, 2, 4, 5, normalized=False), MAT[2:5, 1:4]),
        (ImageChannelNormalize(1, 2, 3, 2, 4, 8), (MAT - np.array([1.0, 2, 3])) / [2, 4, 8]),
        (ImagePixelNormalize(np.ones(MAT.size)), MAT - 1.0),
        (PerImageNormalize(0, 1), (MAT - MAT.min()) / (MAT.max() - MAT.min())),
        (ImageBrightness(300, 300), np.full_like(MAT, 255)),
        (ImageHue(0, 0), MAT),
        (ImageSaturation(1, 1), MAT),
    ],
    ids=lambda given: type(given).__name__,
)
def test_step_changes_pixels_as_it_says(step: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(changed(step), expected, atol=1e-5)


def test_colours_turn_around_the_circle() -> None:
    red = np.array([[[0, 0, 200]]], np.uint8)
    np.testing.assert_array_equal(changed(ImageHue(60, 60), red), [[[0, 200, 0]]])  # of 180: a third
    np.testing.assert_array_equal(changed(ImageSaturation(0, 0), red), [[[200, 200, 200]]])


def test_sizes_of_steps_that_scale_fill_and_expand() -> None:
    assert changed(ImageAspectScale(3)).shape == (3, 4, 3)
    assert changed(ImageAspectScale(60, max_size=16)).shape == (12, 16, 3)
    filled = changed(ImageFiller(0, 0, 0.5, 1, 7))
    assert (filled[:, :4] == 7).all() and (filled[:, 4:] == MAT[:, 4:]).all()
    wide = changed(ImageExpand(1, 2, 3, 2.0, 2.0))
    assert wide.shape == (12, 16, 3) and (wide == [3, 2, 1]).all(axis=2).sum() >= 12 * 16 - 6 * 8


def test_random_numbers_belong_to_the_image_and_the_seed() -> None:
    mats = [np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8) for seed in range(8)]
    for step in (ImageRandomCrop(3, 3), ImageColorJitter(shuffle=True), ImageRandomPreprocessing(ImageHFlip(), 0.5)):
        first = [changed(step, mat) for mat in mats]
        again = [changed(step, mat) for mat in reversed(mats)]
        assert all(np.array_equal(one, two) for one, two in zip(first, reversed(again), strict=True))
        other = [changed(step.seeded(9), mat) for mat in mats]
        assert not all(np.array_equal(one, two) for one, two in zip(first, other, strict=True))
        assert step.draws
    assert not ImageHFlip().draws


def column_of(mats: list[np.ndarray]) -> pa.Array:
    cells = [
        {"origin": "", "height": m.shape[0], "width": m.shape[1], "nChannels": 3, "mode": 16, "data": m.tobytes()}
        for m in mats
    ]
    return pa.array(cells)


def test_steps_of_one_kind_draw_apart_in_a_chain() -> None:
    pixels = [np.full((2, 2, 3), number, np.uint8) for number in range(200)]
    steps = [ImageRandomPreprocessing(ImageBrightness(delta, delta), 0.5) for delta in (10, 20)]
    changed = ChainedPreprocessing(steps).apply([ImageFeature(each) for each in pixels])
    sums = [int(after.mat[0, 0, 0]) - number for number, after in enumerate(changed)]
    assert {added: 25 < sums.count(added) < 75 for added in (0, 10, 20, 30)} == dict.fromkeys((0, 10, 20, 30), True)


@pytest.mark.parametrize(
    "step", [ImageHue(60, 60), ImageSaturation(0.3, 0.3), ImageColorJitter(hue_prob=1, saturation_prob=1)]
)
def test_grey_has_no_hue_and_alpha_stays(step: Any) -> None:
    grey = step.apply([ImageFeature(MAT[:, :, :1])])[0].mat
    assert grey.shape == MAT[:, :, :1].shape and grey.dtype == MAT.dtype
    if not isinstance(step, ImageColorJitter):
        np.testing.assert_array_equal(grey, MAT[:, :, :1])
        alpha = np.concatenate([MAT, MAT[:, :, :1]], axis=2)
        changed = step.apply([ImageFeature(alpha)])[0].mat
        np.testing.assert_array_equal(changed[:, :, 3], alpha[:, :, 3])
        np.testing.assert_array_equal(changed[:, :, :3], step.apply([ImageFeature(MAT)])[0].mat)
        same = np.repeat(MAT[:, :, :1], 3, axis=2)  # grey in three channels
        np.testing.assert_array_equal(step.apply([ImageFeature(same)])[0].mat, same)


def test_images_of_any_channels_are_expanded_normalized_and_put_in_order() -> None:
    grey, alpha = MAT[:, :, :1], np.concatenate([MAT, MAT[:, :, :1]], axis=2)
    assert ImageChannelNormalize(5, 5, 5, 2, 2, 2).apply([ImageFeature(grey)])[0].mat.shape == grey.shape
    for mat in (grey, alpha):
        assert (
            ImageExpand(min_expand_ratio=2, max_expand_ratio=2).apply([ImageFeature(mat)])[0].mat.shape[2]
            == mat.shape[2]
        )
    tensor = ImageMatToTensor(to_RGB=True).apply([ImageFeature(alpha)])[0].tensor
    np.testing.assert_array_equal(tensor, alpha[:, :, [2, 1, 0, 3]].transpose(2, 0, 1))


def test_chain_reads_a_column_of_images_as_one_array() -> None:
    chain = ChainedPreprocessing(
        [RowToImageFeature(), ImageResize(4, 4), ImageMatToTensor(to_RGB=True), ImageFeatureToTensor()]
    )
    got = chain.read(column_of([MAT, MAT[:4]]), "image")
    assert got.shape == (2, 3, 4, 4) and got.dtype == np.float32 and chain.grows and not chain.draws
    np.testing.assert_array_equal(got[0, 0], image.resized(MAT, 4, 4)[:, :, 2])


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: ImageFeatureToTensor().apply([ImageFeature(MAT), ImageFeature(MAT[:3])]), "images differ in size"),
        (lambda: RowToImageFeature().read(pa.array([1, 2]), "picture"), "'picture' has the type int64, which holds no"),
        (lambda: RowToImageFeature().read(pa.array([None, b"x"]), "picture"), r"'picture' holds 1 null\(s\)"),
        (lambda: ImageResize(2, 2).apply(np.zeros(3)), "Begin the chain with RowToImageFeature"),
        (lambda: ImageCenterCrop(40, 2, is_clip=False).apply([ImageFeature(MAT)]), "does not lie within an image"),
        (
            lambda: ImageChannelNormalize(1, 2, 3).apply([ImageFeature(MAT[:, :, :1])]),
            "three channels, and an image has 1",
        ),
        (lambda: ImageMatToTensor(format="HW"), "must be 'NCHW' or 'NHWC'; got 'HW'"),
        (lambda: ImagePixelNormalize([1.0]).apply([ImageFeature(MAT)]), "has 1 means; an image has 144 numbers"),
        (lambda: SeqToTensor([3]).apply(np.zeros((2, 4))), "makes tensors of 3 numbers; got rows of 4"),
        (
            lambda: SeqToTensor().read(pa.array([], pa.string()), "text"),
            "makes tensors of numbers; got values .object.",
        ),
        (lambda: SeqToTensor().apply(np.array(["a", "b"])), "makes tensors of numbers; got values such as .*'a'"),
        (lambda: SeqToMultipleTensors([[1], [2]]).apply(np.zeros((2, 4))), "makes tensors of 3 numbers"),
        (lambda: ChainedPreprocessing(["resize"]), "takes a list of preprocessing steps; got str"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(act: Callable[[], Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        act()


@dataclass(frozen=True)
class Tinted(ImageBrightness):  # type: ignore[misc]
    """A program's own step, with a field of its own."""

    channel: int = 0

    def change(self, mat: Any, draw: Any) -> Any:
        changed = mat.copy()
        changed[:, :, self.channel] = super().change(mat, draw)[:, :, self.channel]
        return changed


def test_programs_own_steps_may_have_fields_of_their_own() -> None:
    (tinted,) = Tinted(9, 9, channel=1).apply([ImageFeature(np.zeros((2, 2, 3), np.uint8))])
    np.testing.assert_array_equal(tinted.mat[0, 0], [0, 9, 0])


def test_unknown_arguments_of_steps_are_refused_with_those_there_are() -> None:
    with pytest.raises(ArgumentError, match="ImageResize has no argument 'sizes'; it has resize_h, resize_w, "):
        ImageResize(1, 2, sizes=3)


def test_image_is_put_in_the_middle_of_a_picture_of_one_size() -> None:
    whole = changed(image.ImageFixExpand(10, 12))
    assert whole.shape == (10, 12, 3) and whole.dtype == np.uint8
    np.testing.assert_array_equal(whole[2:8, 2:10], MAT)
    assert whole.sum() == MAT.sum()
    with pytest.raises(DataError, match="an image of 6 x 8 is no part of one of 5 x 12"):
        changed(image.ImageFixExpand(5, 12))


def test_part_with_another_aspect_has_one_size() -> None:
    assert changed(image.ImageRandomAlterAspect(0.3, 0.6, 0.8, "CUBIC", 5)).shape == (5, 5, 3)
    assert changed(image.ImageRandomAlterAspect(9.0, 9.5, 0.8, "LINEAR", 4)).shape == (4, 4, 3)  # no such part
    with pytest.raises(ArgumentError, match="resize_mode must be 0"):
        changed(image.ImageRandomAlterAspect(0.3, 0.6, 0.8, "LANCZOS", 5))


def test_part_of_one_size_is_cut_out_and_may_be_mirrored() -> None:
    middle = MAT[1:5, 2:6]
    cuts = [changed(image.ImageRandomCropper(4, 4, True, "center", 3, seed=seed)) for seed in range(20)]
    mirrored = [np.array_equal(cut, middle[:, ::-1]) for cut in cuts]
    assert 0 < sum(mirrored) < 20
    assert all(np.array_equal(cut, middle) for cut, other in zip(cuts, mirrored, strict=True) if not other)
    part = changed(image.ImageRandomCropper(4, 3, False, "random", 3))
    assert any(np.array_equal(part, MAT[y : y + 3, x : x + 4]) for y in range(4) for x in range(5))
    with pytest.raises(ArgumentError, match="cropper_method must be 'random' or 'center'"):
        changed(image.ImageRandomCropper(4, 4, True, "corner", 3))


def test_short_side_has_a_length_that_is_drawn() -> None:
    shapes = {changed(image.ImageRandomResize(3, 5, seed=seed)).shape for seed in range(20)}
    assert shapes == {(3, 4, 3), (4, 5, 3), (5, 7, 3)}


def test_image_that_has_its_pixels_needs_no_bytes() -> None:
    for step in (image.ImageBytesToMat(), image.ImagePixelBytesToMat()):
        np.testing.assert_array_equal(changed(step), MAT)
    picture = ImageFeature(Image.fromarray(MAT[:, :, ::-1]))
    np.testing.assert_array_equal(image.ImageBytesToMat().transform(picture).mat, MAT)
    with pytest.raises(DataError, match="an image has no 'bytes'; it has nothing"):
        image.ImageBytesToMat().transform(ImageFeature())
