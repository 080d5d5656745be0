"""Bigdl: the layers, criterions and verbs of BigDL on torch, on top of the Estimator, as older programs expect it."""
