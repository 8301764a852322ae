"""Evaluation: estimate, then score, then print tables with the published numbers."""
# What is imported here is for other packages.
# ruff: noqa: F401
# mypy: implicit-reexport

from .calibrate import Calibrated, calibrate
from .drawings import draw_demo, draw_sparsification
from .evaluate import (
    BASELINES,
    KITTI_RANGE,
    Evaluation,
    Prediction,
    dis,
    evaluate,
    evaluate_predictions,
    missing_pairs,
    predict,
    score_predictions,
    submission_entries,
    write_submission,
)
from .metrics import Result, Score, endpoint_error, pool, score_confidence, score_flow, score_pair
from .table import PUBLISHED, PUBLISHED_ABLATIONS, Grid, grid_markdown, print_grid, print_results
