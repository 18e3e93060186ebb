#!/bin/sh
# One job of a sweep: the index of the array chooses the learning rate. `exec`, so that the notice (SIGTERM) reaches
# Python and not a shell that sits before it.
set -eu
index=${GPULOOM_ARRAY_INDEX:-0}
rate=$(awk "BEGIN { print 0.001 * 2 ^ $index }")
exec python -m gpuloom.training.sample --steps 300 --step-seconds 0.05 --rate "$rate" --checkpoint "runs/sweep-$index.npz"
