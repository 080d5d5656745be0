"""Logistic regression in numpy, trained by Orca: how a package adds a framework and a kind of data."""

from orca.registry import FrameworkPlugin
from orca_logistic.data import Trials
from orca_logistic.learner import LogisticRegression

# Local workers are forked from a process that has loaded these modules, if the program has loaded the library.
PLUGIN = FrameworkPlugin("orca_logistic", ("orca.job", "orca_logistic.learner"))

__all__ = ["PLUGIN", "LogisticRegression", "Trials"]
