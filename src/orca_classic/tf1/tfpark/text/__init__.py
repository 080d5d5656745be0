"""Models of texts: taggers with Keras, and estimators of BERT."""
