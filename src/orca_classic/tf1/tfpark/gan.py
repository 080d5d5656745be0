"""GANEstimator: a generator and a discriminator that take turns. Owns their graph and whose turn it is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from orca.core.triggers import trigger_of
from orca.errors import ArgumentError
from orca_classic.data.tf.loading import tensorflow
from orca_classic.tf1.tfpark.dataset import TFDataset
from orca_classic.tf1.tfpark.estimator import TRAIN, GraphMemory, call_with, dataset_of

_GENERATOR, _DISCRIMINATOR = "Generator", "Discriminator"


class GANEstimator(GraphMemory):
    """A generative adversarial network, trained distributed.

    Args:
        generator_fn: A function (noise) that returns made-up data.
        discriminator_fn: A function (data), or (data, noise), that returns its opinion of the data.
        generator_loss_fn: A function (opinion of made-up data) that returns the generator's loss.
        discriminator_loss_fn: A function (opinion of real data, opinion of made-up data): the discriminator's loss.
        generator_optimizer: The generator's optimizer, of `tf.train` or Keras.
        discriminator_optimizer: The discriminator's.
        generator_steps: Steps that the generator takes in a row.
        discriminator_steps: Steps that the discriminator takes in a row; it begins.
        model_dir: The folder that checkpoints are written to and read from.
        session_config: A tf.ConfigProto for the workers' sessions.
        options: More arguments of `Estimator.from_graph`: backend, workers_per_node, seed.
    """

    def __init__(
        self,
        generator_fn: Callable[..., Any],
        discriminator_fn: Callable[..., Any],
        generator_loss_fn: Callable[..., Any],
        discriminator_loss_fn: Callable[..., Any],
        generator_optimizer: Any,
        discriminator_optimizer: Any,
        generator_steps: int = 1,
        discriminator_steps: int = 1,
        model_dir: str | None = None,
        session_config: Any = None,
        **options: Any,
    ) -> None:
        for name, steps in (("generator_steps", generator_steps), ("discriminator_steps", discriminator_steps)):
            if not isinstance(steps, int) or steps < 1:
                raise ArgumentError(f"{name} must be a positive whole number; got {steps!r}.")
        self.generator_fn, self.discriminator_fn = generator_fn, discriminator_fn
        self.generator_loss_fn, self.discriminator_loss_fn = generator_loss_fn, discriminator_loss_fn
        self.optimizers = discriminator_optimizer, generator_optimizer
        self.steps = discriminator_steps, generator_steps
        self.model_dir, self.session_config, self.options = model_dir, session_config, options
        self._epochs = 0

    def train(self, input_fn: Callable[..., Any], end_trigger: Any) -> GANEstimator:
        """Train until a trigger fires.

        Args:
            input_fn: A function (mode), or (), that returns a TFDataset of (noise, real data).
            end_trigger: When to stop, such as MaxIteration(1000). Steps count from those in model_dir on.

        Returns:
            This estimator.
        """
        from orca_classic.tf1.estimators.graph import restore_values

        tf = tensorflow().compat.v1
        with tf.Graph().as_default():
            self._seed(tf)
            counter = tf.train.get_or_create_global_step()
            dataset = dataset_of(call_with(input_fn, mode=TRAIN), TRAIN)
            estimator = self._estimator(tf, dataset, counter)
            restore_values(estimator.sess, self._held())
            estimator.begin_after(self._epochs, int(estimator.sess.run(counter)))  # it says whose turn is next
            estimator.fit(
                dataset,
                epochs=1 << 30,
                batch_size=dataset.batch_size or 32,
                end_trigger=trigger_of(end_trigger),
                session_config=self.session_config,
                shuffle=dataset.shuffle,
            )
            self._epochs = estimator.trained[0]
            self._keep(estimator.sess)
        return self

    def generate(self, noise: Any) -> Any:
        """Return the trained generator's output for noise, an array.

        Raises:
            ArgumentError: It was not trained, and there is no checkpoint in model_dir.
        """
        from orca_classic.tf1.estimators.graph import restore_values

        tf, values = tensorflow().compat.v1, self._held()
        if not values:
            raise ArgumentError("the generator has not learned anything yet. Call train first.")
        with tf.Graph().as_default(), tf.Session() as session:
            port = TFDataset.from_ndarrays(noise).feature_tensors
            with tf.variable_scope(_GENERATOR):
                fakes = self.generator_fn(port)
            session.run(tf.global_variables_initializer())
            restore_values(session, values)
            return session.run(fakes, {port: noise})

    def _estimator(self, tf: Any, dataset: TFDataset, counter: Any) -> Any:
        """Return the Estimator of both losses, whose optimizers take turns."""
        from orca_classic.tf1.estimators.graph import GraphEstimator
        from orca_classic.tf1.graph.optimizers import ZooOptimizer, step_of

        noise, real = dataset.feature_tensors, dataset.label_tensors
        if real is None:
            raise ArgumentError("input_fn must return a TFDataset of two parts: noise, and real data.")
        losses = self._losses(tf, noise, real)
        steps = []
        for loss, optimizer, scope in zip(losses, self.optimizers, (_DISCRIMINATOR, _GENERATOR), strict=True):
            weights = tf.trainable_variables(scope)
            steps.append(step_of(ZooOptimizer(optimizer).minimize(loss, counter, weights)))
        return GraphEstimator.of(
            inputs=noise,
            labels=real,
            loss=losses[0] + losses[1],
            turns=list(zip(steps, self.steps, strict=True)),
            updates=tf.get_collection(tf.GraphKeys.UPDATE_OPS),
            **self.options,
        )

    def _losses(self, tf: Any, noise: Any, real: Any) -> tuple[Any, Any]:
        with tf.variable_scope(_GENERATOR):
            fakes = self.generator_fn(noise)
        with tf.variable_scope(_DISCRIMINATOR):
            of_fakes = self._opinion(fakes, noise)
        with tf.variable_scope(_DISCRIMINATOR, reuse=True):
            of_real = self._opinion(real, noise)
        return self.discriminator_loss_fn(of_real, of_fakes), self.generator_loss_fn(of_fakes)

    def _opinion(self, data: Any, noise: Any) -> Any:
        takes = [p for p in inspect.signature(self.discriminator_fn).parameters.values() if p.default is p.empty]
        return self.discriminator_fn(data, noise) if len(takes) > 1 else self.discriminator_fn(data)
