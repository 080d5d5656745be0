"""TorchLearner: a torch model and how to train it. Owns its checks on the driver, and what opens it on a rank."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import nn

from orca.core.callbacks.numbers import names_of_epoch
from orca.core.columns import single
from orca.core.draws import kept_draws
from orca.core.learner import FitPlan, Learner
from orca.core.metrics import Metric
from orca.core.state import State
from orca.core.world import World
from orca.errors import ArgumentError
from orca.frameworks.torch.build import build_models, check_fits, check_kinds, check_linked, load_weights
from orca.frameworks.torch.hooks import TorchHooks
from orca.frameworks.torch.operator import TrainingOperator, overrides
from orca.frameworks.torch.options import Options, clipping_of
from orca.frameworks.torch.paged import building_on_disk, give_memory_back
from orca.frameworks.torch.predictor import TorchPredictor
from orca.frameworks.torch.session import TorchSession
from orca.frameworks.torch.steps import set_deterministic
from orca.frameworks.torch.tensors import copied
from orca.monitor.heartbeat import waiting_for_storage
from orca.rows.tree import listed
from orca.storage.states import load_state

logger = logging.getLogger(__name__)


@dataclass
class TorchLearner(Learner):
    """A torch model and how to train it. It travels to the ranks, where sessions and predictors are built from it.

    Attributes:
        model: A module, or a creator `(config)` of one; or several.
        optimizer: An optimizer of that module, or a creator `(model, config)`; None where nothing is trained.
        loss: A loss module or class, a function `(output, target)`, or a creator `(config)`; None where there is none.
        config: The argument of the creators.
        sync: How replicas agree: "replicated", "sharded", "fully sharded", or the class of a plug-in ("module:Class").
        hook: Called on each rank before anything else.
        options: How to train beyond the plain step.
        callbacks: Callbacks of predictions.
        features: The names of the feature columns, for messages; () for data without columns.
    """

    model: Any
    optimizer: Any = None
    loss: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    sync: str = "replicated"
    hook: Callable[[], None] | None = None
    options: Options = field(default_factory=Options)
    callbacks: tuple[Any, ...] = ()
    features: tuple[str, ...] = ()
    framework: ClassVar[str] = "torch"
    numbers: ClassVar[bool] = True  # torch has no tensors of texts or dates

    @classmethod
    def of(
        cls,
        model: Any,
        optimizer: Any,
        loss: Any,
        config: dict[str, Any],
        sync: str,
        hook: Callable[[], None] | None = None,
        options: Options | None = None,
    ) -> TorchLearner:
        """Check the arguments, as far as that is possible before anything travels."""
        check_kinds(model, optimizer, loss)
        if isinstance(optimizer, torch.optim.Optimizer):
            check_linked(optimizer, model)
        options = options or Options()
        options.check(sync)
        options.check_optimizers([optimizer])
        if options.operator is not None and not (
            isinstance(options.operator, type) and issubclass(options.operator, TrainingOperator)
        ):
            raise ArgumentError(
                f"training_operator_cls must be a subclass of TrainingOperator, not an instance; got "
                f"{options.operator!r}. Import it from orca.operator.",
                code="bad-operator",
            )
        return cls(model, optimizer, loss, config, sync, hook, options)._checked()

    @staticmethod
    def options_of(clip_norm: Any = None, clip_value: Any = None, **options: Any) -> Options:
        """Return how to train beyond the plain step; see Options."""
        return Options(clipping=clipping_of(clip_norm, clip_value), **options)

    @property
    def spread(self) -> bool:  # type: ignore[override]
        """Say whether no rank holds the whole model: its state may be too large to travel."""
        return self.sync == "fully sharded"

    @staticmethod
    def default_seed() -> int:
        """Return torch's own seed: the one the user set with torch.manual_seed, or the one torch began with."""
        return torch.initial_seed() % 2**63

    def check_trainable(self) -> None:
        """Check that there is a model, an optimizer and a loss."""
        if self.model is None:
            raise ArgumentError(
                "there is no model to train. Pass model= to from_torch, or load an entire model.", code="missing-model"
            )
        if self.optimizer is None:
            raise ArgumentError(
                "You must provide the optimizer for train. Pass optimizer= to from_torch.", code="missing-optimizer"
            )
        if self.loss is None and not self.has_user_step:
            raise ArgumentError("You must provide the loss for train. Pass loss= to from_torch.", code="missing-loss")

    def with_columns(self, features: tuple[str, ...]) -> TorchLearner:
        """Return this learner for data whose feature columns have these names."""
        return replace(self, features=features)

    def epoch_numbers(self, metrics: Sequence[Metric], validates: bool) -> set[str] | None:
        """Return the names of an epoch's numbers; None if the user's operator may add some."""
        if self.options.operator is not None:
            return None
        return names_of_epoch([metric.name for metric in metrics], validates)

    def weight_bytes(self) -> int | None:
        """Return the bytes of the weights of a module; None where a creator makes it."""
        weights = self.model.parameters() if isinstance(self.model, nn.Module) else ()
        return sum(weight.numel() * weight.element_size() for weight in weights) or None

    def check_callbacks(self, callbacks: Sequence[Any]) -> None:
        """Check callbacks before anything travels.

        Raises:
            ArgumentError: They are none, or do not go with the options.
        """
        hooks = TorchHooks(callbacks)
        if hooks.main_has("on_iter_backward"):
            self.options.check_hands_on(f"the callback {type(hooks.main).__name__}", self.sync)

    def build(self, state: State) -> Any:
        """Return a module of its own (a list where there are several) with the weights of a state."""
        own = listed(self.model)
        nets = [copy.deepcopy(net) if any(net is one for one in own) else net for net in self._made()]
        for net, weights in zip(nets, state.payload.get("averages") or state.payload["models"], strict=True):
            load_weights(net, weights)
        return single(nets)

    def check_state(self, state: State, name: str) -> None:
        """Check names and shapes of a state's weights; the ranks do it for a model that none of them holds whole."""
        if self.spread or self.model is None:
            return
        try:
            nets = self._made()
        except Exception as error:  # the user's creator, which may need files or devices of workers
            logger.warning("the model cannot be built here, to compare it with %s: %r", name, error)
            return
        models = state.payload.get("models") or []
        if len(models) != len(nets):
            raise ArgumentError(
                f"{name} holds the weights of {len(models)} models, and this Estimator has {len(nets)}. The weights "
                "stay as they were.",
                code="weights-do-not-fit",
            )
        for net, weights in zip(nets, models, strict=True):
            check_fits(net, weights, name)

    def _made(self) -> list[nn.Module]:
        """Return the modules, or those that the creator makes; its draws and changes of the config are undone."""
        with kept_draws(), self.building():
            return build_models(self.model, dict(self.config))

    def initial_state(self, seed: int) -> State:
        """Return the weights training would begin with."""
        with kept_draws():
            torch.manual_seed(seed)
            nets = build_models(self.model, dict(self.config))
        return State(payload={"models": [copied(n.state_dict()) for n in nets], "optimizers": [], "schedulers": []})

    def with_parts(self, model: nn.Module | list[nn.Module] | None, loss: Any) -> TorchLearner:
        """Return this learner with another model or loss; an optimizer of the old model cannot follow."""
        is_linked = model is not None and isinstance(self.optimizer, torch.optim.Optimizer)
        return replace(
            self,
            model=self.model if model is None else model,
            loss=self.loss if loss is None else loss,
            optimizer=None if is_linked else self.optimizer,
        )

    def with_clipping(self, bounds: tuple[float, float] | None, norm: float | None) -> TorchLearner:
        """Return this learner with gradients clipped otherwise."""
        return replace(self, options=replace(self.options, clipping=clipping_of(norm, bounds)))._checked()

    def _checked(self) -> TorchLearner:
        """Return this learner, whose options must go with the steps that its operator does itself."""
        if self.has_user_step and self.options.operator is not None:
            self.options.check_hands_on(f"the operator {self.options.operator.__name__}", self.sync)
        return self

    def for_answers(self, callbacks: Sequence[Any], precision: str | None) -> TorchLearner:
        """Return this learner as predictions need it: with callbacks, and perhaps in half precision."""
        self.check_callbacks(callbacks)
        options = replace(self.options, precision=precision or self.options.precision)
        options.check(self.sync)
        return replace(self, callbacks=tuple(callbacks), options=options)

    # On a rank.

    def join(
        self,
        world: World,
        state: State | None,
        seed: int,
        callbacks: Sequence[Any] = (),
        fit: FitPlan | None = None,
        steps: int | None = None,
    ) -> TorchSession:
        """Build models, loss and optimizers on this rank, with the same weights everywhere."""
        if self.hook:
            self.hook()
        exits = ExitStack()
        try:
            state = self._with_payload(state)
            if self.spread:
                give_memory_back()
            exits.enter_context(kept_draws())
            if self.options.deterministic:
                exits.callback(set_deterministic, set_deterministic(True))
            torch.manual_seed(seed)
            return TorchSession(self, world, state, seed, callbacks, fit, exits)
        except BaseException:
            exits.close()
            raise

    def open_predictor(self, state: State, gpu: str | None = None) -> TorchPredictor:
        """Build the models for predictions."""
        return TorchPredictor(self, self._with_payload(state), gpu)

    @property
    def has_user_step(self) -> bool:
        """Whether the user's operator does forward pass, backward pass or update itself."""
        operator = self.options.operator
        return operator is not None and overrides(operator, "train_epoch", "train_batch", "forward_batch")

    def building(self) -> AbstractContextManager[None]:
        """Return the context to build a model in: one that no rank holds as a whole is built on the disk."""
        return building_on_disk() if self.spread else nullcontext()

    def _with_payload(self, state: Any) -> Any:
        """Return a state with its payload, if that did not travel along."""
        if state is None or state.path is None:
            return state
        with waiting_for_storage(f"the state {state.path} is being read"):
            whole = replace(state, payload=load_state(state.path, self.framework, mapped=True).payload)
        return whole if state.position is not None else whole.settled()
