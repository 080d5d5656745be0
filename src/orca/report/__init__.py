"""Report: what fits gave, for people: a history, plots, a page of HTML, TensorBoard."""
