"""Cluster: Spark sessions and Ray, the Java under Spark, and the context that holds them."""
