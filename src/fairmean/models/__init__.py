"""The models that come with fairmean, and any user's ``nn.Module`` by import path or from Python.

A file for each kind of model; ``building`` makes one by its name, with stored weights and frozen parts where they are
asked for.
"""

from fairmean.models.building import MODELS, build, choice
from fairmean.models.dropout import Dropout
from fairmean.models.in_memory import PREFIX, keep

__all__ = ["MODELS", "PREFIX", "Dropout", "build", "choice", "keep"]
