from dataclasses import dataclass

import numpy as np

from orca.core.array_learner import ArrayLearner


@dataclass
class LogisticRegression(ArrayLearner):
    """A logistic regression with momentum."""

    features: int  # an argument of the user's; it travels to every rank
    rate: float = 0.5
    momentum: float = 0.9
    framework = "logistic regression"

    def make(self):
        self.w = self.generator.normal(0.0, 0.01, self.features)
        self.b = np.zeros(1)
        self.speed = {"w": np.zeros(self.features), "b": np.zeros(1)}

    def build(self, state):  # the result of get_model()
        return state.payload["models"][0]

    def weights(self):
        return {"w": self.w, "b": self.b}

    def set_weights(self, weights):
        self.w, self.b = np.array(weights["w"]), np.array(weights["b"])

    def optimizer_state(self):
        return self.speed

    def set_optimizer_state(self, state):
        self.speed = {name: np.array(value) for name, value in state.items()}

    def outputs(self, x):
        return 1.0 / (1.0 + np.exp(-(np.asarray(x, np.float64) @ self.w + self.b)))

    def loss(self, outputs, batch):  # the sum over rows, and its divisor
        y, counts = self.labels(batch)
        chance = np.where(y > 0.5, outputs, 1.0 - outputs)
        return float(-(counts * np.log(chance)).sum()), float(counts.sum())

    def loss_and_gradients(self, batch):  # the gradients of that sum
        outputs = self.outputs(batch.x)
        y, counts = self.labels(batch)
        error = counts * (outputs - y)
        gradients = {"w": np.asarray(batch.x, np.float64).T @ error, "b": error.sum(keepdims=True)}
        return (*self.loss(outputs, batch), gradients)

    def apply(self, gradients):  # of the mean over all rows of the step, on every rank the same
        for name, gradient in gradients.items():
            self.speed[name] = self.momentum * self.speed[name] + gradient
        self.w = self.w - self.rate * self.speed["w"]
        self.b = self.b - self.rate * self.speed["b"]

    def labels(self, batch):
        y = np.asarray(batch.y, np.float64).reshape(-1)
        return y, np.ones(len(y)) if batch.weights is None else np.asarray(batch.weights, np.float64).reshape(-1)
