"""Non-maximum suppression: the boxes that a detector keeps.

The greedy algorithm of ONNX's specification, all images and classes side by side: each step takes the best box that is
left and drops those that overlap it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Constant, Draw, Graph, Input, Operator, Sample, Value, constant, operator, static
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.elementwise.extrema import Max, Min
from glowtrain.ops.elementwise.logic import And, Equal, Or, Where
from glowtrain.ops.indexing.arg_extrema import ArgMax
from glowtrain.ops.indexing.gather import Gather, GatherElements
from glowtrain.ops.indexing.selection import SIZE, compacted, compacted_reference, positions
from glowtrain.ops.tensor.move import Concat, Expand, Transpose, Unsqueeze, reshape
from glowtrain.ops.tensor.split import Split
from glowtrain.types import Array, TensorType, i64


@operator
@dataclass(frozen=True)
class NonMaxSuppression(Operator):
    """Of every image and class the boxes with the best scores, without those that overlap a better one too much.

    Operands: boxes f32[images, n, 4] as two corners (y1, x1, y2, x2), or centre and size (x, y, width, height) with
    ``center_point_box``; scores f32[images, classes, n]. Results: i64[most, 3], rows of image, class and box, sorted by
    image, class and falling score; and how many there are. Ties go to the lower box. Without ``score_threshold`` every
    score counts.
    """

    max_output_boxes_per_class: int = static(2, 0)
    iou_threshold: float = static(3, 0.0)
    score_threshold: float | None = static(4, None)
    center_point_box: bool = False

    domain: ClassVar[str] = "glowtrain"
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = "indices are integers"

    def steps(self, boxes: int) -> int:
        """Boxes that are kept at most for one image and class."""
        return max(0, min(boxes, self.max_output_boxes_per_class))

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        if len(inputs) != 2:
            raise self.fail(f"takes boxes and scores, not {len(inputs)} operands", *inputs)
        boxes, scores = inputs
        if not boxes.dtype.is_float or boxes.dtype != scores.dtype:
            raise self.fail("boxes and scores must be floats of one type", *inputs)
        if boxes.rank != 3 or scores.rank != 3 or boxes.shape != (scores.shape[0], scores.shape[2], 4):
            raise self.fail("boxes must be [images, n, 4] and scores [images, classes, n]", *inputs)
        images, classes, count = scores.shape
        return i64[images * classes * self.steps(count), 3], SIZE

    def data_dependent_sizes(self, *inputs: TensorType | None) -> dict[int, int]:
        return {0: 0}

    def reference(self, boxes: Array, scores: Array) -> tuple[Array, ...]:
        images, classes, count = scores.shape
        steps = self.steps(count)
        corners = [_corners(boxes[image], self.center_point_box) for image in range(images)]
        rows = np.zeros((images, classes, steps, 3), np.int64)
        kept = np.zeros((images, classes, steps), np.bool_)
        for image, label in np.ndindex(images, classes):
            rows[image, label, :, :2] = image, label
            for step, box in enumerate(self._kept(corners[image], scores[image, label], steps)):
                rows[image, label, step, 2], kept[image, label, step] = box, True
        order, size = compacted_reference(kept.reshape(-1))
        return rows.reshape(-1, 3)[order], size

    def _kept(self, corners: Array, scores: Array, steps: int) -> list[int]:
        left, kept = scores.copy(), list[int]()
        least = -np.inf if self.score_threshold is None else self.score_threshold
        while len(kept) < steps and left.max() > least:
            best = int(left.argmax())
            kept.append(best)
            left[_overlap(corners, best) > self.iou_threshold] = -np.inf
            left[best] = -np.inf
        return kept

    def decompose(self, boxes: Value, scores: Value) -> Any:
        images, classes, count = scores.shape
        steps = self.steps(count)
        if not steps or not scores.type.size:
            return constant(np.zeros((images * classes * steps, 3), np.int64)), constant(np.int64(0))
        operands = [scores, positions(steps), self._as_corners(boxes)]
        body = self._step(images, classes, count, scores)
        _, found, kept = Scan(body=body, num_scan_inputs=1, num_captured=1)(*operands)
        order = Transpose(perm=(1, 2, 0))
        numbers = np.indices((images, classes, steps)).reshape(3, -1).T[:, :2]
        rows = Concat(axis=1)(constant(np.ascontiguousarray(numbers)), reshape(order(found), (len(numbers), 1)))
        indices, size = compacted(reshape(order(kept), (len(numbers),)))
        return Gather(axis=0)(rows, indices), size

    def _as_corners(self, boxes: Value) -> Value:
        """Boxes as [images, 1, n, 4]: lower and upper coordinate of the first axis, then of the second."""
        first, second, third, fourth = Split(num_outputs=4, axis=2)(boxes)
        if self.center_point_box:
            bounds = [first - third / 2, first + third / 2, second - fourth / 2, second + fourth / 2]
        else:
            bounds = [Min()(first, third), Max()(first, third), Min()(second, fourth), Max()(second, fourth)]
        result: Value = Unsqueeze(axes=(1,))(Concat(axis=2)(*bounds))
        return result

    def _step(self, images: int, classes: int, count: int, scores: Value) -> Graph:
        """One step: the best box that is left of each image and class, and the scores without what it suppresses."""
        left, step = Input(scores.type, "left"), Input(i64[()], "step")
        corners = Input(scores.dtype[images, 1, count, 4], "corners")
        best = ArgMax(axis=2)(left)
        score = GatherElements(axis=2)(left, best)
        least = -np.inf if self.score_threshold is None else self.score_threshold
        wide = Expand(shape=(images, classes, 1, 4))(reshape(best, (images, classes, 1, 1)))
        every = Expand(shape=(images, classes, count, 4))(corners)
        overlap = _overlap_values(every, GatherElements(axis=2)(every, wide))
        dropped = Or()(overlap > self.iou_threshold, Equal()(positions(count), best))
        kept = score > least
        following = Where()(dropped, Constant(np.asarray(-np.inf, scores.dtype.numpy)), left)
        found = Where()(kept, best, 0)  # as in the reference: nothing is said of positions behind the last that is kept
        flat = {"best": reshape(found, (images, classes)), "kept": reshape(kept, (images, classes))}
        return Graph((left, step, corners), {"following": following, **flat}, name="suppress")

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        images, classes, count = (draw.integer(1, 3) for _ in range(3))
        threshold = draw.choice((None, 0.0, 0.7))
        op = cls(draw.integer(1, 4), draw.choice((0.0, 0.3, 0.6)), threshold, draw.boolean())
        return Sample(op, (draw.floats((images, count, 4), 0.1, 2.0), draw.floats((images, classes, count))))


def _corners(boxes: Array, centred: bool) -> Array:
    first, second, third, fourth = np.moveaxis(boxes, 1, 0)
    if centred:
        return np.stack([first - third / 2, first + third / 2, second - fourth / 2, second + fourth / 2], axis=-1)
    low, high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
    return np.stack([low[:, 0], high[:, 0], low[:, 1], high[:, 1]], axis=-1)


def _overlap(corners: Array, best: int) -> Array:
    """Intersection over union of every box with the best one; 0 where there is no union."""
    low, high = corners[:, 0::2], corners[:, 1::2]
    sides = np.minimum(high, high[best]) - np.maximum(low, low[best])
    common = np.where((sides > 0).all(axis=1), sides.prod(axis=1), 0)
    areas = (high - low).prod(axis=1)
    union = areas + areas[best] - common
    return np.asarray(common / np.where(union > 0, union, 1))


def _overlap_values(boxes: Value, best: Value) -> Value:
    """:func:`_overlap` on [images, classes, n, 4] and [images, classes, 1, 4]: [images, classes, n]."""
    low, high, left, right = (reshape(part, part.shape[:3]) for part in Split(num_outputs=4, axis=3)(boxes))
    one, two, three, four = (reshape(part, part.shape[:3]) for part in Split(num_outputs=4, axis=3)(best))
    rows, columns = Min()(high, two) - Max()(low, one), Min()(right, four) - Max()(left, three)
    common = Where()(And()(rows > 0, columns > 0), rows * columns, 0.0)
    union = (high - low) * (right - left) + (two - one) * (four - three) - common
    result: Value = common / Where()(union > 0, union, 1.0)
    return result
