"""Logits: metrics of Keras that take the logits of a loss for probabilities. Owns the advice about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_BINARY = {"BinaryCrossentropy", "BinaryFocalCrossentropy"}
_CLASSES = {"CategoricalCrossentropy", "CategoricalFocalCrossentropy", "SparseCategoricalCrossentropy"}
# The setting by which a metric reads logits; its value then; the value by which it takes outputs for probabilities.
_SETTINGS: dict[str, tuple[str, Any, Any]] = {
    "BinaryAccuracy": ("threshold", 0.0, 0.5),
    "Precision": ("thresholds", 0.0, None),
    "Recall": ("thresholds", 0.0, None),
    **{name: ("from_logits", True, False) for name in ("AUC", "BinaryCrossentropy", *_CLASSES)},
}
_NAMES = {"accuracy": "BinaryAccuracy", "acc": "BinaryAccuracy", "bce": "BinaryCrossentropy"}
_NAMES |= {name.lower(): name for name in _SETTINGS}


def advice_on_metrics(model: Any) -> list[str]:
    """Return what to write in place of metrics whose numbers are wrong as a loss of the model takes logits.

    Keras itself computes them without a word. Losses and metrics are looked at as they were given to `compile`.
    """
    kinds = {type(loss).__name__ for loss in _leaves(_attribute(model, "loss")) if _setting(loss, "from_logits")}
    if not kinds & (_BINARY | _CLASSES):
        return []
    compiled = _attribute(model, "_compile_metrics") or _attribute(model, "compiled_metrics")
    advice = []
    for metric in _leaves([_attribute(compiled, name) for name in ("_user_metrics", "_user_weighted_metrics")]):
        kind = _NAMES.get(metric.lower().replace("_", "")) if isinstance(metric, str) else type(metric).__name__
        if kind not in _SETTINGS or (metric in ("accuracy", "acc") and not (kinds & _BINARY and _is_single(model))):
            continue
        name, for_logits, for_chances = _SETTINGS[kind]
        if isinstance(metric, str) or _setting(metric, name) == for_chances:
            given = repr(metric) if isinstance(metric, str) else f"{kind}()"
            advice.append(
                f"the metric {given} takes the outputs for probabilities, but {sorted(kinds)[0]}(from_logits=True) "
                f"takes logits: its numbers are wrong. Pass keras.metrics.{kind}({name}={for_logits}) instead."
            )
    return advice


def _attribute(thing: Any, name: str) -> Any:
    return getattr(thing, name, None)  # Keras 2 and 3 have different ones


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, Mapping | list | tuple):
        for branch in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _leaves(branch)
    elif tree is not None:
        yield tree


def _setting(thing: Any, name: str) -> Any:
    """Return a setting of a loss or a metric; None if it has none."""
    if hasattr(thing, f"_{name}"):  # tf_keras leaves AUC's out of its config
        return getattr(thing, f"_{name}")
    config = _attribute(thing, "get_config")
    return None if config is None else config().get(name)


def _is_single(model: Any) -> bool:
    """Return whether the model may have one output a row: then Keras takes "accuracy" for the binary one."""
    shape = _attribute(model, "output_shape")
    return not (isinstance(shape, tuple) and shape and isinstance(shape[-1], int)) or shape[-1] == 1
