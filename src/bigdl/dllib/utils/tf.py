"""Files of TensorFlow graphs, as bigdl.dllib.utils.tf names them."""

from orca_classic.tf1.tfpark.net import export_tf, get_checkpoint_state, load_tf_checkpoint, save_tf_checkpoint

__all__ = ["export_tf", "get_checkpoint_state", "load_tf_checkpoint", "save_tf_checkpoint"]
