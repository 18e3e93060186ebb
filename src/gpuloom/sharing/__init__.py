"""Kernel-level sharing of one GPU: profiles of kernels, the admission rule, a simulator.

Facts from the papers of Orion (Strati et al., EuroSys '24), REEF (Han et al., OSDI '22), Tally (Zhao et al.,
ASPLOS '25) and XSched (Shen et al., OSDI '25). Nothing here imports an ML framework or needs a GPU
(docs/explanation/sharing.md).

May import: core, bounded.
"""
