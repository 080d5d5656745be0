"""Faces: Estimators whose verbs take the arguments of their framework. They sit on the Estimator."""
