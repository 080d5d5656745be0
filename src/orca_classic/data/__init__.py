"""Data as programs for Analytics Zoo and BigDL read it: image datasets, and XShards with the verbs of tf.data."""
