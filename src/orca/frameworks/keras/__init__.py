"""Keras: the Learner of Keras models, those of Keras 3 on TensorFlow and those of tf_keras."""

import os

from orca.core.loading import triton_first

# Before TensorFlow is loaded: it greets every process, and must not come before triton.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
triton_first()
