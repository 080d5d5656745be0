"""Bigdl: the layers, criterions and verbs of BigDL on torch. Sits on top of the Estimator, as older programs expect it."""
