"""Keras 3 on any backend ($KERAS_BACKEND), preemptible without gpuloom's hooks, too: the two lines with `preemptible`.

gpuloom submit --no-hooks -- python keras_fit.py [--epochs N] [--saves FOLDER]

With hooks, as gpuloom submits it by default, the same script needs neither of them.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import keras
import numpy as np

from gpuloom.training.keras import preemptible

parser = argparse.ArgumentParser(description="Keras that can be preempted.")
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--saves", default="runs/saves")
parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes longer")
given = parser.parse_args()


class Pause(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(given.pause)


keras.utils.set_random_seed(1)
points = np.random.default_rng(1).normal(size=(320, 8)).astype("float32")
layers = [keras.Input((8,)), keras.layers.Dense(32, "relu"), keras.layers.Dropout(0.1), keras.layers.Dense(1)]
model = keras.Sequential(layers)
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
preemptible(given.saves)
wanted = np.square(points).sum(1, keepdims=True)
model.fit(points, wanted, batch_size=16, epochs=given.epochs, callbacks=[Pause()], verbose=0)
print("weights sum up to", repr(sum(float(keras.ops.convert_to_numpy(one).sum()) for one in model.trainable_weights)))
