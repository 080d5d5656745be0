"""MXNet: the learner of Gluon and Symbol models, and MXNet's own metrics."""
