"""Evaluation: estimate, then score, then print tables with the published numbers."""

from .calibrate import Calibrated, calibrate
from .drawings import draw_demo, draw_sparsification
from .evaluate import Evaluation, evaluate, evaluate_predictions
from .methods import BASELINES, Prediction, dis, predict
from .metrics import METRICS, Score, endpoint_error, pool, score_confidence, score_flow
from .published import PUBLISHED, PUBLISHED_ABLATIONS, AblationRow, PublishedRow
from .score import Result, score_pair, score_predictions
from .submit import submission_entries, write_submission
from .table import Grid, format_metric, grid_markdown, print_grid, print_results

__all__ = [
    "AblationRow",
    "BASELINES",
    "Calibrated",
    "Evaluation",
    "Grid",
    "METRICS",
    "PUBLISHED",
    "PUBLISHED_ABLATIONS",
    "Prediction",
    "PublishedRow",
    "Result",
    "Score",
    "calibrate",
    "dis",
    "draw_demo",
    "draw_sparsification",
    "endpoint_error",
    "evaluate",
    "evaluate_predictions",
    "format_metric",
    "grid_markdown",
    "pool",
    "predict",
    "print_grid",
    "print_results",
    "score_confidence",
    "score_flow",
    "score_pair",
    "score_predictions",
    "submission_entries",
    "write_submission",
]
