"""Keras on PyTorch as people use it, with nothing for being preempted: dropout, validation, callbacks that count."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
from made_up import maybe_stop


class Stopped(keras.callbacks.Callback):
    """Stops it in a step, and notes what it has learnt after each."""

    def on_train_batch_begin(self, batch, logs=None):
        maybe_stop(int(self.model.optimizer.iterations))

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
history = model.fit(
    x, y, batch_size=4, epochs=3, validation_split=0.0, validation_data=(x, y), callbacks=callbacks, verbose=0
)
with open("weights.txt", "w") as file:
    print(
        *[repr(number) for one in model.weights for number in keras.ops.convert_to_numpy(one).flatten().tolist()],
        file=file,
    )
    print(history.epoch, history.history, file=file)
