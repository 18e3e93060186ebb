"""Help for scripts that train with PyTorch."""

from __future__ import annotations

from gpuloom.training.sampler import ElasticSampler

__all__ = ["ElasticSampler"]
