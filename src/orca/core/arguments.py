"""Arguments of public calls. Owns the errors for those that a call does not have, or needs and does not get."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

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
    "validation_split": "split the data, and pass validation_data=",
}


def checked(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public method of Estimators: arguments that do not fit its signature raise a SignatureError."""
    signature = inspect.signature(method)

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise _explain(error, method.__name__, signature, kwargs) from None
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
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SignatureError("\n".join(_sentence(name, known, call) for name in unknown))


def _sentence(name: str, known: Collection[str], call: str) -> str:
    if name in _INSTEAD:
        return f"{call} has no argument {name!r}: {_INSTEAD[name]}."
    meant = near(name, known)
    return f"{call} has no argument {name!r}" + (f".{meant}" if meant else f"; it has {', '.join(known)}.")


def _explain(error: TypeError, name: str, signature: inspect.Signature, given: Iterable[str]) -> SignatureError:
    call = f"Estimator.{name}()"
    _, *parameters = signature.parameters.values()  # the first is the Estimator, or its class
    known = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):
        refuse_unknown(given, known, call)
    example = ", ".join(f"{each}=..." for each in known[:3])
    return SignatureError(f"{call}: {error}. Pass arguments by name: {name}({example}).")
