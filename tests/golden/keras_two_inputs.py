"""A functional Keras model with two inputs and two outputs, from a dict of arrays and from tuples."""

import keras
import numpy as np
from keras import layers

from orca import Estimator

rng = np.random.default_rng(0)
user = rng.integers(0, 20, (600, 1))
item = rng.normal(size=(600, 4)).astype("float32")
liked = (item[:, :1] + (user % 2) > 0.5).astype("float32")
price = item.sum(axis=1, keepdims=True)


def model_creator(config):
    keras.utils.set_random_seed(0)
    user = keras.Input((1,), name="user", dtype="int32")
    item = keras.Input((4,), name="item")
    x = layers.Concatenate()([layers.Flatten()(layers.Embedding(20, 4)(user)), item])
    x = layers.Dense(16, activation="relu")(x)
    liked = layers.Dense(1, activation="sigmoid", name="liked")(x)
    price = layers.Dense(1, name="price")(x)
    model = keras.Model(inputs=[user, item], outputs={"liked": liked, "price": price})
    model.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss={"liked": "binary_crossentropy", "price": "mse"},
        metrics={"liked": ["accuracy", "AUC"]},
    )
    return model


est = Estimator.from_keras(model_creator=model_creator, backend="local", workers_per_node=2)
data = {"x": {"item": item, "user": user}, "y": {"liked": liked, "price": price}}  # in another order than the model's
stats = est.fit(data, epochs=5, batch_size=50, validation_data=data)
print(sorted(stats))
print(est.evaluate(data, batch_size=100))
predictions = est.predict({"x": {"item": item, "user": user}})
print({name: array.shape for name, array in predictions.items()})
alone = est.get_model().predict({"user": user, "item": item}, verbose=0)
print("as Keras alone:", all(np.allclose(predictions[name], alone[name], atol=1e-5) for name in alone))
