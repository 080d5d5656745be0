"""Estimators with the forms that both older systems gave to results and files, one file a framework."""
