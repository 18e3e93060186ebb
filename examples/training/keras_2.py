"""Keras 2 on TensorFlow (`tf_keras`), made preemptible by its own loop: `job.steps` around `train_on_batch`.

gpuloom submit -- python keras_2.py [--steps N] [--checkpoint FILE]
"""

from __future__ import annotations

import argparse
import pickle
import time
from pathlib import Path

import numpy as np
import tf_keras

from gpuloom.training import job

parser = argparse.ArgumentParser(description="Keras 2 that can be preempted.")
parser.add_argument("--steps", type=int, default=160)
parser.add_argument("--checkpoint", type=Path, default=Path("runs") / "keras_2.pickle")
parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes longer")
given = parser.parse_args()

tf_keras.utils.set_random_seed(1)
points = np.random.default_rng(1).normal(size=(320, 8)).astype("float32")
wanted = np.square(points).sum(1, keepdims=True)
model = tf_keras.Sequential([tf_keras.layers.Dense(32, "relu", input_shape=(8,)), tf_keras.layers.Dense(1)])
model.compile(optimizer=tf_keras.optimizers.Adam(0.01), loss="mse")
model.optimizer.build(model.trainable_variables)
start = 0
if given.checkpoint.exists():
    start, weights, adam = pickle.loads(given.checkpoint.read_bytes())  # noqa: S301 - our own
    model.set_weights(weights)
    model.optimizer.set_weights(adam)


def save(step: int) -> None:
    given.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    state = step, model.get_weights(), [one.numpy() for one in model.optimizer.variables]
    job.save_atomically(given.checkpoint, lambda file: pickle.dump(state, file))


for step in job.steps(given.steps, start=start, save=save):
    batch = np.random.default_rng(step).integers(0, len(points), 16)  # the same at each start
    loss = model.train_on_batch(points[batch], wanted[batch])
    job.progress(step + 1, given.steps, loss=float(loss))
    time.sleep(given.pause)
print("weights sum up to", repr(sum(float(one.sum()) for one in model.get_weights())))
