"""The table of all operators that are resolved while loading, or read in a way of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from glowtrain.onnx_io.read import build
from glowtrain.onnx_io.read.build import Rule
from glowtrain.onnx_io.read.rules import control, flex_attention, functions, gradient, sequences, tabular
from glowtrain.onnx_io.read.upgrade import typed
from glowtrain.onnx_io.read.upgrade.opset_7_up import OWN_DOMAIN

_OWN: Mapping[str, Rule] = {
    "Constant": build.constant_rule,
    "Identity": build.identity_rule,
    "CastLike": build.cast_like_rule,
    "If": control.if_rule,
    "Scan": control.scan_rule,
    "Loop": control.loop_rule,
    "SequenceConstruct": sequences.construct_rule,
    "SequenceEmpty": sequences.empty_rule,
    "SequenceLength": sequences.length_rule,
    "SequenceAt": sequences.at_rule,
    "SequenceInsert": sequences.insert_rule,
    "SequenceErase": sequences.erase_rule,
    "ConcatFromSequence": sequences.concat_rule,
    "SplitToSequence": sequences.split_rule,
    "SequenceMap": sequences.map_rule,
    "Optional": sequences.optional_rule,
    "OptionalGetElement": sequences.get_element_rule,
    "OptionalHasElement": sequences.has_element_rule,
    "ai.onnx.preview.FlexAttention": flex_attention.flex_attention_rule,
    gradient.KEY: gradient.gradient_rule,
    f"{tabular.DOMAIN}.ZipMap": tabular.zip_map_rule,
    f"{OWN_DOMAIN}.FlattenedSoftmax": typed.flattened_rule,
    f"{OWN_DOMAIN}.FlattenedLogSoftmax": typed.flattened_rule,
    f"{OWN_DOMAIN}.FlattenedHardmax": typed.flattened_rule,
    f"{OWN_DOMAIN}.GroupParameter": typed.group_parameter_rule,
    f"{OWN_DOMAIN}.AlignedOperand": typed.aligned_rule,
    f"{OWN_DOMAIN}.AlignedSlope": typed.slope_rule,
    **{key: tabular.Refusal(reason) for key, reason in tabular.REFUSED.items()},
}


class _Rules(Mapping[str, Rule]):
    """Rules by registry key. ONNX's operators are asked for bodies one by one: listing all of them takes a while."""

    def __getitem__(self, key: str) -> Rule:
        if key in _OWN:
            return _OWN[key]
        if functions.is_defined_by_body(key):
            return functions.built
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*functions.defined_by_bodies(), *_OWN)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


RULES: Mapping[str, Rule] = _Rules()
"""Rules by registry key. An operator that ONNX defines by a body has that for its rule where there is no other."""
