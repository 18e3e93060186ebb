"""Results for people and programs: tables, plots, pages, files (docs/reference/reports.md).

May import: core, interleave, facts, files, sim, sharing.
"""

from __future__ import annotations

from gpuloom.report.export import write_csv, write_jobs_csv, write_json
from gpuloom.report.html import write_html
from gpuloom.report.plot import save_plot
from gpuloom.report.series import downsample
from gpuloom.report.table import comparison_table, print_comparison

__all__ = [
    "comparison_table",
    "downsample",
    "print_comparison",
    "save_plot",
    "write_csv",
    "write_html",
    "write_jobs_csv",
    "write_json",
]
