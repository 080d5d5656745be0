"""Orca classic: what programs of Analytics Zoo, BigDL and TensorFlow 1 need."""
