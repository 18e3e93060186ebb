"""Keras 2 on several workers (`MultiWorkerMirroredStrategy`) that can be preempted and resized.

gpuloom submit -g 2 --per gpu --launcher tensorflow -- python keras_workers.py [--steps N] [--checkpoint FILE]

The strategy finds the other workers by TF_CONFIG. At every number of them a step uses the same samples, so that it ends
with the same weights whatever happens to it meanwhile; all of them stop at the same step, once one has had notice.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras

from gpuloom.training import job

parser = argparse.ArgumentParser(description="Keras 2 on several workers, which can be preempted and resized.")
parser.add_argument("--steps", type=int, default=160)
parser.add_argument("--batch", type=int, default=48, help="samples of a step, of all workers together")
parser.add_argument("--checkpoint", type=Path, default=Path("runs") / "keras_workers.pickle")
parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes longer")
given = parser.parse_args()

strategy = tf.distribute.MultiWorkerMirroredStrategy()
where = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"index": 0})
worker, replicas = int(where["index"]), strategy.num_replicas_in_sync
tf_keras.utils.set_random_seed(1)
points = np.random.default_rng(1).normal(size=(960, 8)).astype("float32")
wanted = np.square(points).sum(1, keepdims=True)
with strategy.scope():
    model = tf_keras.Sequential([tf_keras.layers.Dense(32, "tanh", input_shape=(8,)), tf_keras.layers.Dense(1)])
    optimizer = tf_keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
step = 0
if given.checkpoint.exists():
    step, weights = pickle.loads(given.checkpoint.read_bytes())  # noqa: S301 - our own
    model.set_weights(weights)


def save() -> None:
    """The first worker saves; its state is that of all."""
    if worker == 0:
        given.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        job.save_atomically(given.checkpoint, lambda file: pickle.dump((step, model.get_weights()), file))
        job.saved(step)


@tf.function  # type: ignore[untyped-decorator]
def train(inputs: tf.Tensor, targets: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
    """One step, in which gradients are summed over the workers. The loss, and how many have had notice."""

    def one(inputs: tf.Tensor, targets: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(inputs) - targets)) / given.batch
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return tf.stack([loss, stop[0]])

    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(one, args=(inputs, targets, stop)), axis=None)


def shared_out(array: np.ndarray) -> tf.Tensor:
    """Each replica, on whichever worker, has its part."""
    values_for = strategy.experimental_distribute_values_from_function
    return values_for(lambda context: tf.constant(array[context.replica_id_in_sync_group :: replicas]))


job.should_stop()  # from here on a notice is heard
job.progress(step, given.steps)
loss = float("nan")
while step < given.steps:
    drawn = np.random.default_rng(step).integers(0, len(points), given.batch)
    stop = np.full(replicas, 1.0 if job.should_stop() else 0.0, "float32")
    loss, told = map(float, train(shared_out(points[drawn]), shared_out(wanted[drawn]), shared_out(stop)))
    step += 1
    if worker == 0:
        job.progress(step, given.steps, loss=loss)
    time.sleep(given.pause)
    if told:
        save()
        job.exit_preempted()
save()
print("weights sum up to", repr(sum(float(one.sum()) for one in model.get_weights())))
