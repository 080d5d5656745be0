"""TFPark, as bigdl.orca.tfpark names it; `tf1` is TensorFlow 1 in graph mode."""

from orca.tfpark import ZooOptimizer, __getattr__
from orca.tfpark.dataset import TFDataset
from orca.tfpark.estimator import TFEstimator, TFEstimatorSpec
from orca.tfpark.model import KerasModel
from orca.tfpark.net import TFNet
from orca.tfpark.optimizer import TFOptimizer
from orca.tfpark.predictor import TFPredictor

__all__ = "KerasModel TFDataset TFEstimator TFEstimatorSpec TFNet TFOptimizer TFPredictor ZooOptimizer".split()
