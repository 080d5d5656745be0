"""Report: the results of fits, for people: a history, plots, a page of HTML, TensorBoard."""
