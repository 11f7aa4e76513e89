"""Training rounds: the reference loop, the fast paths, evaluation. Knows no file formats."""

from fairmean.engine.simulator import Simulator, Step, Training

__all__ = ["Simulator", "Step", "Training"]
