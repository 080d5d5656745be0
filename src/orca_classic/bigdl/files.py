"""Files: models on disk. Owns how layers become JSON, and weights safetensors: nothing that is loaded runs code.

A model is one safetensors file with its definition among the metadata, or two files: JSON, and safetensors. A
definition has, for each layer, its class, name and arguments, the layers within it, and for a graph the
steps between them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import numpy as np
from torch import Tensor

from orca.errors import ArgumentError
from orca.storage.files import filesystem, write
from orca_classic.bigdl import initial
from orca_classic.bigdl.layer import START_VALUES, Layer, Model, Node
from orca_classic.bigdl.recurrent import LAYERS

_KEY = "orca.bigdl"
_FILE_LAYERS: ContextVar[dict[int, Any]] = ContextVar("layers of a file by number")  # some occur twice
_VALUE_CLASSES = {**initial.METHODS, **initial.REGULARIZERS}


def save_layer(layer: Layer, path: str, weight_path: str | None = None, over_write: bool = False) -> None:
    """Write a model to one file, or its definition and its weights to two.

    Raises:
        ArgumentError: There is a file already, or a layer cannot be described.
    """
    from safetensors.torch import save

    for place in filter(None, (path, weight_path)):
        fs, at = filesystem(place)
        if fs.exists(at) and not over_write:
            raise ArgumentError(f"there is a file at {place} already. Pass over_write=True to replace it.")
    definition = json.dumps(described(layer))
    state = layer.module.state_dict()
    if not all(isinstance(value, Tensor) for value in state.values()):
        raise ArgumentError(
            f"{layer} is quantized, which no file holds. Save the model, and call quantize() after loading."
        )
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
    if weight_path is None:
        write(path, {"": save(tensors, {_KEY: definition})}, None)
    else:
        write(path, {"": definition.encode()}, None)
        write(weight_path, {"": save(tensors, {_KEY: "weights"})}, None)


def load_layer(path: str, weight_path: str | None = None) -> Any:
    """Return the model that `save_layer` wrote.

    Raises:
        ArgumentError: There is no such model, or the file holds something else.
    """
    from safetensors.torch import load

    content = _read(path)
    if weight_path is None:
        definition, weights = _metadata(content).get(_KEY), content
    else:
        definition, weights = content.decode(errors="replace"), _read(weight_path)
    try:
        about = json.loads(definition or "")
    except ValueError as error:
        raise ArgumentError(
            f"{path} holds no model of saveModel{'' if weight_path else ' (a model in two files needs weightPath=)'}."
        ) from error
    before = _FILE_LAYERS.set({})
    try:
        layer = rebuilt(about)
    finally:
        _FILE_LAYERS.reset(before)
    layer.module.load_state_dict(load(weights))
    return layer


def _read(path: str) -> bytes:
    fs, place = filesystem(path)
    if not fs.isfile(place):
        raise ArgumentError(f"there is no model at {path}. Check the path given to saveModel().")
    content: bytes = fs.cat_file(place)
    return content


def _metadata(content: bytes) -> dict[str, str]:
    """Return the metadata in the header of a safetensors file; {} for other files."""
    try:
        size = int.from_bytes(content[:8], "little")
        return dict(json.loads(content[8 : 8 + size]).get("__metadata__", {})) if size < len(content) else {}
    except ValueError:
        return {}


def described(layer: Layer) -> dict[str, Any]:
    """Return a layer as JSON writes it, without its weights.

    Raises:
        ArgumentError: It holds a function or a module that only its program knows.
    """
    name, parameters = type(layer).__name__, list(layer.module.parameters())
    trains = not parameters or any(parameter.requires_grad for parameter in parameters)
    about: dict[str, Any] = {"class": name, "name": layer.name(), "trains": trains, "number": id(layer)}
    if penalties := getattr(layer.module, "penalties", None):
        about["penalties"] = {kind: list(sizes) for kind, sizes in penalties.items()}
    definition = getattr(layer, "definition", None)  # of layers that are no rows of LAYERS
    if definition is not None:
        return about | definition(described)
    if isinstance(layer, Model):
        return about | {"graph": layer.steps(), "layers": [described(part) for part in layer.layers]}
    if LAYERS.get(name) is not type(layer):
        raise ArgumentError(
            f"{layer} cannot be written without its program: it is no layer of BigDL. "
            "Save layer.to_torch().state_dict()."
        )
    about["arguments"] = {
        key: packed(value, f"{key} of {layer}") for key, value in layer.arguments.items() if key not in START_VALUES
    }
    return about | {"layers": [described(part) for part in layer.layers]}


def packed(value: Any, what: str) -> Any:
    """Return an argument as JSON writes it."""
    if isinstance(value, Layer):
        return {"layer": described(value)}
    if isinstance(value, np.ndarray | np.generic | Tensor):
        return value.tolist()
    if type(value).__name__ in _VALUE_CLASSES:
        return {"made": type(value).__name__, "with": {k: v for k, v in vars(value).items() if v is not None}}
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}
    if isinstance(value, dict):
        return {"dict": {key: packed(item, what) for key, item in value.items()}}
    if isinstance(value, list | tuple):
        return [packed(item, what) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ArgumentError(
        f"{what} cannot be written: it is a {type(value).__name__}. Save the model's state dict instead."
    )


def unpacked(value: Any) -> Any:
    """Return the argument that `packed` described."""
    if isinstance(value, dict) and "layer" in value:
        return rebuilt(value["layer"])
    if isinstance(value, dict) and "made" in value:
        kind, settings = _VALUE_CLASSES[value["made"]], value["with"]
        if kind in (initial.L1Regularizer, initial.L2Regularizer):
            return kind(settings["l1" if kind is initial.L1Regularizer else "l2"])  # type: ignore[call-arg]
        return kind(**settings)
    if isinstance(value, dict) and "slice" in value:
        return slice(*value["slice"])
    if isinstance(value, dict) and "dict" in value:
        return {key: unpacked(item) for key, item in value["dict"].items()}
    return [unpacked(item) for item in value] if isinstance(value, list) else value


def rebuilt(about: dict[str, Any]) -> Any:
    """Return the layer of a definition, its weights still to be loaded; a definition that occurs twice is one layer."""
    layers, number = _FILE_LAYERS.get({}), about.get("number")
    if number in layers:
        return layers[number]
    if about.get("kind") == "keras":
        from orca_classic.bigdl.keras.engine import rebuilt_keras

        layer = rebuilt_keras(about)
    elif "graph" in about:
        layer = _graph(about)
    elif about["class"] in LAYERS:
        layer = LAYERS[about["class"]](**{key: unpacked(value) for key, value in about["arguments"].items()})
        for part in about["layers"]:
            layer.add(rebuilt(part))  # type: ignore[attr-defined]
    else:
        raise ArgumentError(
            f"there is no layer {about['class']!r}: the file is of another version, or no model of BigDL."
        )
    if not about["trains"]:
        layer.freeze()
    if "penalties" in about:
        layer.module.penalties = {kind: tuple(sizes) for kind, sizes in about["penalties"].items()}
    if number is not None:
        layers[number] = layer
    return layer.set_name(about["name"])


def _graph(about: dict[str, Any]) -> Any:
    from orca_classic.bigdl.layers import Input

    return graph_of(about, [Input() for _ in range(about["graph"]["inputs"])], Node, Model)


def graph_of(about: dict[str, Any], inputs: list[Any], node: Callable[..., Any], model: Callable[..., Any]) -> Any:
    """Return the graph of a definition with these inputs, built by functions for a node and for a model."""
    layers, graph, values = [rebuilt(part) for part in about["layers"]], about["graph"], list(inputs)
    for which, places in graph["steps"]:
        values.append(node(layers[which], [values[place] for place in places]))
    whole = model(inputs, [values[place] for place in graph["outputs"]])
    return whole.stop_gradient(graph["stops"]) if graph.get("stops") else whole


def load_model(model_path: str) -> Any:
    """Return the model that `save` or `saveModel` wrote in one file."""
    return load_layer(model_path)
