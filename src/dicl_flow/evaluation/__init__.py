"""Evaluation: estimate, then score, then print tables with the published numbers."""

from .baseline import BASELINES, Method, dis
from .calibrate import Calibrated, calibrate
from .calibration import CALIBRATION_SCENES, Evidence, fit_calibration, judge, probability
from .demo_sheet import draw_demo
from .evaluate import Evaluation, evaluate, evaluate_predictions
from .metrics import METRICS, Score, endpoint_error, pool, score_flow
from .predict import Prediction, predict, read_predictions
from .published import PUBLISHED, PUBLISHED_ABLATIONS, AblationRow, PublishedRow
from .score import Result, score_by_warping, score_pair, score_predictions
from .sparsification import score_confidence, sparsification_curves
from .sparsification_figure import draw_sparsification
from .submit import BENCHMARKS, submission_entries, write_submission
from .table import (
    Grid,
    as_document,
    grid_markdown,
    print_grid,
    print_results,
    to_json,
    to_markdown,
)
from .worst import draw_prediction

__all__ = [
    "AblationRow",
    "BASELINES",
    "BENCHMARKS",
    "CALIBRATION_SCENES",
    "Calibrated",
    "Evaluation",
    "Evidence",
    "Grid",
    "METRICS",
    "Method",
    "PUBLISHED",
    "PUBLISHED_ABLATIONS",
    "Prediction",
    "PublishedRow",
    "Result",
    "Score",
    "as_document",
    "calibrate",
    "dis",
    "draw_demo",
    "draw_prediction",
    "draw_sparsification",
    "endpoint_error",
    "evaluate",
    "evaluate_predictions",
    "fit_calibration",
    "judge",
    "grid_markdown",
    "pool",
    "predict",
    "print_grid",
    "print_results",
    "probability",
    "read_predictions",
    "score_by_warping",
    "score_confidence",
    "score_flow",
    "score_pair",
    "score_predictions",
    "sparsification_curves",
    "submission_entries",
    "to_json",
    "to_markdown",
    "write_submission",
]
