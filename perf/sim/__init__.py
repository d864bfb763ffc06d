"""A simulator of Triton's dynamic batcher that predicts what the real server would do. Layer: perf, no I/O."""

from perf.sim.config import BatcherConfig, QueuePolicy
from perf.sim.engine import run, simulate
from perf.sim.prediction import Prediction, StagePrediction, Trace
from perf.sim.service import Scatter, ServiceModel
from perf.sim.state import Machine, Stage
from perf.sim.traffic import Arrivals

__all__ = [
    "Arrivals",
    "BatcherConfig",
    "Machine",
    "Prediction",
    "QueuePolicy",
    "Scatter",
    "ServiceModel",
    "Stage",
    "StagePrediction",
    "Trace",
    "run",
    "simulate",
]
