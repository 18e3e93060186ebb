"""Help for scripts that train with PyTorch."""

from __future__ import annotations

from gpuloom.training.preemptible import Training
from gpuloom.training.sampler import ElasticSampler

__all__ = ["ElasticSampler", "Training"]
