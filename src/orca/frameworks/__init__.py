"""Frameworks: one learner each. They know their framework and nothing of engines."""
