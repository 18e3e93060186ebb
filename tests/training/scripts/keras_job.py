"""Keras as people use it, on the backend that the environment names: dropout, validation, callbacks that count."""

import sys

import keras
import numpy as np
from made_up import maybe_stop


class Stopped(keras.callbacks.Callback):
    """Stops it in a step, and notes what it has learnt after each."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        maybe_stop(self.epoch * self.params["steps"] + batch)

    def on_train_batch_end(self, batch, logs=None):
        with open("ids.txt", "a") as file:
            print(repr(float(logs["loss"])), file=file)


keras.utils.set_random_seed(3)
draw = np.random.default_rng(3)
x = draw.normal(size=(44, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential(
    [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
)
model.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse", metrics=["mae"])
callbacks = [
    keras.callbacks.ReduceLROnPlateau("loss", patience=1),
    keras.callbacks.EarlyStopping("loss", patience=5),
    Stopped(),
]
data = {"x": x, "y": y, "batch_size": 4}
if sys.argv[1:]:  # a pipeline of TensorFlow, whose place can be told ("plain") or can't ("generator")
    import tensorflow as tf

    pairs = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(20, seed=5, reshuffle_each_iteration=False)
    if sys.argv[1] == "generator":
        kinds = (tf.TensorSpec((4,), tf.float32), tf.TensorSpec((1,), tf.float32))
        pairs = tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=kinds)
        pairs = pairs.apply(tf.data.experimental.assert_cardinality(44))
    data = {"x": pairs.batch(4)}
history = model.fit(**data, epochs=3, validation_data=(x, y), callbacks=callbacks, verbose=0)
with open("weights.txt", "w") as file:
    print(
        *[repr(number) for one in model.weights for number in keras.ops.convert_to_numpy(one).flatten().tolist()],
        file=file,
    )
    print(history.epoch, history.history, file=file)
