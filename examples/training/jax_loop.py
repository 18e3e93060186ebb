"""JAX with Optax, made preemptible by `job.steps`: state and step in a file, the data by the number of the step.

gpuloom submit -- python jax_loop.py [--steps N] [--checkpoint FILE]
"""

from __future__ import annotations

import argparse
import pickle
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

from gpuloom.training import job

parser = argparse.ArgumentParser(description="JAX that can be preempted.")
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--checkpoint", type=Path, default=Path("runs") / "jax.pickle")
parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes longer")
given = parser.parse_args()

adam = optax.adam(0.01)


def loss_of(weights: Any, inputs: Any) -> Any:
    hidden = jnp.tanh(inputs @ weights["in"])
    return ((hidden @ weights["out"] - (inputs**2).sum(1, keepdims=True)) ** 2).mean()


@partial(jax.jit, donate_argnums=(0, 1))
def train(weights: Any, state: Any, number: int) -> Any:
    inputs = jax.random.normal(jax.random.key(number), (32, 8))
    loss, gradient = jax.value_and_grad(loss_of)(weights, inputs)
    change, state = adam.update(gradient, state, weights)
    return optax.apply_updates(weights, change), state, loss


one, two = jax.random.split(jax.random.key(1))
weights = {"in": 0.3 * jax.random.normal(one, (8, 32)), "out": 0.3 * jax.random.normal(two, (32, 1))}
state, start = adam.init(weights), 0
if given.checkpoint.exists():
    start, weights, state = pickle.loads(given.checkpoint.read_bytes())  # noqa: S301 - our own


def save(step: int) -> None:
    given.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    job.save_atomically(given.checkpoint, lambda file: pickle.dump((step, *jax.device_get((weights, state))), file))


for step in job.steps(given.steps, start=start, save=save):
    weights, state, loss = train(weights, state, step)
    job.progress(step + 1, given.steps, loss=loss)
    time.sleep(given.pause)
print("weights sum up to", repr(sum(float(leaf.sum()) for leaf in jax.tree.leaves(weights))))
