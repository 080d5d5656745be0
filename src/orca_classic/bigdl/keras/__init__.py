"""The Keras-style API of BigDL: shapes that are found out, compile and fit, variables with arithmetic."""
