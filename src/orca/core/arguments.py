"""Arguments of public calls. Owns the errors for those that a call does not have, or needs and does not get."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from numbers import Number
from typing import Any, ParamSpec, TypeVar

from orca.errors import SignatureError, near

P = ParamSpec("P")
R = TypeVar("R")

_GPU = (
    "GPUs need no argument: workers use those of their node if each can have one of its own, and else the CPU. "
    "CUDA_VISIBLE_DEVICES, set before the cluster starts, chooses among them ('' for none), and workers_per_node= of "
    "the Estimator says how many workers a node has"
)
_WORKERS = "pass workers_per_node= to the Estimator: the workers on each node of the cluster"
_DATA = "data is one argument: fit((x, y)), evaluate((x, y)), predict(x)"
_CALL = "pass it to fit, evaluate or predict"
# Arguments of other libraries, or of another call of ours -> what to write instead.
_INSTEAD = {
    **dict.fromkeys(
        ("accelerator", "cuda", "device", "devices", "gpu", "gpus", "n_gpus", "num_gpus", "use_cuda", "use_gpu"), _GPU
    ),
    **dict.fromkeys(("n_workers", "nproc_per_node", "num_workers", "world_size"), _WORKERS),
    **dict.fromkeys(("x", "y", "X"), _DATA),
    **dict.fromkeys(("batch_size", "epochs", "feature_cols", "label_cols", "validation_data"), _CALL),
    **dict.fromkeys(("lr", "learning_rate"), "the optimizer has it"),
    "metrics": "the Estimator has them: from_torch(metrics=[...]); a Keras model is compiled with them",
    "validation_split": "split the data, and pass validation_data=",
}


def checked(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public method of Estimators: arguments that do not fit its signature raise a SignatureError."""
    signature = inspect.signature(method)

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        refusal = _refusal(method.__name__, signature, args, kwargs)
        if refusal is not None:  # raised outside of any handler: one traceback
            raise refusal
        return method(*args, **kwargs)

    return call


def refuse_unknown(names: Iterable[str], known: Collection[str], call: str) -> None:
    """Raise for arguments that a call does not have, with what to write instead.

    Args:
        names: The names of the given arguments.
        known: The names that the call has.
        call: The call as the user writes it: "init_orca_context()".

    Raises:
        SignatureError: It does not have some of them.
    """
    if (refusal := _unknown(names, known, call)) is not None:
        raise refusal


def _unknown(names: Iterable[str], known: Collection[str], call: str) -> SignatureError | None:
    unknown = [name for name in names if name not in known]
    return (
        SignatureError("\n".join(_sentence(name, known, call) for name in unknown), code="unknown-argument")
        if unknown
        else None
    )


def _sentence(name: str, known: Collection[str], call: str) -> str:
    if name == "model" and "keras_model" in known:
        return f"{call} has no argument 'model': pass keras_model= (a compiled model) or model_creator= (a function)."
    if name in _INSTEAD:
        return f"{call} has no argument {name!r}: {_INSTEAD[name]}."
    meant = near(name, known)
    return f"{call} has no argument {name!r}" + (f".{meant}" if meant else f"; it has {', '.join(known)}.")


def _refusal(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> SignatureError | None:
    """Return the error for arguments that do not fit a signature; None if they do."""
    call = f"Estimator.{name}()"
    _, *parameters = signature.parameters.values()  # the first is the Estimator, or its class
    known = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        accepts_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
        example = ", ".join(f"{each}=..." for each in known[:3])
        other = SignatureError(f"{call}: {error}. Pass arguments by name: {name}({example}).", code="bad-call")
        return (None if accepts_any else _unknown(kwargs, known, call)) or other
    number = next((each for each in ("epochs", "batch_size") if _holds_rows(given.get(each))), None)
    return (
        None if number is None else SignatureError(f"{call}: {number} must be a number, and {_DATA}.", code="bad-call")
    )


def _holds_rows(value: Any) -> bool:
    return value is not None and not isinstance(value, Number | str)
