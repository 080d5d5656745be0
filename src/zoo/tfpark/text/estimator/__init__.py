"""Estimators of BERT, as zoo.tfpark.text.estimator names them."""

from orca_classic.tf1.tfpark.text.bert import BERTNER, BERTBaseEstimator, BERTClassifier, BERTSQuAD, bert_input_fn

__all__ = ["BERTNER", "BERTBaseEstimator", "BERTClassifier", "BERTSQuAD", "bert_input_fn"]
