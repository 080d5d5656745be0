"""TFPark, as bigdl.orca.tfpark names it; `tf1` is TensorFlow 1 in graph mode."""

from orca_classic.tf1.tfpark import ZooOptimizer, __getattr__
from orca_classic.tf1.tfpark.dataset import TFDataset
from orca_classic.tf1.tfpark.estimator import TFEstimator, TFEstimatorSpec
from orca_classic.tf1.tfpark.model import KerasModel
from orca_classic.tf1.tfpark.net import TFNet
from orca_classic.tf1.tfpark.optimizer import TFOptimizer
from orca_classic.tf1.tfpark.predictor import TFPredictor

__all__ = "KerasModel TFDataset TFEstimator TFEstimatorSpec TFNet TFOptimizer TFPredictor ZooOptimizer".split()
