"""TorchEstimator: the verbs of the PyTorch Estimator that are torch's own. Owns their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from orca.core.arguments import checked
from orca.estimators.estimator import name_of
from orca.estimators.training import TrainingEstimator
from orca.frameworks.torch.files import load_file, save_file, save_module
from orca.frameworks.torch.learner import TorchLearner
from orca.rows.tree import listed
from orca.storage.states import is_state


class TorchEstimator(TrainingEstimator):
    """A PyTorch model that learns and answers on any engine. Made by `Estimator.from_torch`."""

    learner: TorchLearner
    # Whether save writes one torch file whatever the path ends in, with backend="bigdl" a state dict of the model.
    one_file: ClassVar[bool] = False

    def _model_name(self) -> Any:
        return name_of(self.learner.model)

    @checked
    def predict(  # type: ignore[override]
        self,
        data: Any,
        batch_size: int | None = None,
        feature_cols: Sequence[str] | str | None = None,
        output_cols: Sequence[str] | str | None = None,
        profile: bool = False,
        callbacks: Any = None,
        *,
        precision: str | None = None,
        cache: bool = False,
    ) -> Any:
        """Answer for every row, in the kind the data came in and in its order.

        Args:
            data: Data of any kind `fit` takes; labels are not needed.
            batch_size: Rows the model sees at a time.
            feature_cols: Columns that become the model's arguments.
            output_cols: Names of the prediction columns; `prediction` unless given.
            profile: Accepted.
            callbacks: Callbacks (`orca.callbacks`): their hooks of predictions are called for each batch.
            precision: "bf16" or "fp16" to compute in half precision; answers are in single precision.
            cache: Ignored, with a warning; kept for compatibility. Use `df.persist()`.

        Returns:
            Arrays for arrays, loaders and creators; the same XShards with "prediction"; a DataFrame or Ray Dataset
            with one more column an output, computed lazily.
        """
        spec = self._spec(batch_size, feature_cols, None, output_cols, labelled=False, cache=cache)
        source = self._source(data, spec)
        callbacks = listed(callbacks)
        learner = self.learner.with_columns(spec.columns.features).for_answers(callbacks, precision)
        task = self._answers(learner, spec)
        # Callbacks may change an answer: its shape is known only then.
        return source.answer(replace(task, output=None) if callbacks else task, self.engine)

    def save(self, path: str | None = None, entire: bool = False, **other_names: str) -> str:  # type: ignore[override]
        """Save weights and optimizer state; returns the path.

        Args:
            path: A folder (safetensors and JSON), or a file: `.pt`-style for a torch state dict, `.safetensors` for
                weights alone. Any fsspec path.
            entire: Whether to pickle the whole module instead; loading it needs weights_only=False.
            other_names: The path under the names it had: model_path, checkpoint, filepath.
        """
        place = self._path("save", path, other_names)
        if entire:
            save_module(self.get_model(), place)
        else:
            form = "weights" if self.learner.sync == "sharded" else "state"
            save_file(self._current(), place, form if self.one_file else "")
        return place

    def load(  # type: ignore[override]
        self, path: str | None = None, loss: Any = None, *, weights_only: bool = True, **other_names: str
    ) -> TorchEstimator:
        """Load a saved model, a torch state dict, or, with weights_only=False, a pickled module.

        Args:
            path: The path.
            loss: A loss to use from now on.
            weights_only: False lets a pickled file run its code: only for files you trust.
            other_names: The path under the names it had: model_path, checkpoint, filepath.

        Raises:
            ArgumentError: There is no such file, its weights do not fit the model, or it would run code; the weights
                stay as they were.
        """
        place = self._path("load", path, other_names)
        state, model = (self._read(place), None) if is_state(place) else load_file(place, weights_only)
        if model is None:  # else the model is the file's own
            self._take(state, place)
        else:
            self._state = state
        if model is not None or loss is not None:
            self.learner = self.learner.with_parts(model, loss)
        return self

    save_checkpoint = save
    load_checkpoint = load

    def set_constant_gradient_clipping(self, min: float, max: float) -> None:
        """Clip each gradient into [min, max] from now on."""
        self._clip((min, max), None)

    def set_l2_norm_gradient_clipping(self, clip_norm: float) -> None:
        """Clip the gradients of a step to this norm from now on."""
        self._clip(None, clip_norm)

    def clear_gradient_clipping(self) -> None:
        """Stop clipping gradients."""
        self._clip(None, None)

    def _clip(self, bounds: tuple[float, float] | None, norm: float | None) -> None:
        self.learner = self.learner.with_clipping(bounds, norm)
